// SPDX-License-Identifier: Apache-2.0
// posix_spawn.
#include "coordinator/engines/local/program_start.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "coordinator/engines/local/system_failure.h"

namespace commensal::cluster::local {
namespace {

/// Words as C has them. They must not change while it is used.
std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) check(errno, "cannot make a pipe");
  return {wire::UniqueFd{ends[0]}, wire::UniqueFd{ends[1]}};
}

ProgramStart::ProgramStart() {
  check(posix_spawn_file_actions_init(&files_), "cannot prepare files");
  check(posix_spawnattr_init(&attributes_), "cannot prepare a process");
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  check(posix_spawnattr_setsigmask(&attributes_, &none), "cannot prepare signals");
  check(posix_spawnattr_setsigdefault(&attributes_, &all), "cannot prepare signals");
  check(posix_spawnattr_setpgroup(&attributes_, 0), "cannot prepare a process group");
  check(posix_spawnattr_setflags(
            &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF),
        "cannot prepare a process");
}

ProgramStart::~ProgramStart() {
  posix_spawn_file_actions_destroy(&files_);
  posix_spawnattr_destroy(&attributes_);
}

void ProgramStart::give(int fd, int as) {
  check(posix_spawn_file_actions_adddup2(&files_, fd, as), "cannot prepare files");
}

void ProgramStart::give_nothing_to_read() {
  check(posix_spawn_file_actions_addopen(&files_, 0, "/dev/null", O_RDONLY, 0),
        "cannot prepare files");
}

void ProgramStart::close_from(int first) {
  check(posix_spawn_file_actions_addclosefrom_np(&files_, first), "cannot prepare files");
}

pid_t ProgramStart::start(const std::vector<std::string>& words,
                          const std::vector<std::string>& variables) const {
  std::vector<std::string> own_words = words;
  std::vector<std::string> own_variables = variables;
  pid_t pid = 0;
  check(posix_spawnp(&pid, words.front().c_str(), &files_, &attributes_,
                     pointers_to(own_words).data(), pointers_to(own_variables).data()),
        "cannot start " + words.front());
  return pid;
}

std::vector<std::string> own_variables() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

}  // namespace commensal::cluster::local
