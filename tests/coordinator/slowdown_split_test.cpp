// SPDX-License-Identifier: Apache-2.0
// What a slowdown is made of (C16): a cause that is put into the figures comes out as that part.
#include "coordinator/node/slowdown_split.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace commensal::node::slowdown_split_test {
namespace {

using namespace std::chrono_literals;

/// A job whose step alone runs 60 ms and waits 40 ms.
constexpr TimeUse kAlone{100s, 60s, 0s, 0s};

double sum(const SlowdownParts& parts) {
  return parts.memory + parts.scheduling + parts.io + parts.unknown;
}

TEST(SlowdownSplit, C16_WaitingForACoreIsScheduling) {
  const auto parts = split_slowdown(0.2, kAlone, {120s, 60s, 20s, 0s});
  ASSERT_TRUE(parts);
  EXPECT_NEAR(parts->scheduling, 0.2, 1e-9);
  EXPECT_NEAR(parts->memory, 0.0, 1e-9);
  EXPECT_NEAR(parts->unknown, 0.0, 1e-9);
}

TEST(SlowdownSplit, C16_TheSameWorkForLongerOnACoreIsMemory) {
  const auto parts = split_slowdown(0.1, kAlone, {110s, 70s, 0s, 0s});
  EXPECT_NEAR(parts->memory, 0.1, 1e-9);
  EXPECT_NEAR(parts->scheduling, 0.0, 1e-9);
}

TEST(SlowdownSplit, C16_BlockedWhileTheMachineStallsOnIoIsIo) {
  const auto parts = split_slowdown(0.1, kAlone, {110s, 60s, 0s, 8s});
  EXPECT_NEAR(parts->io, 0.08, 1e-9);
  EXPECT_NEAR(parts->unknown, 0.02, 1e-9);
}

TEST(SlowdownSplit, IoThatStallsOthersIsNotThisJobs) {
  const auto parts = split_slowdown(0.1, kAlone, {110s, 70s, 0s, 50s});
  EXPECT_NEAR(parts->io, 0.0, 1e-9) << "it was not blocked for longer";
}

TEST(SlowdownSplit, PartsAddUpToTheSlowdown) {
  for (const double slowdown : {-0.05, 0.0, 0.01, 0.5, 3.0}) {
    const auto parts = split_slowdown(slowdown, {90s, 31s, 7s, 3s}, {17s, 4s, 5s, 9s});
    ASSERT_TRUE(parts);
    EXPECT_NEAR(sum(*parts), slowdown, 1e-9);
  }
}

TEST(SlowdownSplit, NothingIsSaidWithoutBothStretches) {
  EXPECT_FALSE(split_slowdown(0.1, {}, kAlone));
  EXPECT_FALSE(split_slowdown(0.1, kAlone, {}));
}

TEST(TimeUseHistory, KeepsQuietAndSharedTimeApart) {
  TimeUseHistory history;
  TimePoint now{1h};
  CpuMeter::Totals totals;
  const auto pass = [&](bool quiet, Duration run, Duration delayed) {
    history.note(now, totals, 0s, quiet);
    now += 1s;
    totals.main_run += run;
    totals.main_delayed += delayed;
    history.note(now, totals, 0s, quiet);
  };
  for (int i = 0; i < 40; ++i) {
    pass(true, 600ms, 0ms);
    pass(false, 500ms, 300ms);
  }
  const TimeUse& quiet = history.quiet();
  const TimeUse& shared = history.shared();
  EXPECT_NEAR(static_cast<double>(quiet.run.count()) / static_cast<double>(quiet.wall.count()), 0.6,
              1e-6);
  EXPECT_NEAR(
      static_cast<double>(shared.delayed.count()) / static_cast<double>(shared.wall.count()), 0.3,
      1e-6);
  EXPECT_EQ(quiet.delayed, 0s);
}

TEST(TimeUseHistory, OldTimeCountsLess) {
  TimeUseHistory history;
  TimePoint now{1h};
  CpuMeter::Totals totals;
  for (int i = 0; i < 600; ++i) {
    history.note(now, totals, 0s, true);
    now += 1s;
    totals.main_run += i < 300 ? 1s : 0s;
  }
  history.note(now, totals, 0s, true);
  EXPECT_LT(history.quiet().run, 5s) << "the job has changed";
  EXPECT_GT(history.quiet().wall, 60s);
}

TEST(IoStalled, IsReadWhereTheKernelTells) {
  std::string pattern = (std::filesystem::temp_directory_path() / "commensal-psi-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  HostRoots roots;
  roots.proc = pattern;
  EXPECT_FALSE(read_io_stalled(roots));
  std::filesystem::create_directories(roots.proc / "pressure");
  std::ofstream{roots.proc / "pressure" / "io"}
      << "some avg10=0.02 avg60=0.24 avg300=1.95 total=31461486\n"
         "full avg10=0.00 avg60=0.09 avg300=0.64 total=15204810\n";
  EXPECT_EQ(read_io_stalled(roots), 31461486us);
  std::ofstream{roots.proc / "pressure" / "io"} << "some total=?\n";
  EXPECT_FALSE(read_io_stalled(roots));
  std::filesystem::remove_all(roots.proc);
}

}  // namespace
}  // namespace commensal::node::slowdown_split_test
