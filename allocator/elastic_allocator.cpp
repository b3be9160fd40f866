// SPDX-License-Identifier: Apache-2.0
// The public face of the elastic allocator.
#include "allocator/elastic_allocator.h"

#include <utility>

#include "allocator/elastic_core.h"

namespace commensal {

struct ElasticAllocator::Impl : ElasticCore {
  using ElasticCore::ElasticCore;
};

ElasticAllocator::ElasticAllocator(MemorySource& source, ElasticAllocatorOptions options,
                                   const Clock& clock)
    : impl_(std::make_unique<Impl>(source, options, clock)) {}
ElasticAllocator::~ElasticAllocator() = default;

// The stream is part of the contract already; on a CPU there is one.
void* ElasticAllocator::allocate(Bytes size, StreamId, AllocationContext context) {
  return impl_->allocate(size, context.phase);
}
bool ElasticAllocator::deallocate(void* block) noexcept { return impl_->deallocate(block); }
bool ElasticAllocator::owns(const void* address) const noexcept { return impl_->owns(address); }
Bytes ElasticAllocator::size_of(const void* block) const noexcept { return impl_->size_of(block); }

LimitTicket ElasticAllocator::post_limit(Bytes limit, Revision revision) {
  return impl_->post_limit(limit, revision);
}
LimitTicket ElasticAllocator::set_limit(Bytes limit, Revision revision) {
  return impl_->set_limit(limit, revision);
}
LimitTicket ElasticAllocator::safe_point() { return impl_->safe_point(); }
LimitTicket ElasticAllocator::shrink(Bytes bytes) { return impl_->shrink(bytes); }
LimitTicket ElasticAllocator::grow(Bytes bytes) { return impl_->grow(bytes); }
LimitTicket ElasticAllocator::park(bool until_grow) { return impl_->park(until_grow); }
Bytes ElasticAllocator::release_cached() { return impl_->release_cached(); }
void ElasticAllocator::step_ended() noexcept { impl_->step_ended(); }
bool ElasticAllocator::work_pending() const noexcept { return impl_->work_pending(); }

void ElasticAllocator::on_pressure(PressureHandler handler) {
  impl_->on_pressure(std::move(handler));
}

AllocatorStats ElasticAllocator::stats() const { return impl_->stats(); }
std::vector<ChunkResidency> ElasticAllocator::residency() const { return impl_->residency(); }
std::string ElasticAllocator::reservation_notes() const { return impl_->reservation_notes(); }
void ElasticAllocator::install_fork_handlers() { impl_->install_fork_handlers(); }
bool ElasticAllocator::in_child() const noexcept { return impl_->in_child(); }

}  // namespace commensal
