// SPDX-License-Identifier: Apache-2.0
// posix_spawn, two pipes and a deadline.
#include "coordinator/engines/slurm/command_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "coordinator/cluster/engine.h"
#include "coordinator/wire/handover.h"

namespace commensal::cluster::slurm {
namespace {

using Clock = std::chrono::steady_clock;
using wire::UniqueFd;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

std::string text_of(int error) { return std::generic_category().message(error); }

void check(int error, const std::string& command) {
  if (error == 0) return;
  throw EngineFailed(fmt::format("cannot run {}: {}", command, text_of(error)));
}

Pipe make_pipe(const std::string& command) {
  std::array<int, 2> ends{};
  check(::pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno, command);
  Pipe pipe{UniqueFd{ends[0]}, UniqueFd{ends[1]}};
  check(::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 ? 0 : errno, command);
  return pipe;
}

/// What posix_spawn is told, given back when all is done.
class Plan {
 public:
  Plan(const std::string& command, const Pipe& output, const Pipe& errors) {
    check(posix_spawn_file_actions_init(&files), command);
    check(posix_spawnattr_init(&attributes), command);
    check(posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0), command);
    check(posix_spawn_file_actions_adddup2(&files, output.write.get(), 1), command);
    check(posix_spawn_file_actions_adddup2(&files, errors.write.get(), 2), command);
    check(posix_spawn_file_actions_addclosefrom_np(&files, 3), command);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    check(posix_spawnattr_setsigmask(&attributes, &none), command);
    check(posix_spawnattr_setsigdefault(&attributes, &all), command);
    check(posix_spawnattr_setpgroup(&attributes, 0), command);
    check(posix_spawnattr_setflags(
              &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF),
          command);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t files{};
  posix_spawnattr_t attributes{};
};

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

pid_t spawn(const std::vector<std::string>& words, const Plan& plan) {
  std::vector<std::string> copy = words;
  std::vector<char*> arguments;
  arguments.reserve(copy.size() + 1);
  for (std::string& word : copy) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text{*variable};
    if (!steers_slurm(std::string{text.substr(0, text.find('='))})) variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  pid_t pid = 0;
  check(posix_spawnp(&pid, words.front().c_str(), &plan.files, &plan.attributes, arguments.data(),
                     variables.data()),
        words.front());
  return pid;
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
  Pipe output = make_pipe(command);
  Pipe errors = make_pipe(command);
  const auto end = Clock::now() + deadline;
  Child child{spawn(words, Plan{command, output, errors})};
  output.write.reset();
  errors.write.reset();
  CommandResult result;
  std::array<pollfd, 2> fds{{{output.read.get(), POLLIN, 0}, {errors.read.get(), POLLIN, 0}}};
  const auto out_of_time = [&] {
    return EngineFailed(fmt::format("{} did not answer within {} s and was ended", command,
                                    std::chrono::duration<double>(deadline).count()));
  };
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) throw out_of_time();
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) check(errno, command);
    if (fds[0].revents != 0 && !drain(fds[0].fd, result.output)) fds[0].fd = -1;
    if (fds[1].revents != 0 && !drain(fds[1].fd, result.errors)) fds[1].fd = -1;
    if (std::max(result.output.size(), result.errors.size()) > output_bytes_) {
      throw EngineFailed(
          fmt::format("{} said more than {} bytes and was ended", command, output_bytes_));
    }
  }
  // It has closed its output; it ends now, or it is made to.
  while (!child.wait(WNOHANG)) {
    if (Clock::now() >= end) throw out_of_time();
    ::poll(nullptr, 0, 1);
  }
  result.exit_code =
      WIFSIGNALED(child.status) ? 128 + WTERMSIG(child.status) : WEXITSTATUS(child.status);
  return result;
}

}  // namespace commensal::cluster::slurm
