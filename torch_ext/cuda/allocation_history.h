// SPDX-License-Identifier: Apache-2.0
// What PyTorch records of allocations, for blocks that are ours: traces, call stacks, trackers.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "allocator/base/mutex.h"

namespace commensal {

/// The history of one device's own blocks, in PyTorch's format (`_record_memory_history`).
/// While nothing is recorded and nobody listens, a note costs one load.
/// Trackers are told of blocks, not of segments: who follows these registers their memory, which is
/// to stay movable. Thread safety: all. Trackers are called with the lock of this object held, as
/// PyTorch's are with its allocator's: they take no GIL and call no allocator.
class AllocationHistory {
 public:
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  using Context = std::shared_ptr<c10::GatheredContext>;

  struct Settings {
    c10::CachingDeviceAllocator::CreateContextFn gather = nullptr;
    std::size_t most_entries = 1;
    c10::CachingDeviceAllocator::RecordContext when =
        c10::CachingDeviceAllocator::RecordContext::NEVER;
    std::unordered_set<int> skipped;  ///< actions
  };

  explicit AllocationHistory(c10::DeviceIndex device) noexcept : device_(device) {}

  void record(bool enabled, Settings settings, bool clear);
  void track(c10::CachingDeviceAllocator::AllocatorTraceTracker tracker);

  [[nodiscard]] bool listening() const noexcept {
    return listening_.load(std::memory_order_acquire);
  }
  /// Whether entries are kept; else there may be trackers.
  [[nodiscard]] bool recording() const noexcept {
    return recording_.load(std::memory_order_acquire);
  }
  /// Tells what happened. Gathers a call stack where PyTorch was asked to.
  void note(Entry::Action action, const void* address, std::size_t size, void* stream) {
    if (listening()) note(action, address, size, stream, gather(action));
  }
  /// The same with a call stack that was gathered before.
  void note(Entry::Action action, const void* address, std::size_t size, void* stream,
            const Context& context);
  /// Returns the call stack that an entry is to have; null: none. Takes the GIL: not to be called
  /// with a lock held.
  [[nodiscard]] Context gather(Entry::Action action) const;
  /// What the calling thread compiles: for entries of every device.
  static void push_compile_context(const std::string& context);
  static void pop_compile_context();
  void set_user_metadata(const std::string& metadata);

  /// Returns the entries in the order of time; times are microseconds since the epoch.
  [[nodiscard]] std::vector<Entry> entries() const;
  /// Returns the call stack at which a live block was made, if it was recorded.
  [[nodiscard]] Context born_at(const void* block) const;

 private:
  void listen() COMMENSAL_REQUIRES(mutex_);

  const c10::DeviceIndex device_;
  std::atomic<bool> listening_{false};
  std::atomic<bool> recording_{false};

  mutable Mutex mutex_;
  bool enabled_ COMMENSAL_GUARDED_BY(mutex_) = false;
  Settings settings_ COMMENSAL_GUARDED_BY(mutex_);
  // From when something was recorded first: it compares two clocks then and at the end.
  std::unique_ptr<c10::ApproximateClockToUnixTimeConverter> clock_ COMMENSAL_GUARDED_BY(mutex_);
  std::deque<Entry> entries_ COMMENSAL_GUARDED_BY(mutex_);
  std::unordered_map<const void*, Context> born_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<c10::CachingDeviceAllocator::AllocatorTraceTracker> trackers_
      COMMENSAL_GUARDED_BY(mutex_);
  std::string metadata_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
