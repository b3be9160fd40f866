// SPDX-License-Identifier: Apache-2.0
// Rounds in which every job, or pair of jobs on the same GPUs, is to get its share of time over
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/throughput_table.h"

namespace commensal::policies {

/// Gavel's books, kept in the notes of a policy: what each unit should have had of each type of GPU
/// since the shares were last computed, what it had, and what it is owed from before. One decision
/// goes: open, `reset` with new shares if `due`, `schedule`, close.
class RoundBook {
 public:
  static constexpr std::string_view kNeeds = "throughputs of each model on each type of GPU";

  /// A job, or two that are to share their GPUs.
  struct Unit {
    JobIndex first = kNoJob;
    JobIndex second = kNoJob;
    [[nodiscard]] bool is_pair() const noexcept { return second != kNoJob; }
    bool operator==(const Unit&) const = default;
  };

  /// Lengths in seconds.
  struct Rules {
    double round = 360;
    double between_resets = 1920;  ///< at least, unless nobody ran
    bool pairs = false;            ///< whether two jobs may share
  };

  /// What is scheduled for a round.
  struct Turn {
    Unit unit;
    std::uint32_t type = 0;  ///< of the cluster
  };

  /// Opens the books: counts what ran since they were closed, takes out who has ended, and enters
  /// who has arrived.
  /// @throws std::invalid_argument if the view has no throughputs.
  RoundBook(const ClusterView& view, const Notes& notes, const Rules& rules);

  /// Whether shares have to be computed anew.
  [[nodiscard]] bool due() const;
  /// Settles what units are owed under the old shares and begins with new ones.
  /// @param shares  by unit, then by type.
  void reset(const std::function<double(const Unit& unit, std::uint32_t type)>& shares);

  /// Chooses who runs: types in the order given, of each those first who are furthest behind their
  /// share. @param positive  only who has a share.
  [[nodiscard]] std::vector<Turn> schedule(const std::vector<std::uint32_t>& types, bool positive);

  /// Writes the books into the notes; `turns` run from now on.
  void close(const std::vector<Turn>& turns, Notes& notes) const;

  [[nodiscard]] const std::vector<Unit>& units() const noexcept { return units_; }
  /// Jobs that have not ended, in the order of their arrival.
  [[nodiscard]] std::vector<JobIndex> jobs() const;
  /// Speed of a job or of both; zero where a unit does not run on the type.
  [[nodiscard]] ThroughputTable::Pair rates(const Unit& unit, std::uint32_t type) const;
  [[nodiscard]] std::uint32_t types() const noexcept {
    return static_cast<std::uint32_t>(table_types_.size());
  }
  /// GPUs of each type.
  [[nodiscard]] const std::vector<std::int32_t>& capacity() const noexcept { return capacity_; }
  [[nodiscard]] double owed(std::size_t unit, std::uint32_t type) const {
    return owed_[unit * types() + type];
  }
  [[nodiscard]] double priority(std::size_t unit, std::uint32_t type) const;

 private:
  void read(const Notes& notes);
  [[nodiscard]] double planned_seconds(const Turn& turn) const;
  void remove_ended();
  void enter_arrived();
  void enter(Unit unit, double ran);

  const ClusterView& view_;
  Rules rules_;
  std::vector<std::uint32_t> table_types_;  // numbers in the table, by type of the cluster
  std::vector<std::int32_t> capacity_;

  double last_reset_ = 0;
  bool outdated_ = true;
  bool idle_ = false;  // nobody was scheduled, at `closed_`
  double closed_ = -1;
  std::vector<double> type_ran_;  // seconds, by type
  std::vector<Unit> units_;
  std::vector<double> ran_;    // by unit and type
  std::vector<double> owed_;   // by unit and type
  std::vector<double> share_;  // by unit and type; negative: none was computed yet
  std::vector<Turn> last_;     // who runs
};

}  // namespace commensal::policies
