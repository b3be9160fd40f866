// SPDX-License-Identifier: Apache-2.0
// When a job counts as idle: whatever is counted, and time used by what is not.
#include "torch_ext/runtime/idle_watch.h"

#include <gtest/gtest.h>

namespace commensal::idle_watch_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class IdleWatchTest : public ::testing::Test {
 protected:
  /// Looks every 200 ms for a while, with a share of one core used meanwhile.
  Duration idle_after(Duration time, double share) {
    TimePoint since;
    for (Duration passed{}; passed < time; passed += milliseconds{200}) {
      now_ += milliseconds{200};
      signs_.cpu += Duration{static_cast<Duration::rep>(2e8 * share)};
      since = watch_.look(signs_, now_);
    }
    return now_ - since;
  }

  IdleWatch watch_;
  SignsOfWork signs_;
  TimePoint now_{seconds{1000}};
};

TEST_F(IdleWatchTest, NothingHappensThatIsIdle) {
  EXPECT_EQ(watch_.look(signs_, now_), now_) << "the first look is where it begins";
  EXPECT_EQ(idle_after(seconds{60}, 0.0), seconds{60});
}

TEST_F(IdleWatchTest, WhatIsCountedIsWork) {
  (void)watch_.look(signs_, now_);
  EXPECT_EQ(idle_after(seconds{10}, 0.0), seconds{10});
  ++signs_.counted;
  EXPECT_EQ(watch_.look(signs_, now_), now_);
}

TEST_F(IdleWatchTest, AnOpThatIsNotCountedShowsByItsTime) {
  (void)watch_.look(signs_, now_);
  EXPECT_LE(idle_after(seconds{10}, 1.0), IdleWatch::kWindow);
  EXPECT_LE(idle_after(seconds{10}, 0.06), IdleWatch::kWindow);
}

TEST_F(IdleWatchTest, AnInterpretersHeartbeatsAreNoWork) {
  (void)watch_.look(signs_, now_);
  EXPECT_EQ(idle_after(seconds{60}, 0.02), seconds{60});
}

TEST_F(IdleWatchTest, AShortBurstOfTimeAfterALongRestIsWork) {
  (void)watch_.look(signs_, now_);
  EXPECT_EQ(idle_after(seconds{3600}, 0.0), seconds{3600});
  EXPECT_LE(idle_after(seconds{2}, 0.5), IdleWatch::kWindow);
}

TEST_F(IdleWatchTest, StartsOverWhenItIsTold) {
  (void)watch_.look(signs_, now_);
  (void)idle_after(seconds{10}, 0.0);
  watch_.start_over(now_);
  EXPECT_EQ(watch_.look(signs_, now_), now_);
  EXPECT_EQ(idle_after(seconds{4}, 0.0), seconds{4});
}

}  // namespace
}  // namespace commensal::idle_watch_test
