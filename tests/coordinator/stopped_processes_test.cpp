// SPDX-License-Identifier: Apache-2.0
// Processes that are stopped from outside go on, whatever becomes of who stopped them.
#include "coordinator/node/stopped_processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "coordinator/node/process_use.h"

namespace commensal::node::stopped_processes_test {
namespace {

class StoppedProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "commensal-stop-XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    child_ = fork();
    if (child_ == 0) {
      for (;;) pause();
    }
    ASSERT_GT(child_, 0);
    pidfd_ = wire::open_pidfd(child_);
  }
  void TearDown() override {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  [[nodiscard]] std::filesystem::path file() const { return folder_ / "default.stopped"; }
  /// Waits for the kernel to say so.
  [[nodiscard]] bool changes_to(int what) const {
    int status = 0;
    return waitpid(child_, &status, what) == child_ &&
           (what == WUNTRACED ? WIFSTOPPED(status) : WIFCONTINUED(status));
  }

  std::filesystem::path folder_;
  pid_t child_ = -1;
  wire::UniqueFd pidfd_;
};

TEST_F(StoppedProcessesTest, AProcessIsStoppedAndGoesOn) {
  StoppedProcesses stopped{file()};
  EXPECT_EQ(stopped.stop(child_, pidfd_.get()), "");
  EXPECT_TRUE(changes_to(WUNTRACED));
  EXPECT_EQ(read_standstill(child_), "stopped");
  EXPECT_EQ(stopped.go_on(child_, pidfd_.get()), "");
  EXPECT_TRUE(changes_to(WCONTINUED));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(StoppedProcessesTest, AllGoOnAtItsEnd) {
  {
    StoppedProcesses stopped{file()};
    EXPECT_EQ(stopped.stop(child_, pidfd_.get()), "");
    EXPECT_TRUE(changes_to(WUNTRACED));
  }
  EXPECT_TRUE(changes_to(WCONTINUED));
}

TEST_F(StoppedProcessesTest, WhatAKilledCoordinatorLeftStoppedGoesOnWithTheNext) {
  ASSERT_EQ(kill(child_, SIGSTOP), 0);
  ASSERT_TRUE(changes_to(WUNTRACED));
  std::ofstream{file()} << getpid() << " 1\n" << child_ << ' ' << read_start_ticks(child_) << '\n';
  const StoppedProcesses next{file()};
  EXPECT_TRUE(changes_to(WCONTINUED));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(StoppedProcessesTest, NobodyIsStoppedWhoCannotStandInTheFile) {
  StoppedProcesses stopped{folder_ / "missing" / "default.stopped"};
  EXPECT_NE(stopped.stop(child_, pidfd_.get()), "");
  EXPECT_EQ(read_standstill(child_), "");
}

}  // namespace
}  // namespace commensal::node::stopped_processes_test
