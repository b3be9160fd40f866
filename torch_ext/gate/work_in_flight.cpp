// SPDX-License-Identifier: Apache-2.0
// Chunks of issued work, their markers, and what became of them.
#include "torch_ext/gate/work_in_flight.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "allocator/base/relaxed.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {
WorkInFlight::WorkInFlight(WorkClock& clock) : clock_(clock) {}

std::uint8_t WorkInFlight::free_chunk() const noexcept {
  for (std::size_t i = 0; i < kMostChunks; ++i) {
    if (chunks_[i].state == State::kFree) return static_cast<std::uint8_t>(i);
  }
  return Open::kNone;
}

void WorkInFlight::issued(Open& open, const IssuedWork& work, Duration bound,
                          TimePoint now) noexcept {
  bool measures = work.predicted == Duration::zero() || std::exchange(open.alone, false);
  bool other = false;
  if (open.chunk != Open::kNone) {
    const MutexLock lock(mutex_);
    // Forgotten while the op was issued: it may have waited for what was issued before.
    measures = measures || is_forgotten(open);
    other = measures || chunks_[open.chunk].charge != work.charge;
  }
  if (other) flush(open, false);
  bool full = false;
  {
    const MutexLock lock(mutex_);
    if (open.chunk == Open::kNone || is_forgotten(open)) {
      open = {.chunk = free_chunk(), .charge = work.charge};
      if (open.chunk == Open::kNone) return;  // more threads than chunks: as if it were done
      chunks_[open.chunk].state = State::kOpen;
      chunks_[open.chunk].charge = work.charge;
      chunks_[open.chunk].neighbour = work.neighbour;
      chunks_[open.chunk].began = now;
      open.turn = turns_[open.chunk].load(kRelaxed);
    }
    Chunk& chunk = chunks_[open.chunk];
    const Duration takes = or_unknown(work.predicted);
    chunk.predicted += takes;
    chunk.prepaid += work.prepaid;
    chunk.touched = now;
    chunk.seen = chunk.seen && work.predicted > Duration::zero();
    if (chunk.ops < kMostOps) chunk.parts[chunk.ops++] = {work.op, takes};
    pending_ns_.fetch_add(takes.count(), kRelaxed);
    const Duration most = bound > Duration::zero() ? std::min(kChunk, bound / 2) : kChunk;
    full = chunk.predicted >= most || chunk.ops == kMostOps || measures;
    // The thread's next chunk must find room.
    full = full && free_chunk() != Open::kNone;
  }
  if (full) flush(open, false);
}

void WorkInFlight::flush(Open& open, bool late) noexcept {
  if (open.chunk == Open::kNone) return;
  const std::uint8_t mine = open.chunk;
  {
    const MutexLock lock(mutex_);
    const bool forgotten = is_forgotten(open);
    open = {.alone = forgotten || late};  // nobody asks the device how long it took
    if (forgotten) return;
    chunks_[mine].state = State::kMarking;
    chunks_[mine].measured = !late;
  }
  const WorkClock::Marker marker = clock_.mark();
  markers_.fetch_add(1, kRelaxed);
  const MutexLock lock(mutex_);
  chunks_[mine].marker = marker;
  chunks_[mine].state = State::kMarked;
}

std::size_t WorkInFlight::collect_into(std::array<CompletedWork, kMostChunks>& done, TimePoint now,
                                       TimePoint gap_since) noexcept {
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
        done[count++] = finish(i, chunk.predicted);
      } else if (chunk.state == State::kMarked) {
        chunk.state = State::kAsked;
        asked[questions++] = {i, chunk.marker};
      }
    }
  }
  for (std::size_t i = 0; i < questions; ++i) {
    std::optional<Duration> took = clock_.passed(asked[i].marker);
    const MutexLock lock(mutex_);
    Chunk& chunk = chunks_[asked[i].chunk];
    if (took && !chunk.measured) took = chunk.predicted;
    if (took) {
      const bool working = chunk.neighbour == Neighbour::kWorking;
      const bool beside =
          working || (chunk.neighbour == Neighbour::kWaiting && chunk.began < gap_since);
      if (beside && chunk.seen) took = std::min(*took, chunk.predicted * kMostBeside);
      const bool tells = chunk.measured && (!beside || !chunk.seen);
      const bool at_most = waited_for_host(chunk, *took);
      for (std::size_t op = 0; op < chunk.ops && tells; ++op) {
        const Part& known = chunk.parts[op];
        const double part = static_cast<double>(known.predicted.count()) /
                            static_cast<double>(chunk.predicted.count()) * (working ? 0.5 : 1.0);
        const Duration its{static_cast<Duration::rep>(static_cast<double>(took->count()) * part)};
        if (!at_most || its < known.predicted) known.op.record(its);
      }
      done[count++] = finish(asked[i].chunk, *took);
    } else {
      chunk.state = State::kMarked;
    }
  }
  collecting_.store(false, std::memory_order_release);
  return count;
}

// In a gap, where work in flight is bounded, a thread that issues a chunk does not wait for the
// device, which is never far behind: if that took as long as the issuing, it was the host's time.
bool WorkInFlight::waited_for_host(const Chunk& chunk, Duration took) noexcept {
  if (chunk.neighbour != Neighbour::kWaiting || chunk.ops < 2) return false;
  const Duration between = chunk.touched - chunk.began;  // the ends of the first and the last call
  return took <= between + 2 * between / (chunk.ops - 1);
}

CompletedWork WorkInFlight::finish(std::size_t number, Duration took) noexcept {
  Chunk& chunk = chunks_[number];
  const CompletedWork done{chunk.charge, chunk.predicted, chunk.prepaid, took};
  pending_ns_.fetch_sub(chunk.predicted.count(), kRelaxed);
  chunk.state = State::kFree;
  turns_[number].fetch_add(1, kRelaxed);
  chunk.ops = 0;
  chunk.measured = chunk.seen = true;
  chunk.marker = 0;
  chunk.predicted = chunk.prepaid = Duration::zero();
  return done;
}

}  // namespace commensal
