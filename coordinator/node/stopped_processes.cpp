// SPDX-License-Identifier: Apache-2.0
// SIGSTOP and SIGCONT by pidfd, and the file of who is stopped.
#include "coordinator/node/stopped_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "coordinator/node/process_use.h"

namespace commensal::node {

std::string send_signal(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return "";
  return std::generic_category().message(errno);
}

StoppedProcesses::StoppedProcesses(std::filesystem::path file) : file_(std::move(file)) {
  {
    std::ifstream lines{file_};
    std::int64_t pid = 0;
    std::uint64_t ticks = 0;
    while (lines >> pid >> ticks) {
      try {
        const wire::UniqueFd pidfd = wire::open_pidfd(pid);
        // Its pid may be another process's by now.
        if (ticks != 0 && read_start_ticks(pid) == ticks) (void)send_signal(pidfd.get(), SIGCONT);
      } catch (const std::system_error&) {
        continue;  // it is gone
      }
    }
  }
  std::error_code absent;
  std::filesystem::remove(file_, absent);
}

StoppedProcesses::~StoppedProcesses() {
  for (const auto& [pid, stopped] : stopped_) (void)send_signal(stopped.pidfd.get(), SIGCONT);
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
}

std::string StoppedProcesses::write() const {
  std::ofstream out{file_, std::ios::trunc};
  for (const auto& [pid, stopped] : stopped_) out << pid << ' ' << stopped.start_ticks << '\n';
  out.flush();
  return out ? "" : "cannot write " + file_.native();
}

std::string StoppedProcesses::stop(std::int64_t pid, int pidfd) {
  if (stopped_.contains(pid)) return "";
  Stopped entry{read_start_ticks(pid), wire::UniqueFd{fcntl(pidfd, F_DUPFD_CLOEXEC, 3)}};
  if (!entry.pidfd) return "no descriptor: " + std::generic_category().message(errno);
  stopped_.emplace(pid, std::move(entry));
  std::string problem = write();
  if (problem.empty()) problem = send_signal(pidfd, SIGSTOP);
  if (!problem.empty()) forget(pid);
  return problem;
}

std::string StoppedProcesses::go_on(std::int64_t pid, int pidfd) {
  std::string problem = send_signal(pidfd, SIGCONT);
  forget(pid);
  return problem;
}

void StoppedProcesses::forget(std::int64_t pid) {
  if (stopped_.erase(pid) == 0) return;
  std::error_code ignored;
  if (stopped_.empty()) {
    std::filesystem::remove(file_, ignored);
  } else {
    (void)write();  // too many stand there: each is looked at before it goes on
  }
}

}  // namespace commensal::node
