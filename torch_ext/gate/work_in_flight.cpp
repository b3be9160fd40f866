// SPDX-License-Identifier: Apache-2.0
// Chunks of issued work, their markers, and what became of them.
#include "torch_ext/gate/work_in_flight.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "torch_ext/gate/pacing_law.h"

namespace commensal {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

Duration or_unknown(Duration predicted) noexcept {
  return predicted > Duration::zero() ? predicted : kUnknownOp;
}

}  // namespace

WorkInFlight::WorkInFlight(WorkClock& clock) : clock_(clock) {}

WorkInFlight::Open WorkInFlight::free_chunk() const noexcept {
  for (std::size_t i = 0; i < kMostChunks; ++i) {
    if (chunks_[i].state == State::kFree) return static_cast<Open>(i);
  }
  return kNone;
}

void WorkInFlight::issued(Open& open, const IssuedWork& work, Duration bound,
                          TimePoint now) noexcept {
  const bool measures = work.predicted == Duration::zero();
  bool other = false;
  if (open != kNone) {
    const MutexLock lock(mutex_);
    Chunk& chunk = chunks_[open];
    if (chunk.state != State::kOpen) {
      open = kNone;  // counted as done meanwhile
    } else {
      other = chunk.charge != work.charge || measures;
    }
  }
  if (other) flush(open);
  bool full = false;
  {
    const MutexLock lock(mutex_);
    if (open == kNone) {
      open = free_chunk();
      if (open == kNone) return;  // more threads than chunks: as if it were done
      chunks_[open].state = State::kOpen;
      chunks_[open].charge = work.charge;
    }
    Chunk& chunk = chunks_[open];
    const Duration takes = or_unknown(work.predicted);
    chunk.predicted += takes;
    chunk.prepaid += work.prepaid;
    chunk.touched = now;
    if (chunk.ops < kMostOps) chunk.parts[chunk.ops++] = {work.op, takes};
    pending_ns_.fetch_add(takes.count(), kRelaxed);
    const Duration most = bound > Duration::zero() ? std::min(kChunk, bound / 2) : kChunk;
    full = chunk.predicted >= most || chunk.ops == kMostOps || measures;
    // The thread's next chunk must find room.
    full = full && free_chunk() != kNone;
  }
  if (full) flush(open);
}

void WorkInFlight::flush(Open& open) noexcept {
  if (open == kNone) return;
  const Open mine = std::exchange(open, kNone);
  {
    const MutexLock lock(mutex_);
    if (chunks_[mine].state != State::kOpen) return;  // counted as done
    chunks_[mine].state = State::kMarking;
  }
  const WorkClock::Marker marker = clock_.mark();
  markers_.fetch_add(1, kRelaxed);
  const MutexLock lock(mutex_);
  chunks_[mine].marker = marker;
  chunks_[mine].state = State::kMarked;
}

std::size_t WorkInFlight::collect_into(std::array<CompletedWork, kMostChunks>& done,
                                       TimePoint now) noexcept {
  if (collecting_.exchange(true, std::memory_order_acquire)) return 0;  // another thread does it
  struct Asked {
    std::size_t chunk;
    WorkClock::Marker marker;
  };
  std::array<Asked, kMostChunks> asked{};
  std::size_t questions = 0;
  std::size_t count = 0;
  {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < kMostChunks; ++i) {
      Chunk& chunk = chunks_[i];
      const bool forgotten = chunk.state == State::kOpen && now - chunk.touched > kForgotten;
      const bool unmarked = chunk.state == State::kMarked && chunk.marker == 0;
      if (forgotten || unmarked) {
        done[count++] = finish(chunk, chunk.predicted);
      } else if (chunk.state == State::kMarked) {
        chunk.state = State::kAsked;
        asked[questions++] = {i, chunk.marker};
      }
    }
  }
  for (std::size_t i = 0; i < questions; ++i) {
    const std::optional<Duration> took = clock_.passed(asked[i].marker);
    const MutexLock lock(mutex_);
    Chunk& chunk = chunks_[asked[i].chunk];
    if (took) {
      for (std::size_t op = 0; op < chunk.ops; ++op) {
        const double part = static_cast<double>(chunk.parts[op].predicted.count()) /
                            static_cast<double>(chunk.predicted.count());
        chunk.parts[op].op.record(
            Duration{static_cast<Duration::rep>(static_cast<double>(took->count()) * part)});
      }
      done[count++] = finish(chunk, *took);
    } else {
      chunk.state = State::kMarked;
    }
  }
  collecting_.store(false, std::memory_order_release);
  return count;
}

CompletedWork WorkInFlight::finish(Chunk& chunk, Duration took) noexcept {
  const CompletedWork done{chunk.charge, chunk.predicted, chunk.prepaid, took};
  pending_ns_.fetch_sub(chunk.predicted.count(), kRelaxed);
  chunk.state = State::kFree;
  chunk.ops = 0;
  chunk.marker = 0;
  chunk.predicted = chunk.prepaid = Duration::zero();
  return done;
}

}  // namespace commensal
