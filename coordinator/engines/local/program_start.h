// SPDX-License-Identifier: Apache-2.0
// A program in a process group of its own, with the files that it is given.
#pragma once

#include <spawn.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "coordinator/wire/handover.h"

namespace commensal::cluster::local {

/// Both ends are closed in programs that are started later.
struct Pipe {
  wire::UniqueFd read;
  wire::UniqueFd write;
};
/// @throws std::system_error.
[[nodiscard]] Pipe make_pipe();

/// What a program is started with: a process group of its own, no signal blocked or ignored, and
/// the files that were given. No shell sees its words. Everything throws std::system_error.
/// Thread safety: none.
class ProgramStart {
 public:
  ProgramStart();
  ProgramStart(const ProgramStart&) = delete;
  ProgramStart& operator=(const ProgramStart&) = delete;
  ~ProgramStart();

  /// It has `fd` under the number `as`. Calls count in their order.
  void give(int fd, int as);
  /// It reads nothing.
  void give_nothing_to_read();
  /// It has no other files from this number on, whatever this process has open.
  void close_from(int first);

  /// @param words  the program, looked for in the PATH, and its arguments; at least one.
  /// @param variables  "NAME=value", all that it has.
  /// @return its number, which is that of its group; the caller waits for it.
  [[nodiscard]] pid_t start(const std::vector<std::string>& words,
                            const std::vector<std::string>& variables) const;

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

/// Variables of this process, "NAME=value".
[[nodiscard]] std::vector<std::string> own_variables();

}  // namespace commensal::cluster::local
