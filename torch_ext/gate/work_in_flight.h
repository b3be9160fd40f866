// SPDX-License-Identifier: Apache-2.0
// Counts the predicted time of work that was issued and is not completed, and corrects predictions
// by what the device says it took.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"
#include "torch_ext/gate/device_time.h"
#include "torch_ext/gate/op_duration.h"

namespace commensal {

/// What the guaranteed job on the device did when work was issued.
enum class Neighbour : std::uint8_t {
  kNone,     ///< there was none
  kWaiting,  ///< it left a gap
  kWorking   ///< it worked, too: the device has both in turns
};

/// An op that was issued.
struct IssuedWork {
  OpEstimate op;
  Duration predicted{};                    ///< zero: never seen
  std::uint8_t charge = 0;                 ///< what its time is charged to; the gate's own
  Neighbour neighbour = Neighbour::kNone;  ///< the same for all of a charge
  Duration prepaid{};                      ///< of its time, this much is charged already
};

/// Work between two markers of one thread.
struct CompletedWork {
  std::uint8_t charge = 0;
  Duration predicted{};
  Duration prepaid{};
  Duration took{};  ///< as the device measured it
};

/// The work of one process in a device's queues.
///
/// Work is marked in chunks, not op by op: a marker costs a microsecond or two (C5). A chunk is
/// `kChunk` long, half of the bound where that is less, so that a second one is queued while the
/// first is waited for (C2). An op that was never seen is a chunk of its own: it is measured alone.
/// What a chunk took goes to its ops in proportion to what they were predicted to take.
///
/// Thread safety: any member from any thread. The work clock is called without locks.
class WorkInFlight {
 public:
  static constexpr Duration kChunk = std::chrono::microseconds{200};
  static constexpr std::size_t kMostOps = 64;     ///< in a chunk
  static constexpr std::size_t kMostChunks = 64;  ///< at once; more work goes into open ones
  /// The little work that a thread left without a marker counts as done after this: the thread may
  /// be gone, or have nothing more to do.
  static constexpr Duration kForgotten = std::chrono::milliseconds{50};
  /// A thread that issued nothing for so long has waited: for a loader, for a backward pass that
  /// other threads issue, for the device. A marker that it puts then tells of all of that, so what
  /// it had issued before is not measured (on a card, ops of microseconds became as long as the
  /// backward pass between them, docs/results/gpu_h200.md).
  static constexpr Duration kLate = std::chrono::milliseconds{1};
  static constexpr int kMostBeside = 4;

  /// What a thread has issued since its last marker; ours, to be kept by the thread.
  struct Open {
    static constexpr std::uint8_t kNone = UINT8_MAX;
    std::uint8_t chunk = kNone;
    std::uint8_t charge = 0;
    bool alone = false;      ///< what was predicted for the last was not compared: measure the next
    std::uint32_t turn = 0;  ///< of the chunk; an older one counts as done already
  };

  /// An op that the calling thread is about to issue.
  struct Next {
    bool seen = true;         ///< something is predicted for it
    std::uint8_t charge = 0;  ///< as in IssuedWork
    bool late = false;        ///< the thread issued nothing for `kLate`
  };

  explicit WorkInFlight(WorkClock& clock);
  WorkInFlight(const WorkInFlight&) = delete;
  WorkInFlight& operator=(const WorkInFlight&) = delete;

  /// Called before the calling thread issues an op. Where that does not belong to what the thread
  /// has issued without a marker (nothing, what was never seen, another charge, a late one), a
  /// chunk begins.
  void begins(Open& open, const Next& next) noexcept {
    if (open.chunk != Open::kNone) {
      if (!next.late && next.seen && next.charge == open.charge && !is_forgotten(open)) return;
      flush(open, next.late);
    }
    clock_.begin();
  }
  /// Notes an op that the calling thread issued. May put a marker behind it.
  /// Work of another charge is another chunk.
  /// @param bound  on work in flight; zero: none.
  void issued(Open& open, const IssuedWork& work, Duration bound, TimePoint now) noexcept;
  /// Puts a marker behind what the calling thread has issued, before it waits.
  /// @param late  as in Next: the marker tells when that is done, and not how long it took.
  void flush(Open& open, bool late) noexcept;
  /// Asks what was completed, corrects predictions, and calls `take` for each chunk, without locks.
  /// Work beside a guaranteed job that works has its turns between the events, about as long as its
  /// own. Such a time tells nothing new of an op that was seen before, which counts as
  /// `kMostBeside` times what was predicted at the most; of one that was not, the half is taken
  /// until it runs in a gap.
  /// @param gap_since  since when the guaranteed job has been waiting; the largest time: it works.
  template <typename Take>
  void collect(TimePoint now, TimePoint gap_since, Take take) noexcept {
    std::array<CompletedWork, kMostChunks> done;
    const std::size_t count = collect_into(done, now, gap_since);
    for (std::size_t i = 0; i < count; ++i) take(done[i]);
  }
  /// Predicted time of what was issued and is not known to be completed.
  [[nodiscard]] Duration pending() const noexcept {
    return Duration{pending_ns_.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] std::uint64_t markers() const noexcept {
    return markers_.load(std::memory_order_relaxed);
  }

 private:
  enum class State : std::uint8_t { kFree, kOpen, kMarking, kMarked, kAsked };
  struct Part {
    OpEstimate op;
    Duration predicted{};
  };
  struct Chunk {
    State state = State::kFree;
    std::uint8_t charge = 0;
    Neighbour neighbour = Neighbour::kNone;
    std::uint8_t ops = 0;
    bool measured = true;
    bool seen = true;  // all that is in it was seen before
    WorkClock::Marker marker = 0;
    Duration predicted{};
    Duration prepaid{};
    TimePoint began;
    TimePoint touched;
    std::array<Part, kMostOps> parts;
  };

  [[nodiscard]] std::size_t collect_into(std::array<CompletedWork, kMostChunks>& done,
                                         TimePoint now, TimePoint gap_since) noexcept;
  /// Whether what the device took for a chunk is only how long it was issued: the ops took that at
  /// the most.
  [[nodiscard]] static bool waited_for_host(const Chunk& chunk, Duration took) noexcept;
  [[nodiscard]] std::uint8_t free_chunk() const noexcept COMMENSAL_REQUIRES(mutex_);
  [[nodiscard]] bool is_forgotten(const Open& open) const noexcept {
    return open.chunk != Open::kNone &&
           turns_[open.chunk].load(std::memory_order_relaxed) != open.turn;
  }
  CompletedWork finish(std::size_t number, Duration took) noexcept COMMENSAL_REQUIRES(mutex_);

  WorkClock& clock_;
  std::atomic<std::int64_t> pending_ns_{0};
  std::atomic<std::uint64_t> markers_{0};
  std::atomic<bool> collecting_{false};
  std::array<std::atomic<std::uint32_t>, kMostChunks> turns_{};  // how often each chunk was done
  mutable Mutex mutex_;
  std::array<Chunk, kMostChunks> chunks_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
