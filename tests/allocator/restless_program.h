// SPDX-License-Identifier: Apache-2.0
// A program that closes all descriptors and opens files of its own in their place, all the time.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace commensal {

/// Closes all descriptors of the calling thread's table but 0, 1 and 2.
inline void close_all_descriptors() {
  constexpr long kCloseRange = 436;  // SYS_close_range, which older headers lack
  if (::syscall(kCloseRange, 3U, ~0U, 0U) == 0) return;
  for (int fd = 3; fd < 4096; ++fd) ::close(fd);
}

/// Without pause: closes all descriptors, opens its files, takes other numbers for some of them,
/// writes to them, and looks whether they are its own and hold what it wrote.
class RestlessProgram {
 public:
  RestlessProgram() {
    for (std::size_t i = 0; i < kFiles; ++i) {
      path_of_[i] = "/tmp/commensal-restless-XXXXXX";
      const int fd = ::mkstemp(path_of_[i].data());
      struct stat status {};
      if (fd < 0 || ::fstat(fd, &status) != 0) std::abort();
      inode_[i] = status.st_ino;
      ::close(fd);
    }
    thread_ = std::thread([this] {
      for (unsigned round = 0; !end_; ++round) go_round(round);
    });
  }
  ~RestlessProgram() {
    stop();
    for (const std::string& path : path_of_) ::unlink(path.c_str());
  }
  RestlessProgram(const RestlessProgram&) = delete;
  RestlessProgram& operator=(const RestlessProgram&) = delete;

  void stop() {
    end_ = true;
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] unsigned rounds() const { return rounds_; }
  /// Files that were closed, exchanged or written by somebody else, over all rounds.
  [[nodiscard]] unsigned wrong() const { return wrong_; }

 private:
  static constexpr std::size_t kFiles = 24;
  static constexpr std::array<char, 11> kText{"user data\n"};

  void go_round(unsigned round) {
    close_all_descriptors();
    std::array<int, kFiles> fds{};
    for (std::size_t i = 0; i < kFiles; ++i) {
      fds[i] = ::open(path_of_[i].c_str(), O_RDWR | O_CLOEXEC);
      if (i % 3 != 0) continue;
      // Numbers that private descriptors like to have.
      const int high =
          static_cast<int>((round * 37U + static_cast<unsigned>(i) * 13U) % 400U) + 100;
      if (::dup3(fds[i], high, O_CLOEXEC) == high) fds[i] = high;
    }
    for (const int fd : fds) {
      if (::pwrite(fd, kText.data(), kText.size() - 1, 0) != kText.size() - 1) ++wrong_;
    }
    for (std::size_t i = 0; i < kFiles; ++i) {
      std::array<char, 2 * kText.size()> text{};
      struct stat status {};
      const bool mine = ::fstat(fds[i], &status) == 0 && status.st_ino == inode_[i] &&
                        ::lseek(fds[i], 0, SEEK_CUR) == 0 &&
                        ::pread(fds[i], text.data(), text.size(), 0) == kText.size() - 1 &&
                        std::strcmp(text.data(), kText.data()) == 0;
      if (!mine) ++wrong_;
    }
    ++rounds_;
  }

  std::array<std::string, kFiles> path_of_;
  std::array<ino_t, kFiles> inode_{};
  std::atomic<bool> end_{false};
  std::atomic<unsigned> rounds_{0};
  std::atomic<unsigned> wrong_{0};
  std::thread thread_;
};

}  // namespace commensal
