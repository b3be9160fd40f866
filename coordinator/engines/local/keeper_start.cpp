// SPDX-License-Identifier: Apache-2.0
// posix_spawn with everything that a daemon wants.
#include "coordinator/engines/local/keeper_start.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace commensal::cluster::local {
namespace {

void check_started(int error, const std::string& what) {
  if (error != 0) throw NotStarted(what + ": " + std::generic_category().message(error));
}

class Attributes {
 public:
  Attributes() {
    check_started(posix_spawnattr_init(&value), "cannot prepare a process");
    sigset_t waiting;
    sigemptyset(&waiting);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&waiting, number);
    sigset_t all;
    sigfillset(&all);
    check_started(posix_spawnattr_setsigmask(&value, &waiting), "cannot prepare signals");
    check_started(posix_spawnattr_setsigdefault(&value, &all), "cannot prepare signals");
    check_started(posix_spawnattr_setflags(
                      &value, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF),
                  "cannot prepare a session");
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() { posix_spawnattr_destroy(&value); }
  posix_spawnattr_t value;
};

class Files {
 public:
  explicit Files(const std::string& log) {
    check_started(posix_spawn_file_actions_init(&value), "cannot prepare files");
    check_started(posix_spawn_file_actions_addopen(&value, 0, "/dev/null", O_RDONLY, 0),
                  "cannot prepare files");
    check_started(posix_spawn_file_actions_addopen(
                      &value, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600),
                  "cannot prepare files");
    check_started(posix_spawn_file_actions_adddup2(&value, 1, 2), "cannot prepare files");
    check_started(posix_spawn_file_actions_addclosefrom_np(&value, 3), "cannot prepare files");
    check_started(posix_spawn_file_actions_addchdir_np(&value, "/"), "cannot prepare files");
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() { posix_spawn_file_actions_destroy(&value); }
  posix_spawn_file_actions_t value;
};

}  // namespace

pid_t start_keeper(const std::filesystem::path& keeper, const std::filesystem::path& state,
                   const AttemptFolder& folder) {
  const Attributes attributes;
  const Files files{(folder.path() / "keeper.log").native()};
  std::string program = keeper.native();
  std::string state_word = state.native();
  std::string job = folder.attempt().job.str();
  std::string number = std::to_string(folder.attempt().number);
  // Ids may begin with '-', paths may not: both are absolute.
  std::string end_of_options = "--";
  char* words[] = {program.data(), end_of_options.data(), state_word.data(),
                   job.data(),     number.data(),         nullptr};
  pid_t pid = 0;
  check_started(posix_spawn(&pid, program.c_str(), &files.value, &attributes.value, words, environ),
                "cannot start the keeper " + program);
  return pid;
}

}  // namespace commensal::cluster::local
