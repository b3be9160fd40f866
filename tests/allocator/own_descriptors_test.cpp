// SPDX-License-Identifier: Apache-2.0
// Our own table of descriptors: nothing that the program does reaches it, and the reverse.
#include "allocator/host/own_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "allocator/host/thread_stopper.h"
#include "tests/allocator/restless_program.h"

namespace commensal::own_descriptors_test {
namespace {

std::vector<int> open_here() {
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/thread-self/fd")) {
    numbers.push_back(std::stoi(entry.path().filename()));
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.pop_back();  // the list itself, opened last
  return numbers;
}

// What is open in a table of ours from the start.
std::vector<int> fillers() {
  std::vector<int> numbers(512);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class OwnDescriptors : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(own_descriptors::refusal(), ""); }
  ~OwnDescriptors() override { own_descriptors::close(file_); }

  static bool is_open(int fd) {
    struct stat status {};
    return own_descriptors::call(SYS_fstat, fd, &status) == 0;
  }
  const int file_ =
      own_descriptors::run([] { return static_cast<int>(::memfd_create("ours", MFD_CLOEXEC)); });
};

TEST_F(OwnDescriptors, TheProgramSeesAndClosesNoneOfThem) {
  ASSERT_GE(file_, 512) << "low numbers, 0, 1 and 2 among them, are never taken";
  EXPECT_EQ(::fcntl(file_, F_GETFD), -1) << "not a number of the program's";
  EXPECT_TRUE(is_open(file_));
  close_all_descriptors();
  EXPECT_TRUE(is_open(file_));
}

TEST_F(OwnDescriptors, TheyDoNotHoldOpenWhatTheProgramCloses) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0) << "the end of the pipe";
  ::close(ends[0]);
}

TEST_F(OwnDescriptors, WordsToStandardErrorLeadNowhere) {
  for (const int fd : {1, 2}) {
    EXPECT_LT(own_descriptors::call(SYS_write, fd, "stray words\n", 12), 0) << fd;
  }
}

// What a line of ours leads to when `replace` has put something in the place of standard error.
std::string line_after(const std::function<void(int file)>& replace) {
  const int file = ::memfd_create("written", MFD_CLOEXEC);
  const int kept = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
  replace(file);
  own_descriptors::run([] { own_descriptors::write_line("a line of ours"); });
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  std::array<char, 64> text{};
  (void)!::pread(file, text.data(), text.size() - 1, 0);
  ::close(file);
  return text.data();
}

TEST_F(OwnDescriptors, ALineReachesTheProgramsStandardErrorAlone) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(line_after([&](int) { ::dup2(ends[1], STDERR_FILENO); }), "");
  std::array<char, 64> text{};
  EXPECT_EQ(::read(ends[0], text.data(), text.size()), 15);
  EXPECT_STREQ(text.data(), "a line of ours\n");
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(line_after([](int file) { ::dup2(file, STDERR_FILENO); }), "") << "a file of the user";
  EXPECT_EQ(line_after([](int) { ::close(STDERR_FILENO); }), "");
}

TEST_F(OwnDescriptors, ItsThreadsShareThem) {
  bool seen = false;
  std::thread thread = own_descriptors::start_thread([&] {
    struct stat status {};
    seen = ::fstat(file_, &status) == 0 && own_descriptors::run([&] { return is_open(file_); });
  });
  thread.join();
  EXPECT_TRUE(seen);
}

TEST_F(OwnDescriptors, WhatIsThrownComesBack) {
  EXPECT_THROW(own_descriptors::run([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(own_descriptors::call(SYS_close, 12345), -EBADF);
}

TEST_F(OwnDescriptors, ServesWhileTheThreadsAreStopped) {
  std::atomic<bool> end{false};
  // A thread that may be stopped in the middle of a call, again and again.
  std::thread caller([&] {
    while (!end) (void)own_descriptors::call(SYS_getppid);
  });
  for (int i = 0; i < 50; ++i) {
    const ThreadStopper::Result stop = ThreadStopper::instance().stop(std::chrono::seconds{5});
    const long answer = own_descriptors::call(SYS_getppid);
    if (stop.stopped) ThreadStopper::instance().resume();
    ASSERT_TRUE(stop.stopped) << stop.reason;
    EXPECT_EQ(answer, ::getppid());
  }
  end = true;
  caller.join();
}

TEST_F(OwnDescriptors, AForkedChildHasNoneAndMakesItsOwn) {
  ThreadStopper& stopper = ThreadStopper::instance();
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = own_descriptors::call(SYS_close, file_) == -EBADF ? 0 : 1;
    wrong |= stopper.stop(std::chrono::seconds{5}).stopped ? 0 : 4;  // it reads about its threads
    stopper.resume();
    own_descriptors::close(file_);
    wrong |= own_descriptors::run([] { return open_here(); }) == fillers() ? 0 : 2;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "1 << 8: ours was closed, 2 << 8: more is open, 4 << 8: no stop";
  EXPECT_TRUE(is_open(file_));
}

TEST_F(OwnDescriptors, AnEmptyTableIsMadeOnOldKernelsToo) {
  for (const bool at_once : {true, false}) {
    std::thread([at_once] {
      ASSERT_EQ(own_descriptors::leave_shared_table(at_once), 0);
      EXPECT_EQ(open_here(), fillers());
    }).join();
  }
}

}  // namespace
}  // namespace commensal::own_descriptors_test
