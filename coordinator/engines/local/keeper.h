// SPDX-License-Identifier: Apache-2.0
// Looks after the processes of one attempt from their start to their end.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/local/ending.h"
#include "coordinator/engines/local/limit_groups.h"
#include "coordinator/engines/local/output_log.h"
#include "coordinator/engines/local/rank_process.h"

namespace commensal::cluster::local {

/// The ranks of one attempt, in one process group, with all that they leave behind.
///
/// Makes this process a subreaper and takes its signals SIGTERM and SIGCHLD, so there is one in a
/// process, with one thread. The folder's lock is held by the caller.
class Keeper {
 public:
  /// Prepares everything that may fail while nothing has been started: log files, a port, control
  /// groups. @throws std::system_error.
  Keeper(AttemptFolder folder, HeldJob held, Placed placed);
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper();

  /// Control groups that it made.
  [[nodiscard]] const std::vector<std::filesystem::path>& groups() const noexcept {
    return groups_.folders;
  }

  /// Starts the ranks and returns what came of them when none of their processes is left.
  [[nodiscard]] Outcome run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    OutputLog log;
    pid_t pid = 0;  ///< zero: not started, or ended
    wire::UniqueFd output;
  };

  void start_ranks();
  void start(std::size_t number, const RankContext& context, const RankNumbers& numbers);
  void wait_for_something();
  void read_signals();
  void note_take_back();
  void read_output(Rank& rank);
  void reap();
  void look_at_clock();
  void stop(std::chrono::milliseconds grace);
  void signal_all(int signal);
  [[nodiscard]] bool has_ranks() const;

  AttemptFolder folder_;
  HeldJob held_;
  Placed placed_;
  std::string self_;
  std::deque<Rank> ranks_;
  LimitGroups groups_;
  int port_ = 0;
  wire::UniqueFd events_;
  wire::UniqueFd signals_;
  pid_t group_ = 0;
  Ending ending_;
  bool childless_ = false;
  bool stopping_ = false;
  std::optional<Clock::time_point> limit_at_;
  std::optional<Clock::time_point> kill_at_;
};

/// What the program does: waits for the attempt's lock, runs it if nobody has before, and leaves
/// the outcome. @return the exit code: 0, or 1 if it could not do its work.
int keep(const AttemptFolder& folder);

}  // namespace commensal::cluster::local
