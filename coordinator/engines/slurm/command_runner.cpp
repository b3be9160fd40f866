// SPDX-License-Identifier: Apache-2.0
// A program, two pipes and a deadline.
#include "coordinator/engines/slurm/command_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "coordinator/cluster/engine.h"
#include "coordinator/engines/local/program_start.h"
#include "coordinator/wire/handover.h"

namespace commensal::cluster::slurm {
namespace {

using Steady = std::chrono::steady_clock;
using wire::UniqueFd;

[[noreturn]] void fail(const std::string& command, const std::string& why) {
  throw EngineFailed(fmt::format("cannot run {}: {}", command, why));
}

/// A process group that is gone when this is.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    (void)wait(0);
  }
  /// @return whether it has ended; its status is then in `status`.
  bool wait(int flags) {
    pid_t done = 0;
    do {
      done = ::waitpid(pid_, &status, flags);
    } while (done < 0 && errno == EINTR);
    if (done == 0) return false;
    pid_ = 0;
    return true;
  }
  int status = 0;

 private:
  pid_t pid_;
};

/// Reads what there is. @return false at the end.
bool drain(int fd, std::string& into) {
  std::array<char, 65'536> buffer{};
  while (true) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count > 0) {
      into.append(buffer.data(), static_cast<std::size_t>(count));
      if (count < static_cast<ssize_t>(buffer.size())) return true;
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

/// Variables that Slurm's commands may have of this process.
std::vector<std::string> kept_variables() {
  std::vector<std::string> variables = local::own_variables();
  std::erase_if(variables, [](const std::string& variable) {
    return steers_slurm(variable.substr(0, variable.find('=')));
  });
  return variables;
}

/// A program whose output comes through pipes that are read without waiting.
struct Started {
  Child child;
  UniqueFd output;
  UniqueFd errors;
};

Started start(const std::vector<std::string>& words) {
  local::Pipe output = local::make_pipe();
  local::Pipe errors = local::make_pipe();
  for (const int fd : {output.read.get(), errors.read.get()}) {
    if (::fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
      throw std::system_error(errno, std::generic_category(), "cannot read without waiting");
    }
  }
  local::ProgramStart program;
  program.give_nothing_to_read();
  program.give(output.write.get(), 1);
  program.give(errors.write.get(), 2);
  program.close_from(3);
  return {Child{program.start(words, kept_variables())}, std::move(output.read),
          std::move(errors.read)};
}

}  // namespace

bool steers_slurm(const std::string& name) {
  if (name == "SLURM_CONF") return false;
  constexpr std::array<std::string_view, 6> kPrefixes{"SLURM_", "SBATCH_",  "SQUEUE_",
                                                      "SINFO_", "SCANCEL_", "SCONTROL_"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

CommandResult ProcessRunner::run(const std::vector<std::string>& words,
                                 std::chrono::milliseconds deadline) {
  if (words.empty()) throw EngineFailed("cannot run a command without words");
  const std::string& command = words.front();
  const auto end = Steady::now() + deadline;
  Started program = [&] {
    try {
      return start(words);
    } catch (const std::system_error& error) {
      fail(command, error.code().message());
    }
  }();
  CommandResult result;
  std::array<pollfd, 2> fds{{{program.output.get(), POLLIN, 0}, {program.errors.get(), POLLIN, 0}}};
  const auto out_of_time = [&] {
    return EngineFailed(fmt::format("{} did not answer within {} s and was ended", command,
                                    std::chrono::duration<double>(deadline).count()));
  };
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Steady::now());
    if (left.count() <= 0) throw out_of_time();
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) fail(command, std::generic_category().message(errno));
    if (fds[0].revents != 0 && !drain(fds[0].fd, result.output)) fds[0].fd = -1;
    if (fds[1].revents != 0 && !drain(fds[1].fd, result.errors)) fds[1].fd = -1;
    if (std::max(result.output.size(), result.errors.size()) > output_bytes_) {
      throw EngineFailed(
          fmt::format("{} said more than {} bytes and was ended", command, output_bytes_));
    }
  }
  // It has closed its output; it ends now, or it is made to.
  while (!program.child.wait(WNOHANG)) {
    if (Steady::now() >= end) throw out_of_time();
    ::poll(nullptr, 0, 1);
  }
  const int status = program.child.status;
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace commensal::cluster::slurm
