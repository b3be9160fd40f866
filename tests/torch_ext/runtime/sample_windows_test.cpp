// SPDX-License-Identifier: Apache-2.0
// Windows in which a guaranteed job's ops are sampled: at most 1 % of the time, whatever happens.
#include "torch_ext/runtime/sample_windows.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace commensal::sample_windows_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

/// Counts on a clock of its own for how long a callback is on.
class SampleWindowsTest : public ::testing::Test {
 protected:
  /// Calls `advance` as often as a client does, each time late by what `lateness` says.
  void run(Duration time, const std::function<Duration()>& lateness, bool wanted = true) {
    const TimePoint end = now_ + time;
    while (now_ < end) {
      const Duration tick = std::min<Duration>(
          milliseconds{200}, std::max<Duration>(milliseconds{1}, windows_.due() - now_));
      const Duration passed = tick + lateness();
      if (windows_.is_open()) on_ += passed;
      now_ += passed;
      (void)windows_.advance(now_, wanted);
    }
  }
  [[nodiscard]] double share() const {
    return std::chrono::duration<double>(on_) / std::chrono::duration<double>(now_ - begin_);
  }

  const TimePoint begin_{std::chrono::hours{1}};
  TimePoint now_ = begin_;
  Duration on_{};
  SampleWindows windows_{begin_};
};

TEST_F(SampleWindowsTest, TheCallbackIsOnForOnePercentAtMost) {
  for (int minute = 0; minute < 60; ++minute) {
    run(minutes{1}, [] { return Duration{}; });
    ASSERT_LE(share(), 0.01) << "after " << minute << " minutes";
  }
  EXPECT_GE(share(), 0.009);
  EXPECT_EQ(windows_.total() + (windows_.is_open() ? on_ - windows_.total() : Duration{}), on_);
}

TEST_F(SampleWindowsTest, AWindowThatEndsLateIsMadeUpFor) {
  std::mt19937 dice(1);
  std::uniform_int_distribution<int> late(0, 400);
  run(minutes{60}, [&] { return milliseconds{late(dice)}; });
  EXPECT_GT(on_ / windows_.windows(), SampleWindows::kLength) << "windows do end late here";
  EXPECT_LE(share(), 0.0105) << "but for the newest one, which its rest still makes up for";
}

TEST_F(SampleWindowsTest, AProcessThatIsStoppedInAWindowRestsForLong) {
  while (!windows_.is_open()) run(milliseconds{1}, [] { return Duration{}; });
  now_ += minutes{1};
  on_ += minutes{1};
  EXPECT_FALSE(windows_.advance(now_, true));
  EXPECT_GE(windows_.due() - now_, minutes{99});
  run(minutes{99}, [] { return Duration{}; });
  EXPECT_LE(share(), 0.01);
}

TEST_F(SampleWindowsTest, WindowsComeEveryFiveSecondsOrMore) {
  TimePoint last = begin_;
  for (int i = 0; i < 10; ++i) {
    while (!windows_.advance(now_, true)) now_ += milliseconds{7};
    EXPECT_GE(now_ - last, SampleWindows::kEvery);
    last = now_;
    while (windows_.advance(now_, true)) now_ += milliseconds{7};
    EXPECT_LE(now_ - last, SampleWindows::kLength + milliseconds{7});
  }
  EXPECT_EQ(windows_.windows(), 10U);
}

TEST_F(SampleWindowsTest, AJobThatIsNotGuaranteedHasNone) {
  run(
      minutes{10}, [] { return Duration{}; }, false);
  EXPECT_EQ(windows_.windows(), 0U);
  EXPECT_EQ(on_, Duration{});
}

TEST_F(SampleWindowsTest, AWindowEndsAtOnceWhenItIsNotWantedAnyMore) {
  while (!windows_.advance(now_, true)) now_ += milliseconds{7};
  now_ += milliseconds{7};
  EXPECT_FALSE(windows_.advance(now_, false));
  EXPECT_EQ(windows_.total(), milliseconds{7});
}

TEST_F(SampleWindowsTest, AClockThatIsSetBackOpensNothing) {
  while (!windows_.advance(now_, true)) now_ += milliseconds{7};
  EXPECT_TRUE(windows_.advance(now_ - seconds{3}, true));
  EXPECT_FALSE(windows_.advance(now_ + milliseconds{60}, true));
  EXPECT_FALSE(windows_.advance(now_ - seconds{3}, true));
}

}  // namespace
}  // namespace commensal::sample_windows_test
