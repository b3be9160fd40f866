// SPDX-License-Identifier: Apache-2.0
// Why an attempt ended: the first cause counts, what follows from it does not.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {

/// Exit code of an attempt that its time limit ended, as timeout(1) has it.
inline constexpr int kTimeLimitExit = 124;

/// Collects what happens to the ranks of one attempt and says what came of it. Pure.
class Ending {
 public:
  explicit Ending(std::size_t ranks) : Ending(ranks, ranks > 1) {}
  /// @param named  reasons name the rank: these are some of several.
  Ending(std::size_t ranks, bool named) : ranks_(ranks), named_(named) {}

  void rank_ended(std::size_t rank, int wait_status);
  /// A rank could not be started; `exit_code` as a shell has it: 127 not found, 126 not possible.
  void start_failed(int exit_code, std::string reason);
  void taken_back();
  void time_limit(std::chrono::seconds limit);
  /// SIGTERM came from elsewhere: the machine goes down.
  void keeper_told_to_end();
  /// Of a part of a gang: who keeps the parts together does not any more.
  void head_gone();

  /// Whether the ranks that are left are to be stopped.
  [[nodiscard]] bool has_cause() const noexcept { return cause_.has_value(); }
  /// @param note  added to the reason; empty: none.
  [[nodiscard]] Outcome outcome(const std::string& note) const;

 private:
  void set(Outcome cause);

  std::size_t ranks_;
  bool named_;
  std::size_t ended_ = 0;
  std::optional<Outcome> cause_;
  std::optional<int> first_code_;  ///< of a rank that did not end with 0
};

}  // namespace commensal::cluster::local
