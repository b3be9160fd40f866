// SPDX-License-Identifier: Apache-2.0
// How much time counts as passed when the wall clock is set, and when the machine sleeps or starts.
#include "coordinator/cluster/counted_time.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace commensal::cluster::counted_time_test {
namespace {

using namespace std::chrono_literals;
using std::chrono::days;
using std::chrono::milliseconds;

constexpr WallTime kBegin{days{20'000}};

/// A machine's clocks as a test moves them; looked at after each move.
class CountedTimeTest : public ::testing::Test {
 protected:
  CountedTimeTest() { look(); }
  bool look() { return time_.look(clocks_); }
  /// Time passes, whether the machine sleeps or not.
  void pass(milliseconds time) {
    clocks_.wall += time;
    clocks_.since_boot += time;
    EXPECT_FALSE(look());
  }
  void set_clock_by(milliseconds jump) {
    clocks_.wall += jump;
    EXPECT_TRUE(look());
  }
  void start_machine_again(milliseconds off) {
    clocks_ = {clocks_.wall + off, 20s, clocks_.boot + "x"};
    EXPECT_TRUE(look());
  }

  ClockReading clocks_{kBegin, 5h, "boot"};
  CountedTime time_;
};

TEST_F(CountedTimeTest, TimeThatBothClocksShowCounts) {
  EXPECT_EQ(time_.counted(), 0ms);
  pass(days{3});
  pass(days{4});
  EXPECT_EQ(time_.counted(), days{7});
  EXPECT_EQ(time_.now(), kBegin + days{7});
  EXPECT_EQ(time_.since(kBegin), days{7});
  EXPECT_EQ(time_.since(kBegin + days{2}), days{5});
  EXPECT_EQ(time_.since(kBegin + days{9}), 0ms) << "from the future";
}

TEST_F(CountedTimeTest, BeforeTheFirstLookTheWallClockCounts) {
  pass(days{1});
  EXPECT_EQ(time_.since(kBegin - days{30}), days{31});
}

TEST_F(CountedTimeTest, AClockThatIsAheadForAMomentAgesNothing) {
  pass(days{10});
  set_clock_by(days{100});
  EXPECT_EQ(time_.since(kBegin), days{10});
  pass(4s);
  set_clock_by(-days{100});
  EXPECT_EQ(time_.since(kBegin), days{10} + 4s);
  pass(days{5});
  EXPECT_EQ(time_.since(kBegin), days{15} + 4s);
  EXPECT_EQ(time_.since(kBegin + days{12}), days{3} + 4s) << "written since it is right again";
}

TEST_F(CountedTimeTest, AClockThatIsSetAheadForGoodAgesNothing) {
  pass(days{10});
  set_clock_by(days{100});
  pass(days{5});
  EXPECT_EQ(time_.since(kBegin), days{15});
  EXPECT_EQ(time_.since(kBegin + days{112}), days{3}) << "written by the new time";
  EXPECT_EQ(time_.since(kBegin + days{50}), days{5}) << "by neither";
}

TEST_F(CountedTimeTest, AClockThatIsSetBackAgesNothing) {
  pass(days{50});
  set_clock_by(-days{30});
  pass(days{1});
  EXPECT_EQ(time_.since(kBegin), days{51});
  EXPECT_EQ(time_.since(kBegin + days{20}), days{1}) << "written before or after it was set";
  EXPECT_EQ(time_.since(kBegin + days{49}), days{2}) << "it can only be from before";
}

TEST_F(CountedTimeTest, AClockThatWasWrongAtTheFirstLookAgesNothingOnceItIsRight) {
  pass(4s);
  set_clock_by(-days{100});
  pass(days{1});
  EXPECT_EQ(time_.since(kBegin - days{101}), days{2} + 4s);
}

TEST_F(CountedTimeTest, TimeWhileTheMachineWasOffDoesNotCount) {
  pass(days{10});
  start_machine_again(days{100});
  pass(days{1});
  EXPECT_EQ(time_.since(kBegin), days{11});
  EXPECT_EQ(time_.counted(), days{11});
}

TEST_F(CountedTimeTest, AMachineThatStartsWithAWrongClockAgesNothing) {
  pass(days{10});
  start_machine_again(-days{9000});  // no battery
  pass(10s);
  set_clock_by(days{9000});
  pass(days{1});
  EXPECT_EQ(time_.since(kBegin), days{11} + 10s);
}

TEST_F(CountedTimeTest, SmallCorrectionsOfTheClockAreNoJump) {
  for (int i = 0; i < 50; ++i) {
    clocks_.wall += i % 2 == 0 ? 900ms : -900ms;
    pass(days{1});
  }
  EXPECT_EQ(time_.since(kBegin), days{50});
}

TEST_F(CountedTimeTest, SmallJumpsDoNotAddUp) {
  for (int i = 0; i < 200; ++i) {
    clocks_.wall += 50s;
    clocks_.since_boot += 1s;
    (void)look();
  }
  EXPECT_LE(time_.since(kBegin), 200s + 1min);
}

TEST_F(CountedTimeTest, AMachineClockThatGoesBackIsAnotherStart) {
  pass(days{10});
  clocks_.since_boot = 1s;  // as in a container that was started again
  EXPECT_TRUE(look());
  pass(1h);
  EXPECT_EQ(time_.since(kBegin), days{10} + 1h);
}

TEST_F(CountedTimeTest, ItGoesOnWithWhatItWroteDown) {
  pass(days{10});
  set_clock_by(days{100});
  pass(days{2});
  const std::string text = time_.text();
  time_ = CountedTime{text};
  EXPECT_EQ(time_.text(), text);
  pass(days{3});
  EXPECT_EQ(time_.since(kBegin), days{15});
  set_clock_by(-days{100});
}

TEST_F(CountedTimeTest, WhatCannotBeReadIsAsNothing) {
  for (const char* text : {"", "x", "boot", "boot x", "boot 5\nx"}) {
    CountedTime none{text};
    EXPECT_EQ(none.counted(), 0ms) << text;
    EXPECT_EQ(none.since(kBegin), 0ms) << text;
    EXPECT_TRUE(none.look(clocks_)) << text;
  }
}

TEST_F(CountedTimeTest, OldJumpsAreForgottenOnceTheyDoNotMatter) {
  for (int i = 0; i < 100; ++i) {
    pass(days{1});
    start_machine_again(days{2});
  }
  const std::string before = time_.text();
  const milliseconds old = time_.since(kBegin);
  time_.forget_before(days{30});
  EXPECT_LT(time_.text().size(), before.size() / 2);
  EXPECT_EQ(old, days{100});
  EXPECT_GE(time_.since(kBegin), days{30});
  EXPECT_EQ(time_.since(clocks_.wall), 0ms);
}

TEST(ReadClocksTest, ReadsThoseOfTheMachine) {
  const ClockReading now = read_clocks();
  EXPECT_GT(now.since_boot, 0ms);
  EXPECT_FALSE(now.boot.empty());
  EXPECT_GE(read_clocks().since_boot, now.since_boot);
  EXPECT_EQ(read_clocks().boot, now.boot);
}

TEST(ReadClocksTest, SaysSoIfItCannot) {
  EXPECT_THROW((void)read_clocks("/proc/self"), std::runtime_error);
}

}  // namespace
}  // namespace commensal::cluster::counted_time_test
