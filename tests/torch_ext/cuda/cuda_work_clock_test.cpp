// SPDX-License-Identifier: Apache-2.0
// Work of a GPU by events in its streams, on a runtime whose streams go on when a test says so.
#include "torch_ext/cuda/cuda_work_clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/torch_ext/cuda/fake_cuda_calls.h"

namespace commensal::cuda_work_clock_test {
namespace {

using namespace std::chrono_literals;

bool g_capturing = false;

class CudaWorkClockTest : public ::testing::Test {
 protected:
  CudaWorkClockTest() {
    g_capturing = false;
    clock_.watch(0);
  }
  /// The device comes past all that is in the current stream, so much later.
  void work(Duration time) {
    calls_.time += time;
    calls_.pass(calls_.stream);
  }
  FakeCudaCalls calls_;
  CudaWorkClock clock_{calls_, [] { return g_capturing; }};
};

TEST_F(CudaWorkClockTest, TellsHowLongTheDeviceWorkedBetweenTwoMarks) {
  EXPECT_FALSE(clock_.done_on_return());
  EXPECT_EQ(clock_.mark(), 0U) << "the first of a thread has nothing before it";
  work(1ms);
  const WorkClock::Marker marker = clock_.mark();
  ASSERT_NE(marker, 0U);
  EXPECT_EQ(clock_.passed(marker), std::nullopt);
  work(300us);
  EXPECT_EQ(clock_.passed(marker), 300us);
}

TEST_F(CudaWorkClockTest, WhatLiesBeforeTheFirstMarkOfAChunkIsNotCounted) {
  clock_.begin();
  work(10us);
  const auto first = clock_.mark();
  work(20us);
  work(100ms);  // a pause
  clock_.begin();
  work(0us);
  const auto second = clock_.mark();
  work(30us);
  EXPECT_EQ(clock_.passed(first), 20us);
  EXPECT_EQ(clock_.passed(second), 30us);
}

TEST_F(CudaWorkClockTest, EventsAreUsedAgain) {
  for (int i = 0; i < 100; ++i) {
    clock_.begin();
    work(1us);
    const auto marker = clock_.mark();
    work(1us);
    EXPECT_TRUE(clock_.passed(marker));
  }
  EXPECT_LE(clock_.events(), 4U);
}

TEST_F(CudaWorkClockTest, NothingIsAskedOfTheRuntimeDuringACapture) {
  (void)clock_.mark();
  const auto marker = clock_.mark();
  work(1us);
  g_capturing = true;
  const int before = calls_.calls;
  EXPECT_EQ(clock_.mark(), 0U);
  EXPECT_EQ(clock_.passed(marker), std::nullopt);
  EXPECT_EQ(calls_.calls, before);
  g_capturing = false;
  EXPECT_TRUE(clock_.passed(marker));
}

TEST_F(CudaWorkClockTest, NothingIsAskedBeforeADeviceIsWatched) {
  CudaWorkClock idle{calls_, [] { return false; }};
  EXPECT_EQ(idle.mark(), 0U);
  EXPECT_EQ(idle.mark(), 0U);
  EXPECT_EQ(calls_.calls, 0);
}

TEST_F(CudaWorkClockTest, WorkOnAnotherDeviceIsNotMarked) {
  (void)clock_.mark();
  calls_.device = 1;
  EXPECT_EQ(clock_.mark(), 0U);
  calls_.device = 0;
  EXPECT_NE(clock_.mark(), 0U);
}

TEST_F(CudaWorkClockTest, WorkOfEachDeviceThatIsWatchedIsMeasuredByItsOwnEvents) {
  clock_.watch(1);
  (void)clock_.mark();
  calls_.device = 1;
  EXPECT_EQ(clock_.mark(), 0U) << "no time lies between events of two devices";
  work(2ms);
  const auto second = clock_.mark();
  work(300us);
  EXPECT_EQ(clock_.passed(second), 300us);
  calls_.device = 2;
  EXPECT_EQ(clock_.mark(), 0U) << "not watched";
  calls_.device = 0;
  EXPECT_EQ(clock_.mark(), 0U);
  work(2ms);
  const auto first = clock_.mark();
  work(70us);
  EXPECT_EQ(clock_.passed(first), 70us);
}

TEST_F(CudaWorkClockTest, ARuntimeThatFailsMeasuresNothingAndHoldsNobodyUp) {
  (void)clock_.mark();
  calls_.broken = true;
  EXPECT_EQ(clock_.mark(), 0U);
  calls_.broken = false;
  EXPECT_EQ(clock_.passed(77), 1ns) << "no such mark: whoever asks gets on";
}

TEST_F(CudaWorkClockTest, EachThreadHasMarksOfItsOwn) {
  (void)clock_.mark();
  std::thread other([&] { EXPECT_EQ(clock_.mark(), 0U); });
  other.join();
  work(5us);
  const auto marker = clock_.mark();
  work(7us);
  EXPECT_EQ(clock_.passed(marker), 7us);
}

TEST_F(CudaWorkClockTest, AnotherClockDoesNotTakeThisOnesMarks) {
  (void)clock_.mark();
  CudaWorkClock second{calls_, [] { return false; }};
  second.watch(0);
  EXPECT_EQ(second.mark(), 0U);
  EXPECT_NE(second.mark(), 0U);
}

}  // namespace
}  // namespace commensal::cuda_work_clock_test
