// SPDX-License-Identifier: Apache-2.0
// Blocks that other streams than their own still use: when they may be served again.
#include "torch_ext/cuda/stream_uses.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace commensal {

StreamUses::StreamUses(CudaCalls& calls, Done done) : calls_(calls), done_(std::move(done)) {}

StreamUses::~StreamUses() {
  const MutexLock lock(mutex_);
  for (const Held& held : waiting_) {
    for (cudaEvent_t mark : held.marks) calls_.forget(mark);
  }
}

void StreamUses::record(void* block, Stream stream) {
  const MutexLock lock(mutex_);
  std::vector<Stream>& streams = uses_[block];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  recorded_.store(uses_.size(), std::memory_order_release);
}

bool StreamUses::freed(void* block, bool capturing) {
  if (!any_recorded()) return false;
  const MutexLock lock(mutex_);
  const auto at = uses_.find(block);
  if (at == uses_.end()) return false;
  Held& held = waiting_.emplace_back();
  held.block = block;
  held.unmarked = std::move(at->second);
  uses_.erase(at);
  recorded_.store(uses_.size(), std::memory_order_release);
  held_.store(waiting_.size(), std::memory_order_release);
  if (!capturing) try_mark(held);
  return true;
}

// A free cannot throw: what fails stays unmarked, and `process` tries again and says what is wrong.
void StreamUses::try_mark(Held& held) noexcept {
  try {
    mark(held);
  } catch (const std::exception&) {
    return;
  }
}

// What fails stays unmarked, so that the block stays held back.
void StreamUses::mark(Held& held) {
  while (!held.unmarked.empty()) {
    held.marks.reserve(held.marks.size() + 1);
    const Stream& stream = held.unmarked.back();
    held.marks.push_back(calls_.mark(stream.device, stream.handle));
    held.unmarked.pop_back();
  }
}

// Tells whether all streams of a block have come past.
bool StreamUses::came_past(Held& held, bool wait) {
  mark(held);
  while (!held.marks.empty()) {
    cudaEvent_t newest = held.marks.back();
    if (wait) {
      calls_.wait(newest);
    } else if (!calls_.reached(newest)) {
      return false;
    }
    calls_.forget(newest);
    held.marks.pop_back();
  }
  return true;
}

std::vector<void*> StreamUses::take_done(bool wait) {
  std::vector<void*> done;
  const MutexLock lock(mutex_);
  done.reserve(waiting_.size());
  try {
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      if (!came_past(*at, wait)) {
        ++at;
        continue;
      }
      done.push_back(at->block);
      at = waiting_.erase(at);
      held_.store(waiting_.size(), std::memory_order_release);
    }
  } catch (const std::exception&) {
    if (done.empty()) throw;  // else those first; what is wrong shows again
  }
  return done;
}

void StreamUses::process(bool capturing) {
  if (idle() || capturing) return;
  for (void* block : take_done(false)) done_(block);
}

void StreamUses::drain(bool capturing) {
  if (idle() || capturing) return;
  for (void* block : take_done(true)) done_(block);
}

std::vector<void*> StreamUses::waiting() const {
  const MutexLock lock(mutex_);
  std::vector<void*> blocks;
  blocks.reserve(waiting_.size());
  for (const Held& held : waiting_) blocks.push_back(held.block);
  return blocks;
}

}  // namespace commensal
