// SPDX-License-Identifier: Apache-2.0
// The first keeper of a gang on several nodes: has a keeper started on each, and keeps them
// together.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "coordinator/engines/local/gang_book.h"

namespace commensal::cluster::local {

/// Runs `Placed::launcher`, which starts one keeper on each node with pipes to this one (Slurm's
/// srun: what it reads goes to all, what they print it prints), and speaks with them.
///
/// No rank starts before all keepers are there. When one has lost a rank, or is lost itself, all
/// are ended. The parts end themselves when this one is gone, because their pipes are.
///
/// Takes this process's signals SIGTERM and SIGCHLD, so there is one in a process, with one thread.
/// The folder's lock is held by the caller.
class GangHead {
 public:
  struct Waits {
    std::chrono::seconds ready{600};      ///< until all keepers are there
    std::chrono::seconds past_grace{20};  ///< then the launcher is killed
  };

  /// Starts nothing yet. @throws std::system_error.
  GangHead(AttemptFolder folder, HeldJob held, Placed placed, Waits waits);
  GangHead(const GangHead&) = delete;
  GangHead& operator=(const GangHead&) = delete;
  ~GangHead();

  /// Starts the launcher and returns what came of the attempt when it has ended. Marks the attempt
  /// as begun once all keepers are there. @throws std::system_error.
  [[nodiscard]] Outcome run();

 private:
  using Clock = std::chrono::steady_clock;

  void start_launcher();
  void wait_for_something();
  void read_signals();
  void read_reports();
  void follow_book();
  void look_at_clock();
  void stop(std::chrono::milliseconds grace);
  void say(const Order& order);
  void reap();
  void kill_launcher() const;

  AttemptFolder folder_;
  HeldJob held_;
  Placed placed_;
  Waits waits_;
  GangBook book_;
  LineReader lines_;
  wire::UniqueFd signals_;
  wire::UniqueFd orders_;
  wire::UniqueFd reports_;
  pid_t launcher_ = 0;
  std::string launcher_end_;
  bool begun_ = false;
  bool stopping_ = false;
  std::optional<Clock::time_point> ready_until_;
  std::optional<Clock::time_point> kill_at_;
};

/// Whether an attempt needs one: it has several nodes, and what starts keepers on them.
[[nodiscard]] bool needs_head(const Placed& placed);

}  // namespace commensal::cluster::local
