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
#include "coordinator/engines/local/gang_talk.h"
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
  /// groups.
  /// @param group  starts the ranks of this node alone; nothing: all of them.
  /// @throws std::system_error.
  Keeper(AttemptFolder folder, HeldJob held, Placed placed,
         std::optional<std::size_t> group = std::nullopt);
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper();

  /// Control groups that it made.
  [[nodiscard]] const std::vector<std::filesystem::path>& groups() const noexcept {
    return groups_.folders;
  }

  /// Where the ranks meet: on this node, if it has the first one, else wherever it is told; 0: not
  /// known.
  [[nodiscard]] int port() const noexcept { return port_; }
  void set_port(int port) noexcept { port_ = port; }
  /// Reads orders of the gang's head from a descriptor while ranks run; its end is the head's.
  void follow(int orders);

  /// Starts the ranks and returns what came of them when none of their processes is left.
  [[nodiscard]] Outcome run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    std::size_t number = 0;  ///< among all of the attempt
    OutputLog log;
    pid_t pid = 0;  ///< zero: not started, or ended
    wire::UniqueFd output;
  };

  void start_ranks();
  void start(std::size_t index, const RankContext& context, const RankNumbers& numbers);
  void wait_for_something();
  void read_signals();
  void read_orders();
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
  std::vector<std::size_t> numbers_;
  std::deque<Rank> ranks_;
  LimitGroups groups_;
  int port_ = 0;
  int orders_ = -1;
  LineReader order_lines_;
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

/// What it does on each node of a gang: tells the head when its ranks can be started, starts them
/// when it says so, and tells how they ended.
/// @param node     its name in the placement. @param orders, reports  pipes from and to the head.
/// @return the exit code: 0, or 1 if it could not do its work.
int keep_part(const AttemptFolder& folder, const std::string& node, int orders, int reports);

}  // namespace commensal::cluster::local
