// SPDX-License-Identifier: Apache-2.0
// Keeps an opportunistic process's threads to the cores that guaranteed jobs leave.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>

#include "coordinator/wire/core_set.h"
#include "torch_ext/runtime/thread_cores.h"

namespace commensal {

/// What a process goes by.
struct CoreWish {
  wire::CoreSet own;   ///< CPUs that it may use by its owner
  bool wanted = true;  ///< not switched off
  bool opportunistic = true;
  bool coordinator_alive = false;
  bool guaranteed_present = false;
  wire::CoreSet left;  ///< by the device page; empty: all
};

struct CoreChoice {
  std::optional<wire::CoreSet> cores;  ///< a part of the own ones, not empty; nothing: as they are
  std::string reason;
};

/// Decides on which of its CPUs a process keeps. A silent coordinator's last word stands while a
/// guaranteed job is alive. Pure; never more than the own ones.
[[nodiscard]] CoreChoice choose_cores(const CoreWish& wish);

/// Moves threads between all of a process's CPUs and some of them. A thread whose user pinned it
/// stays as it is; one that is started meanwhile inherits, and moves with the others from then on.
/// Not thread safe.
class CoreKeeper {
 public:
  struct Result {
    int moved = 0;
    int left_alone = 0;  ///< pinned by the user
    int failed = 0;
    std::string reason;  ///< of the first failure; empty: none
  };

  /// @param cores  must outlive this object. @param own  CPUs of the process; empty: not known, and
  ///               nothing is ever moved. @param now  those that its threads have.
  CoreKeeper(ThreadCores& cores, wire::CoreSet own, wire::CoreSet now);

  /// Moves all threads to `wanted`, but this project's own ones.
  Result apply(const wire::CoreSet& wanted);

  [[nodiscard]] const wire::CoreSet& own() const noexcept { return own_; }
  /// What threads were moved to last.
  [[nodiscard]] const wire::CoreSet& now() const noexcept { return now_; }
  [[nodiscard]] bool confined() const noexcept { return now_ != own_; }

 private:
  ThreadCores& cores_;
  const wire::CoreSet own_;
  wire::CoreSet now_;
  std::set<int> pinned_;  // by their user
  std::set<int> astray_;  // the kernel did not let them follow: not their user's choice
};

}  // namespace commensal
