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

void* ElasticAllocator::allocate(Bytes size, StreamId stream, AllocationContext context) {
  const PoolKey key{stream, context.tag};
  if (!key.none()) return impl_->allocate_apart(size, key, context.device_only);
  return impl_->allocate(size, context.phase, context.device_only);
}
Bytes ElasticAllocator::rounded(Bytes size, StreamId stream, TagId tag) const noexcept {
  return impl_->rounded(size, {stream, tag});
}
FreedBlock ElasticAllocator::take_back(void* block) noexcept { return impl_->take_back(block); }
bool ElasticAllocator::owns(const void* address) const noexcept { return impl_->owns(address); }
BlockPlace ElasticAllocator::find(const void* block) const noexcept { return impl_->find(block); }

LimitTicket ElasticAllocator::post_limit(Bytes limit, Revision revision) {
  return impl_->post_limit(limit, revision);
}
LimitTicket ElasticAllocator::set_limit(Bytes limit, Revision revision) {
  return impl_->set_limit(limit, revision);
}
LimitTicket ElasticAllocator::safe_point() { return impl_->safe_point(); }
LimitTicket ElasticAllocator::shrink(Bytes bytes) { return impl_->shrink(bytes); }
LimitTicket ElasticAllocator::grow(Bytes bytes) { return impl_->grow(bytes); }
LimitTicket ElasticAllocator::park(Parking how) { return impl_->park(how); }
AheadReport ElasticAllocator::work_ahead(Bytes most) { return impl_->work_ahead(most); }
void ElasticAllocator::expect_work_ahead(bool on) noexcept { impl_->expect_work_ahead(on); }
void ElasticAllocator::pace_returns(ReturnPace* pace) noexcept { impl_->pace_returns(pace); }
void ElasticAllocator::claim_with(MemoryClaims* claims) { impl_->claim_with(claims); }
void ElasticAllocator::keep_live(bool keeps) noexcept { impl_->keep_live(keeps); }
Bytes ElasticAllocator::release_cached() { return impl_->release_cached(); }
Bytes ElasticAllocator::keep_in_place(AddressRange range, std::string_view why, KeepWhere where) {
  return impl_->keep_in_place(range, why, where);
}
void ElasticAllocator::may_move(AddressRange range, std::string_view why) {
  impl_->may_move(range, why);
}
std::vector<KeptMemory> ElasticAllocator::kept_in_place() const { return impl_->kept_in_place(); }
void ElasticAllocator::count_outside(Bytes held) noexcept { impl_->count_outside(held); }
void ElasticAllocator::step_ended() noexcept { impl_->step_ended(); }
bool ElasticAllocator::work_pending() const noexcept { return impl_->work_pending(); }

void ElasticAllocator::on_pressure(PressureHandler handler) {
  impl_->on_pressure(std::move(handler));
}

AllocatorStats ElasticAllocator::stats() const { return impl_->stats(); }
Bytes ElasticAllocator::capacity() const { return impl_->capacity(Tier::kDevice); }
Bytes ElasticAllocator::slower_capacity() const { return impl_->capacity(Tier::kHost); }
void ElasticAllocator::with_source(const std::function<void()>& work) { impl_->with_source(work); }
void ElasticAllocator::reset_peak_reserved() noexcept { impl_->reset_peak_reserved(); }
std::vector<ChunkResidency> ElasticAllocator::residency() const { return impl_->residency(); }
std::vector<SegmentMap> ElasticAllocator::memory_map(bool with_blocks) const {
  return impl_->memory_map(with_blocks);
}
std::uint64_t ElasticAllocator::layout() const noexcept { return impl_->layout(); }

TagId ElasticAllocator::open_tag(std::string_view name, TagOptions options) {
  return impl_->open_tag(name, options);
}
TagId ElasticAllocator::find_tag(std::string_view name) const { return impl_->find_tag(name); }
TagTicket ElasticAllocator::park_tag(TagId tag) { return impl_->park_tag(tag); }
TagTicket ElasticAllocator::drop_tag(TagId tag) { return impl_->drop_tag(tag); }
TagTicket ElasticAllocator::wake_tag(TagId tag) { return impl_->wake_tag(tag); }
std::vector<TagResidency> ElasticAllocator::tags() const { return impl_->tags(); }

std::string ElasticAllocator::reservation_notes() const { return impl_->reservation_notes(); }
void ElasticAllocator::install_fork_handlers() { impl_->install_fork_handlers(); }
bool ElasticAllocator::in_child() const noexcept { return impl_->in_child(); }

}  // namespace commensal
