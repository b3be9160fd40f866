// SPDX-License-Identifier: Apache-2.0
// A queue of work with a thread that does it, in order, taking the time that it would take.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/base/mutex.h"

namespace commensal::simulated_cuda {

class Stream;
using Clock = std::chrono::steady_clock;

/// One piece of work in a stream; the default one is done.
struct Ticket {
  std::shared_ptr<Stream> stream;
  std::uint64_t number = 0;

  [[nodiscard]] bool done() const;
  void wait() const;
};

/// What a piece of work knows while it runs.
class Execution {
 public:
  Execution(Clock::time_point begin, int device) : end_(begin), device_(device) {}

  /// Takes this much of the device's time, counted from the end of what was taken before.
  void spend(std::chrono::nanoseconds time);
  [[nodiscard]] Clock::time_point end() const { return end_; }
  [[nodiscard]] int device() const { return device_; }

 private:
  Clock::time_point end_;
  int device_;
};

using Body = std::function<CUresult(Execution&)>;

/// Stops and lets go the work of all streams of the process (for tests).
class Brake {
 public:
  void hold();
  void let_go();
  /// Waits while the brake is on.
  void pass();

 private:
  Mutex mutex_;
  std::condition_variable_any changed_;
  bool on_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

/// The multiprocessors of a green context, as its streams know them.
struct GreenPart {
  explicit GreenPart(unsigned count) : multiprocessors(count) {}
  const unsigned multiprocessors;
  std::atomic<bool> gone{false};  ///< the green context was destroyed
};

/// The error that ended all work: once set, it stays, and no more work is done.
using Fate = std::atomic<CUresult>;

/// A stream's queue. Its thread starts with the first work and ends after `close` when all is
/// done. Any member may be called from any thread.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  /// @param part  of the device, on which its kernels run; null: all of it.
  Stream(int device, unsigned flags, int priority, Brake& brake, Fate& fate,
         std::shared_ptr<GreenPart> part = nullptr);

  /// Adds work that begins when the stream's earlier work and everything in `after` is done.
  Ticket push(std::vector<Ticket> after, Body body);

  /// The work that was added last.
  [[nodiscard]] Ticket last();

  /// Lets the thread end when all work is done.
  void close();

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] unsigned flags() const { return flags_; }
  [[nodiscard]] int priority() const { return priority_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] const std::shared_ptr<GreenPart>& part() const { return part_; }
  /// Whether the legacy default stream waits for this one and this one for it.
  [[nodiscard]] bool blocking() const { return (flags_ & CU_STREAM_NON_BLOCKING) == 0; }

 private:
  friend struct Ticket;
  struct Work {
    std::vector<Ticket> after;
    Body body;
  };

  void work();
  bool next(Work* work);
  void finish();

  const int device_;
  const unsigned flags_;
  const int priority_;
  const std::uint64_t id_;
  const std::shared_ptr<GreenPart> part_;
  Brake& brake_;
  Fate& fate_;
  Clock::time_point free_from_{};  // of the worker alone: when the device is done with the last
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Work> queue_ COMMENSAL_GUARDED_BY(mutex_);
  std::uint64_t pushed_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  std::uint64_t done_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  bool started_ COMMENSAL_GUARDED_BY(mutex_) = false;
  bool closed_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

/// Whether the calling thread is a stream's worker (in a host function or kernel body).
[[nodiscard]] bool in_stream_worker() noexcept;

}  // namespace commensal::simulated_cuda
