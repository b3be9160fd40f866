// SPDX-License-Identifier: Apache-2.0
// Detaching and locking.
#include "coordinator/node/background.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "coordinator/wire/paths.h"

namespace commensal::node {
namespace {

std::string error_text() { return std::generic_category().message(errno); }

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the starter is gone: nobody is left to tell
    done += static_cast<std::size_t>(n);
  }
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 512> buffer;
  for (;;) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

/// Drops what a child has of its starter, but for one descriptor. @return false: errno says why.
bool shed_inheritance(int keep) {
  sigset_t none;
  sigemptyset(&none);
  if (sigprocmask(SIG_SETMASK, &none, nullptr) != 0) return false;
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGUSR1, SIGUSR2}) {
    if (std::signal(signal, SIG_DFL) == SIG_ERR) return false;
  }
  if (chdir("/") != 0) return false;
  const int null = open("/dev/null", O_RDWR);
  if (null < 0) return false;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null != fd && dup2(null, fd) < 0) return false;
  }
  const auto kept = static_cast<unsigned>(keep);
  if (kept > 3 && close_range(3, kept - 1, 0) != 0) return false;
  return close_range(kept + 1, ~0U, 0) == 0;
}

[[noreturn]] void be_daemon(
    wire::UniqueFd report_to,
    const std::function<ExitCode(const std::function<void(const StartReport&)>&)>& daemon) {
  const auto report = [&](const StartReport& start) {
    if (!report_to) return;
    write_all(report_to.get(), std::to_string(static_cast<int>(start.code)) + " " + start.text);
    report_to.reset();
  };
  if (!shed_inheritance(report_to.get())) {
    report({ExitCode::kInternal, "cannot detach: " + error_text()});
    _exit(static_cast<int>(ExitCode::kInternal));
  }
  const ExitCode code = daemon(report);
  std::exit(static_cast<int>(code));
}

}  // namespace

StartReport run_in_background(
    const std::function<ExitCode(const std::function<void(const StartReport&)>&)>& daemon) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return {ExitCode::kInternal, "cannot make a pipe: " + error_text()};
  }
  const wire::UniqueFd reader{ends[0]};
  wire::UniqueFd writer{ends[1]};
  // The daemon must not have a low number for its pipe: 0 to 2 become /dev/null.
  if (writer.get() < 3) writer.reset(fcntl(writer.get(), F_DUPFD_CLOEXEC, 3));
  const pid_t child = fork();
  if (child < 0) return {ExitCode::kInternal, "cannot fork: " + error_text()};
  if (child == 0) {
    // A second fork: no session leader, so it never gets a terminal, and no child of the starter.
    const bool in_session = setsid() >= 0;
    const pid_t grandchild = in_session ? fork() : -1;
    if (grandchild == 0) be_daemon(std::move(writer), daemon);
    _exit(grandchild < 0 ? 1 : 0);
  }
  writer.reset();
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string report = read_all(reader.get());
  if (report.empty()) {
    return {ExitCode::kInternal, "the coordinator died while it started"};
  }
  char* end = nullptr;
  const long code = std::strtol(report.c_str(), &end, 10);
  return {static_cast<ExitCode>(code), *end == ' ' ? end + 1 : end};
}

InstanceLock::InstanceLock(const std::filesystem::path& path) {
  wire::UniqueFd fd{open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!fd) throw wire::BadPath("cannot open the lock " + path.native() + ": " + error_text());
  const bool taken = flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  if (!taken && errno != EWOULDBLOCK) {
    throw wire::BadPath("cannot lock " + path.native() + ": " + error_text());
  }
  const std::string text = read_all(fd.get());
  holder_ = std::strtoll(text.c_str(), nullptr, 10);
  if (!taken) return;
  after_crash_ = holder_ != 0;
  holder_ = getpid();
  const std::string pid = std::to_string(holder_) + "\n";
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    throw wire::BadPath("cannot write the lock " + path.native() + ": " + error_text());
  }
  fd_ = std::move(fd);
}

bool InstanceLock::is_at(const std::filesystem::path& path) const noexcept {
  struct stat named {};
  struct stat own {};
  return fd_ && ::stat(path.c_str(), &named) == 0 && ::fstat(fd_.get(), &own) == 0 &&
         named.st_dev == own.st_dev && named.st_ino == own.st_ino;
}

void InstanceLock::leave_clean() noexcept {
  // If this fails the next coordinator waits a moment for jobs that do not exist: no harm.
  if (fd_ && ftruncate(fd_.get(), 0) != 0) after_crash_ = true;
}

}  // namespace commensal::node
