// SPDX-License-Identifier: Apache-2.0
// What a device says about the time that ops take on it: by thread, and by work that it completed.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>

#include "allocator/base/clock.h"

namespace commensal {

/// Tells for how long the calling thread has been on the device: on a CPU, on a core. What a thread
/// waits for (a lock, another thread's op, a core) does not count. Of an op that several threads of
/// a pool work on it tells the time of the one that called it, which works as long as the others.
///
/// Thread safety: any member may be called from any thread.
class ThreadTime {
 public:
  virtual ~ThreadTime() = default;
  /// A total; only differences between two calls of one thread mean something.
  [[nodiscard]] virtual Duration total() const noexcept = 0;
};

/// The kernel's CLOCK_THREAD_CPUTIME_ID. Asking takes some 200 ns.
class CpuThreadTime final : public ThreadTime {
 public:
  [[nodiscard]] Duration total() const noexcept override {
    timespec time{};
    if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return {};
    return std::chrono::seconds{time.tv_sec} + Duration{time.tv_nsec};
  }
  [[nodiscard]] static const CpuThreadTime& instance() {
    static const CpuThreadTime& time = *new CpuThreadTime;
    return time;
  }
};

/// A device's clock of completed work. On a device with queues an op returns when its work was
/// issued, and a marker behind it tells when it was done (on a GPU: an event).
///
/// Thread safety: any member may be called from any thread; no lock is held meanwhile.
class WorkClock {
 public:
  /// Names a point in what was issued; 0: none.
  using Marker = std::uint64_t;

  virtual ~WorkClock() = default;
  /// Whether what an op issued is done when it returns: then nothing below is called.
  [[nodiscard]] virtual bool done_on_return() const noexcept = 0;
  /// Called before the calling thread issues the first of what the next marker is for: a clock that
  /// cannot tell work from pauses measures from here.
  virtual void begin() noexcept {}
  /// Puts a marker behind what the calling thread has issued. @return 0 if it cannot.
  [[nodiscard]] virtual Marker mark() noexcept = 0;
  /// If the device has passed a marker: for how long it worked on what lies between that and the
  /// marker before it in the same queue, or the beginning. Not called again for a marker that was
  /// passed.
  [[nodiscard]] virtual std::optional<Duration> passed(Marker marker) noexcept = 0;
};

/// A CPU's: an op that returned is done.
class HostWorkClock final : public WorkClock {
 public:
  [[nodiscard]] bool done_on_return() const noexcept override { return true; }
  [[nodiscard]] Marker mark() noexcept override { return 0; }
  [[nodiscard]] std::optional<Duration> passed(Marker) noexcept override { return Duration{}; }
  [[nodiscard]] static HostWorkClock& instance() {
    static HostWorkClock& clock = *new HostWorkClock;
    return clock;
  }
};

/// What a device says about time. Nothing is owned.
struct DeviceTime {
  const ThreadTime* threads = nullptr;  ///< null: ops are taken to run until they return
  WorkClock* work = nullptr;            ///< null: as HostWorkClock
  WorkClock* later = nullptr;           ///< of a device that may take over: `Gate::go_by_work`
  /// A CPU's. A clock that is not the machine's has no thread times that go with it.
  [[nodiscard]] static DeviceTime of_cpu(const Clock& clock) noexcept {
    const bool real = &clock == &SteadyClock::instance();
    return {real ? &CpuThreadTime::instance() : nullptr, &HostWorkClock::instance(), nullptr};
  }
};

}  // namespace commensal
