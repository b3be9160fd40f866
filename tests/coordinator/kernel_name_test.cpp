// SPDX-License-Identifier: Apache-2.0
// A coordinator's name in the kernel: one for an account, found from any environment, and nobody
// else's word is taken.
#include "coordinator/wire/kernel_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

namespace commensal::wire::kernel_name_test {
namespace {

namespace fs = std::filesystem;
using ::testing::StartsWith;

/// Tests have an instance of their own: the names are the machine's.
class KernelNameTest : public ::testing::Test {
 protected:
  KernelNameTest() { setenv("XDG_RUNTIME_DIR", "/run/login", 1); }
  ~KernelNameTest() override { unsetenv("XDG_RUNTIME_DIR"); }

  std::string instance_ = "test-" + std::to_string(getpid());
  std::string user_ = std::to_string(geteuid());
  fs::path tmp_ = "/tmp/commensal-" + user_;
};

/// Answers on a thread, as a coordinator's loop does.
class Answering {
 public:
  Answering(KernelName& name, fs::path folder)
      : thread_([this, &name, folder = std::move(folder)] {
          while (!done_.load()) {
            pollfd item{name.descriptor(), POLLIN, 0};
            if (poll(&item, 1, 10) > 0) (void)name.tell(folder);
          }
        }) {}
  ~Answering() {
    done_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

TEST_F(KernelNameTest, TheFoldersOfAnAccountMeanOneCoordinator) {
  const std::string name = "commensald-" + user_ + "-n";
  EXPECT_EQ(account_folders().front(), "/run/login/commensal");
  for (const fs::path& folder : account_folders()) EXPECT_EQ(kernel_name(folder, "n"), name);
  EXPECT_EQ(kernel_name("/tmp/../run/login//commensal/", "n"), name);
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(kernel_name(tmp_, "n"), name);
  EXPECT_NE(kernel_name("/run/login/commensal", "n"), name) << "chosen, for all that is known";
}

TEST_F(KernelNameTest, AFolderThatWasChosenHasANameOfItsOwn) {
  const std::string one = kernel_name("/x/run", "n");
  EXPECT_THAT(one, StartsWith("commensald-" + user_ + "-n-"));
  EXPECT_EQ(one, kernel_name("/x/../x/run/", "n"));
  EXPECT_NE(one, kernel_name("/y/run", "n"));
  EXPECT_LE(kernel_name("/x", std::string(64, 'i')).size(), 107U);
}

TEST_F(KernelNameTest, AfterALoginsEndTheAccountHasAnotherFolder) {
  ASSERT_FALSE(fs::exists("/run/login"));
  EXPECT_EQ(usable_folder("/run/login/commensal"), tmp_);
  EXPECT_EQ(usable_folder("/run/chosen/commensal"), "/run/chosen/commensal");
  setenv("XDG_RUNTIME_DIR", "/tmp", 1);
  EXPECT_EQ(usable_folder("/tmp/commensal"), "/tmp/commensal");
}

TEST_F(KernelNameTest, OneProcessAtATimeHoldsAName) {
  const std::string name = kernel_name(tmp_, instance_);
  {
    const KernelName first{name};
    EXPECT_TRUE(first.held());
    const KernelName second{name};
    EXPECT_FALSE(second.held());
    EXPECT_TRUE(second.is_ours());
    EXPECT_EQ(second.holder(), getpid());
  }
  EXPECT_TRUE(KernelName{name}.held()) << "it goes with its process";
}

TEST_F(KernelNameTest, ItsHolderSaysWhereItListens) {
  EXPECT_EQ(where_listens(tmp_, instance_), tmp_) << "nobody holds it";
  KernelName name{kernel_name(tmp_, instance_)};
  const Answering answering{name, "/run/elsewhere"};
  EXPECT_EQ(where_listens(tmp_, instance_), "/run/elsewhere");
  EXPECT_EQ(where_listens("/run/login/commensal", instance_), "/run/elsewhere");
  EXPECT_EQ(where_listens("/x/chosen", instance_), "/x/chosen");
  EXPECT_EQ(where_listens(tmp_, instance_ + "x"), tmp_);
}

TEST_F(KernelNameTest, OneThatDoesNotAnswerIsLookedForInTheFolder) {
  const KernelName stopped{kernel_name(tmp_, instance_)};
  EXPECT_EQ(where_listens(tmp_, instance_), tmp_);
}

TEST_F(KernelNameTest, AnotherUsersProcessIsNotBelieved) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = kernel_name(tmp_, instance_);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t squatter = fork();
  if (squatter == 0) {
    if (setuid(65534) != 0) _exit(1);
    KernelName taken{name};
    (void)!write(ready[1], "x", 1);
    for (;;) {
      pollfd item{taken.descriptor(), POLLIN, 0};
      if (poll(&item, 1, -1) > 0) (void)taken.tell("/tmp/trap");
    }
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const KernelName mine{name};
  EXPECT_FALSE(mine.held());
  EXPECT_FALSE(mine.is_ours());
  EXPECT_EQ(mine.holders_user(), 65534U);
  EXPECT_EQ(where_listens(tmp_, instance_), tmp_);
  kill(squatter, SIGKILL);
  waitpid(squatter, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace commensal::wire::kernel_name_test
