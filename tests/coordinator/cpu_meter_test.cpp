// SPDX-License-Identifier: Apache-2.0
// Time on cores, from files as the kernel writes them, and on this machine.
#include "coordinator/node/cpu_meter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace commensal::node::cpu_meter_test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class ThreadTimesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "commensal-cpu-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    roots_.proc = pattern;
  }
  void TearDown() override { fs::remove_all(roots_.proc); }
  void thread(const std::string& tid, const std::string& schedstat) const {
    const fs::path folder = roots_.proc / "7" / "task" / tid;
    fs::create_directories(folder);
    std::ofstream{folder / "schedstat"} << schedstat;
  }
  HostRoots roots_;
};

TEST_F(ThreadTimesTest, ReadsEachThread) {
  thread("7", "5000000 250 12\n");
  thread("8", "7 0 1\n");
  EXPECT_EQ(read_thread_times(7, roots_), (ThreadTimes{{7, {5ms, 250ns}}, {8, {7ns, 0ns}}}));
}

TEST_F(ThreadTimesTest, LeavesOutWhatCannotBeRead) {
  EXPECT_FALSE(read_thread_times(7, roots_));
  thread("8", "");
  thread("9", "many few\n");
  thread("10", "-1 0 0\n");
  EXPECT_FALSE(read_thread_times(7, roots_)) << "nothing is not the same as no time";
  thread("7", "1 2 3\n");
  EXPECT_EQ(read_thread_times(7, roots_)->size(), 1U);
}

TEST(CpuMeter, CountsFromTheFirstLookOn) {
  CpuMeter meter;
  meter.note({{7, {10s, 1s}}, {8, {5s, 0s}}}, 7);
  EXPECT_EQ(meter.totals(), CpuMeter::Totals{});
  meter.note({{7, {11s, 3s}}, {8, {5s + 500ms, 0s}}}, 7);
  EXPECT_EQ(meter.totals(), (CpuMeter::Totals{1500ms, 2s, 1s, 2s}));
}

TEST(CpuMeter, KeepsWhatEndedThreadsUsedAndTakesNewOnesWhole) {
  CpuMeter meter;
  meter.note({{7, {0s, 0s}}, {8, {0s, 0s}}}, 7);
  meter.note({{7, {0s, 0s}}, {8, {4s, 0s}}}, 7);
  meter.note({{7, {0s, 0s}}, {9, {1s, 1s}}}, 7);
  EXPECT_EQ(meter.totals().run, 5s);
  EXPECT_EQ(meter.totals().delayed, 1s);
}

TEST(CpuMeter, AnIdThatIsUsedAgainIsANewThread) {
  CpuMeter meter;
  meter.note({{7, {0s, 0s}}, {8, {4s, 0s}}}, 7);
  meter.note({{7, {0s, 0s}}, {8, {1s, 0s}}}, 7);
  EXPECT_EQ(meter.totals().run, 1s);
}

TEST(CpuMeter, SeesAThreadThatComputes) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) {
    }
  });
  CpuMeter meter;
  const auto first = read_thread_times(getpid());
  ASSERT_TRUE(first);
  meter.note(*first, getpid());
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (meter.totals().run < 20ms && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(5ms);
    meter.note(read_thread_times(getpid()).value_or(ThreadTimes{}), getpid());
  }
  stop.store(true);
  busy.join();
  EXPECT_GE(meter.totals().run, 20ms);
  EXPECT_LT(meter.totals().main_run, meter.totals().run);
}

}  // namespace
}  // namespace commensal::node::cpu_meter_test
