// SPDX-License-Identifier: Apache-2.0
// A clock that stands still until a test moves it.
#pragma once

#include <atomic>

#include "allocator/base/clock.h"

namespace commensal::testing {

/// Thread safety: any member may be called from any thread.
class FakeClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return TimePoint{Duration{now_.load()}}; }
  void advance(Duration by) noexcept { now_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> now_{std::chrono::nanoseconds{std::chrono::hours{1}}.count()};
};

}  // namespace commensal::testing
