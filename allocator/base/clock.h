// SPDX-License-Identifier: Apache-2.0
// Time as an argument: decisions ask a Clock that tests can hold still.
#pragma once

#include <chrono>
#include <string>

namespace commensal {

using Duration = std::chrono::nanoseconds;
/// Nanoseconds of CLOCK_MONOTONIC: comparable between the processes of one machine.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// Tells the time. Thread safety: `now` may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const noexcept = 0;
};

/// The machine's monotonic clock.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return std::chrono::steady_clock::now(); }

  /// Returns the one instance that the whole process may share. It is never destroyed: threads that
  /// outlive `exit`'s destructors ask for the time until the process is gone.
  [[nodiscard]] static const SteadyClock& instance() {
    static const SteadyClock& clock = *new SteadyClock;
    return clock;
  }
};

/// Returns the time since `begin`; zero if the clock was set back meanwhile.
[[nodiscard]] inline Duration elapsed(TimePoint begin, TimePoint now) noexcept {
  return now > begin ? now - begin : Duration::zero();
}

/// Returns a time in seconds.
[[nodiscard]] constexpr double in_seconds(Duration time) noexcept {
  return std::chrono::duration<double>(time).count();
}

/// Returns whole seconds for people to read: "20 s".
[[nodiscard]] inline std::string seconds_text(Duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace commensal
