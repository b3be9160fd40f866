// SPDX-License-Identifier: Apache-2.0
// Limits where PyTorch's own CUDA allocator serves everything: no more than a cap.
#include "torch_ext/cuda/cap_only.h"

#include <algorithm>
#include <exception>

#include "torch_ext/cuda/device_index.h"

namespace commensal {
namespace {

Bytes current(const c10::CachingDeviceAllocator::StatArray& stat) {
  return Bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(stat[kAllPools].current, 0))};
}

}  // namespace

CapOnly::CapOnly(ForwardingAllocator::Base& allocator, CudaCalls& calls, const Options& options)
    : allocator_(allocator), options_(options), total_(calls.memory_info(options.device).second) {
  try {
    (void)allocator.getDeviceStats(device());
    own_fraction_ = set_fraction_ = allocator.getMemoryFraction(device());
  } catch (const std::exception& error) {
    problem_ = error.what();
    problem_.resize(std::min(problem_.find('\n'), problem_.size()));  // a trace follows
  }
}

CapOnly::Held CapOnly::held() const {
  Held now;
  if (!problem_.empty()) return now;
  const auto stats = allocator_.getDeviceStats(device());
  now.reserved = current(stats.reserved_bytes);
  now.allocated = current(stats.allocated_bytes);
  now.unused = saturating_sub(now.reserved,
                              current(stats.active_bytes) + current(stats.inactive_split_bytes));
  return now;
}

LimitTicket CapOnly::post_limit(Bytes limit) {
  limit_.store(limit.count());
  LimitTicket ticket;
  ticket.revision = revision_.fetch_add(1) + 1;
  ticket.limit = limit;
  return ticket;
}

bool CapOnly::raise() {
  const std::uint64_t wanted = limit_.load();
  if (!problem_.empty() || wanted <= applied_.load()) return false;
  bound(Bytes{wanted});
  applied_.store(wanted);
  return true;
}

void CapOnly::bound(Bytes limit) {
  const double now = allocator_.getMemoryFraction(device());
  double wanted = 1.0;
  {
    const MutexLock lock(mutex_);
    if (now != set_fraction_) own_fraction_ = now;  // the program has set another one meanwhile
    const double share = static_cast<double>(limit.count()) / static_cast<double>(total_.count());
    wanted = std::min({share, own_fraction_, 1.0});
  }
  if (wanted == now) return;
  allocator_.setMemoryFraction(wanted, device());
  const double rounded = allocator_.getMemoryFraction(device());
  const MutexLock lock(mutex_);
  set_fraction_ = rounded;
}

LimitTicket CapOnly::safe_point() {
  LimitTicket ticket;
  ticket.revision = revision_.load();
  const Bytes limit{limit_.load()};
  ticket.limit = limit;
  if (!problem_.empty()) {
    applied_.store(limit.count());
    return ticket;
  }
  const Bytes before = held().reserved;
  Bytes after = before;
  if (options_.may_act != nullptr && !options_.may_act()) {
    ticket.reason = "applies at the end of the training thread's step";
  } else if (options_.capturing != nullptr && options_.capturing()) {
    ticket.reason = "a graph is captured";
  } else {
    bound(limit);
    applied_.store(limit.count());
    if (before > limit && options_.capturing != nullptr) {
      allocator_.emptyCache({0, 0});
      after = held().reserved;
    }
    ticket.reason = "live memory stays: GPU memory is native";
  }
  ticket.done = saturating_sub(before, after);
  ticket.deferred = saturating_sub(after, limit);
  if (ticket.deferred.is_zero()) ticket.reason.clear();
  given_back_.fetch_add(ticket.done.count());
  over_.store(ticket.deferred.count());
  const MutexLock lock(mutex_);
  reason_ = ticket.reason;
  return ticket;
}

bool CapOnly::work_pending() const noexcept {
  if (limit_.load() != applied_.load()) return true;
  if (over_.load() == 0 || options_.capturing == nullptr) return false;
  return !held().unused.is_zero();  // what died since could go
}

AllocatorStats CapOnly::stats() const {
  const Held now = held();
  AllocatorStats stats;
  stats.limit = Bytes{limit_.load()};
  stats.device = now.reserved;
  stats.live = now.allocated;
  stats.cached = saturating_sub(now.reserved, now.allocated);
  if (!problem_.empty()) return stats;
  const auto theirs = allocator_.getDeviceStats(device());
  stats.peak_live = Bytes{static_cast<std::uint64_t>(theirs.allocated_bytes[kAllPools].peak)};
  stats.peak_device = Bytes{static_cast<std::uint64_t>(theirs.reserved_bytes[kAllPools].peak)};
  stats.allocations = static_cast<std::uint64_t>(theirs.allocation[kAllPools].allocated);
  stats.frees = static_cast<std::uint64_t>(theirs.allocation[kAllPools].freed);
  stats.out_of_memory = static_cast<std::uint64_t>(theirs.num_ooms);
  stats.given_back = Bytes{given_back_.load()};
  stats.deferred = saturating_sub(now.reserved, stats.limit);
  const MutexLock lock(mutex_);
  if (!stats.deferred.is_zero()) stats.deferred_reason = reason_;
  return stats;
}

}  // namespace commensal
