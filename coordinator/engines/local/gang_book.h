// SPDX-License-Identifier: Apache-2.0
// What is known of the parts of a gang on several nodes, and what came of the whole.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/engines/local/gang_talk.h"

namespace commensal::cluster::local {

/// Collects what the keepers of a gang's nodes report. One rank that is lost is the end of all: the
/// first cause counts, and what follows from it does not. Pure.
class GangBook {
 public:
  /// @param nodes  by their numbers in the placement.
  explicit GangBook(std::vector<std::string> nodes);

  /// Notes a report. One about a node that there is not, or a second one, changes nothing.
  void note(const Report& report);
  void taken_back();
  /// SIGTERM came from elsewhere: the machine goes down, or Slurm ends the job.
  void told_to_end();
  /// Not all were ready in time. Those that are missing are named.
  void waited_in_vain(std::chrono::seconds time);

  [[nodiscard]] bool all_ready() const;
  /// Where the ranks meet; 0: not known.
  [[nodiscard]] int port() const noexcept { return port_; }
  /// Whether the parts that are left are to be stopped.
  [[nodiscard]] bool has_cause() const noexcept { return cause_ || weak_; }
  /// Every part has said its last word.
  [[nodiscard]] bool all_ended() const;

  /// What came of it, once the launcher is gone.
  /// @param launcher_end  how that ended, as words: "srun ended with 1".
  [[nodiscard]] Outcome outcome(const std::string& launcher_end) const;

 private:
  struct Part {
    std::string node;
    bool ready = false;
    std::optional<Outcome> outcome;
  };
  void note_end(Part& part, const Outcome& outcome);
  [[nodiscard]] std::string nodes_without(bool (*has)(const Part&)) const;

  std::vector<Part> parts_;
  int port_ = 0;
  std::optional<Outcome> cause_;
  std::optional<Outcome> weak_;  // may follow from a keeper that is gone, which says nothing itself
};

}  // namespace commensal::cluster::local
