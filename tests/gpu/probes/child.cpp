// SPDX-License-Identifier: Apache-2.0
// Second processes: this program again, in another role, with a page of memory in common.
#include "child.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "device.h"

namespace probes {
namespace {

constexpr std::uint64_t kStartDeadlineNs = 30'000'000'000U;
constexpr std::uint64_t kEndDeadlineNs = 30'000'000'000U;
constexpr std::chrono::milliseconds kPollEvery{1};

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int make_file() {
  const int file = ::memfd_create("commensal-probes", 0);  // inherited on purpose
  if (file < 0) throw_errno("memfd_create");
  if (::ftruncate(file, sizeof(Page)) != 0) throw_errno("ftruncate");
  return file;
}

Page* map_file(int file) {
  void* const at = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) throw_errno("mmap");
  return static_cast<Page*>(at);
}

std::vector<std::string> environment_with(const Environment& more) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  for (const auto& [key, value] : more) entries.push_back(key + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

pid_t start(std::vector<std::string> command, const Environment& more) {
  std::vector<std::string> environment = environment_with(more);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, command.front().c_str(), nullptr, nullptr,
                                   pointers(command).data(), pointers(environment).data());
  if (error != 0) throw std::system_error(error, std::generic_category(), command.front());
  return pid;
}

// Returns true once the process has ended, and its status.
bool reap(pid_t pid, int& status) {
  const pid_t got = ::waitpid(pid, &status, WNOHANG);
  if (got < 0) throw_errno("waitpid");
  return got == pid;
}

void kill_and_reap(pid_t pid, int& status) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, &status, 0);
}

}  // namespace

Load Page::load() const {
  const Load told{rounds.load(), blocks.load()};
  if (told.rounds == 0) throw std::runtime_error("nobody said what its kernels have to do");
  return told;
}

SharedPage::SharedPage() : file_(make_file()), page_(map_file(file_)) {}
SharedPage::SharedPage(int file) : file_(file), page_(map_file(file)) {}

SharedPage::~SharedPage() {
  ::munmap(page_, sizeof(Page));
  ::close(file_);
}

Child::Child(const std::string& role, const SharedPage& page, const Environment& more)
    : page_(page),
      pid_(start({"/proc/self/exe", "--role", role, "--page", std::to_string(page.file())}, more)) {
}

Child::~Child() {
  if (pid_ > 0) kill_and_reap(pid_, status_);
}

bool Child::ended() {
  if (pid_ > 0 && reap(pid_, status_)) pid_ = -1;
  return pid_ < 0;
}

void Child::fail(const std::string& what) const {
  const std::string words = page_->error.data();
  throw std::runtime_error("the second process " + what + (words.empty() ? "" : ": " + words));
}

void Child::wait_ready() {
  const std::uint64_t start_ns = now_ns();
  while (page_->ready.load() == 0) {
    if (ended()) fail("ended before it was ready");
    if (now_ns() - start_ns > kStartDeadlineNs) fail("was not ready in time");
    sleep_for(kPollEvery);
  }
}

void Child::finish() {
  page_->stop.store(1);
  const std::uint64_t start_ns = now_ns();
  while (!ended()) {
    if (now_ns() - start_ns > kEndDeadlineNs) fail("did not end in time");
    sleep_for(kPollEvery);
  }
  if (!WIFEXITED(status_) || WEXITSTATUS(status_) != 0) fail("failed");
}

int run_program(const std::vector<std::string>& command, const Environment& more,
                std::chrono::seconds deadline) {
  const pid_t pid = start(command, more);
  const std::uint64_t start_ns = now_ns();
  const auto limit_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(deadline).count());
  int status = 0;
  while (!reap(pid, status)) {
    if (now_ns() - start_ns > limit_ns) {
      kill_and_reap(pid, status);
      break;
    }
    sleep_for(std::chrono::milliseconds(5));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace probes
