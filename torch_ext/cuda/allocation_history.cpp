// SPDX-License-Identifier: Apache-2.0
// What PyTorch records of allocations, for blocks that are ours: traces, call stacks, trackers.
#include "torch_ext/cuda/allocation_history.h"

#include <cstdint>
#include <utility>

namespace commensal {
namespace {

using c10::CachingDeviceAllocator::RecordContext;
constexpr std::int64_t kNanosecondsPerMicrosecond = 1000;

// Of the calling thread, for all devices, as in PyTorch's own; null: none. Nothing that is
// destroyed with its thread: blocks are freed after that.
thread_local constinit std::vector<std::string>* compile_contexts = nullptr;

}  // namespace

void AllocationHistory::record(bool enabled, Settings settings, bool clear) {
  const MutexLock lock(mutex_);
  enabled_ = enabled;
  settings_ = std::move(settings);
  if (clear) entries_.clear();
  if (enabled && clock_ == nullptr) {
    clock_ = std::make_unique<c10::ApproximateClockToUnixTimeConverter>();
  }
  if (!enabled || settings_.when == RecordContext::NEVER) born_.clear();
  while (entries_.size() > settings_.most_entries) entries_.pop_front();
  listen();
}

void AllocationHistory::track(c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) {
  const MutexLock lock(mutex_);
  trackers_.push_back(std::move(tracker));
  listen();
}

void AllocationHistory::listen() {
  recording_.store(enabled_, std::memory_order_release);
  listening_.store(enabled_ || !trackers_.empty(), std::memory_order_release);
}

AllocationHistory::Context AllocationHistory::gather(Entry::Action action) const {
  const auto wants = [action](RecordContext when) {
    switch (action) {
      case Entry::ALLOC: return when >= RecordContext::STATE;
      case Entry::FREE_REQUESTED:
      case Entry::FREE_COMPLETED: return when >= RecordContext::ALL;
      default: return when >= RecordContext::ALLOC;
    }
  };
  c10::CachingDeviceAllocator::CreateContextFn stack = nullptr;
  {
    const MutexLock lock(mutex_);
    if (enabled_ && wants(settings_.when)) stack = settings_.gather;
  }
  return stack == nullptr ? nullptr : stack();
}

void AllocationHistory::note(Entry::Action action, const void* address, std::size_t size,
                             void* stream, const Context& context) {
  const MutexLock lock(mutex_);
  const bool freed = action == Entry::FREE_REQUESTED || action == Entry::FREE_COMPLETED;
  const auto born = freed && context == nullptr ? born_.find(address) : born_.end();
  Entry entry(action, device_, reinterpret_cast<std::size_t>(address), size, stream, {0, 0},
              c10::getApproximateTime(), born == born_.end() ? context : born->second,
              compile_contexts == nullptr ? std::string() : compile_contexts->back(), metadata_);
  if (action != Entry::SEGMENT_MAP && action != Entry::SEGMENT_UNMAP) {
    for (const auto& tracker : trackers_) tracker(entry);
  }
  if (!enabled_) return;
  if (action == Entry::ALLOC && context != nullptr) born_[address] = context;
  if (action == Entry::FREE_COMPLETED) born_.erase(address);
  if (settings_.skipped.contains(action) || settings_.most_entries == 0) return;
  // PyTorch keeps stacks of live blocks with STATE, and those of entries from ALLOC on.
  if (settings_.when < RecordContext::ALLOC) entry.context_ = nullptr;
  if (entries_.size() >= settings_.most_entries) entries_.pop_front();
  entries_.push_back(std::move(entry));
}

void AllocationHistory::push_compile_context(const std::string& context) {
  if (compile_contexts == nullptr) compile_contexts = new std::vector<std::string>;
  compile_contexts->push_back(context);
}

void AllocationHistory::pop_compile_context() {
  if (compile_contexts == nullptr) return;
  compile_contexts->pop_back();
  if (!compile_contexts->empty()) return;
  delete compile_contexts;
  compile_contexts = nullptr;
}

void AllocationHistory::set_user_metadata(const std::string& metadata) {
  const MutexLock lock(mutex_);
  metadata_ = metadata;
}

std::vector<AllocationHistory::Entry> AllocationHistory::entries() const {
  const MutexLock lock(mutex_);
  std::vector<Entry> all(entries_.begin(), entries_.end());
  if (all.empty()) return all;
  const auto since_epoch = clock_->makeConverter();
  for (Entry& entry : all) {
    entry.time_.t_ = since_epoch(entry.time_.approx_t_) / kNanosecondsPerMicrosecond;
  }
  return all;
}

AllocationHistory::Context AllocationHistory::born_at(const void* block) const {
  const MutexLock lock(mutex_);
  const auto at = born_.find(block);
  return at == born_.end() ? nullptr : at->second;
}

}  // namespace commensal
