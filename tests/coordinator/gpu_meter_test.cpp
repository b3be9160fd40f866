// SPDX-License-Identifier: Apache-2.0
// Time for which a GPU was used, from looks at a page and from what a driver says.
#include "coordinator/node/gpu_meter.h"

#include <gtest/gtest.h>

namespace commensal::node::gpu_meter_test {
namespace {

using namespace std::chrono_literals;

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

/// A process that computes and waits in turns of a known length, and is looked at now and then. Its
/// device works on for `tail` after each wait has begun.
class GpuTimeMeterTest : public ::testing::Test {
 protected:
  void run(Duration time, Duration computes, Duration waits, Duration tail, Duration look) {
    const TimePoint begin = now_;
    for (TimePoint at = begin; at < begin + time; at += look) {
      const Duration period = computes + waits;
      const auto turns = (at - begin) / period;
      const Duration into = (at - begin) % period;
      WaitsShown shown{ended_ + turns * waits, std::nullopt, false};
      if (into >= computes) {
        shown.since = at - (into - computes);
        shown.works = into - computes < tail;
      }
      meter_.note(shown, at);
      now_ = at;
    }
  }

  TimePoint now_{1h};
  Duration ended_{};
  GpuTimeMeter meter_;
};

TEST_F(GpuTimeMeterTest, WhoNeverWaitsHasItAllTheTime) {
  EXPECT_FALSE(meter_.began());
  run(10s, 40ms, 0ms, 0ms, 20ms);
  EXPECT_TRUE(meter_.began());
  EXPECT_NEAR(seconds(meter_.busy()), 10.0, 0.03);
}

TEST_F(GpuTimeMeterTest, WaitsAreNoUse) {
  run(10s, 30ms, 10ms, 0ms, 7ms);
  EXPECT_NEAR(seconds(meter_.busy()), 7.5, 0.05);
}

TEST_F(GpuTimeMeterTest, WaitsBetweenTwoLooksCountExactly) {
  run(10s, 3ms, 1ms, 0ms, 1s);
  EXPECT_NEAR(seconds(meter_.busy()), 0.75 * 9.0, 0.01) << "from the first look to the last";
}

TEST_F(GpuTimeMeterTest, WorkThatIsLeftWhenAWaitBeginsIsUse) {
  run(20s, 20ms, 20ms, 10ms, 7ms);
  EXPECT_NEAR(seconds(meter_.busy()), 15.0, 0.4) << "20 ms, and 10 of 20 that it waits";
}

TEST_F(GpuTimeMeterTest, WithoutMarksTheSameWorkIsNotSeen) {
  run(20s, 20ms, 20ms, 0ms, 7ms);
  EXPECT_NEAR(seconds(meter_.busy()), 10.0, 0.1) << "what the device did meanwhile shows nowhere";
}

TEST_F(GpuTimeMeterTest, HowMuchIsLeftIsThatOfLate) {
  run(30s, 20ms, 20ms, 20ms, 7ms);
  ended_ = 15s;
  const Duration before = meter_.busy();
  run(30s, 20ms, 20ms, 0ms, 7ms);
  const Duration first = meter_.busy() - before;
  EXPECT_LT(seconds(first), 18.0) << "soon it goes by the new ones";
  EXPECT_GE(seconds(first), 14.5);
}

TEST_F(GpuTimeMeterTest, AWaitThatWasNoneTakesNothingBack) {
  meter_.note({}, now_);
  meter_.note({0s, now_ + 1s, false}, now_ + 3s);
  meter_.note({0s, std::nullopt, false}, now_ + 4s);  // it never ended: it had been concluded
  EXPECT_EQ(meter_.busy(), 2s);
  meter_.note({0s, std::nullopt, false}, now_ + 3s);  // a look of before
  EXPECT_EQ(meter_.busy(), 2s);
}

TEST(DriverBusyShareTest, IsTheMeanOfLate) {
  DriverBusyShare share(10s);
  EXPECT_FALSE(share.mean(TimePoint{1h}));
  share.note(1.0, TimePoint{1h});
  share.note(0.5, TimePoint{1h + 5s});
  share.note(0.0, TimePoint{1h + 6s});
  EXPECT_DOUBLE_EQ(share.mean(TimePoint{1h + 6s}).value_or(-1), 0.5);
  EXPECT_DOUBLE_EQ(share.mean(TimePoint{1h + 15s}).value_or(-1), 0.25);
  EXPECT_FALSE(share.mean(TimePoint{1h + 17s})) << "it has stopped to tell";
}

TEST(DriverBusyShareTest, MoreThanAllIsAll) {
  DriverBusyShare share(10s);
  share.note(1.7, TimePoint{1h});
  EXPECT_DOUBLE_EQ(share.mean(TimePoint{1h}).value_or(-1), 1.0);
}

}  // namespace
}  // namespace commensal::node::gpu_meter_test
