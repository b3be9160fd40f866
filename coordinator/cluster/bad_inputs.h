// SPDX-License-Identifier: Apache-2.0
// Records of input that jobs have found to be corrupt, for other jobs to leave out.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// Which record: one tenant's, of one of its data sets. Jobs choose both names.
struct InputKey {
  std::string tenant;
  std::string dataset;
  std::string record;
  auto operator<=>(const InputKey&) const = default;
};

/// What an attempt of a job said of a record.
struct InputReport {
  Attempt attempt;
  bool failing = false;  ///< it was at the record when it failed; else it left it out and went on
  bool counted = false;  ///< failing: the attempt has failed since, and not because of a machine
  bool operator==(const InputReport&) const = default;
};

struct BadInput {
  InputKey key;
  std::string reason;                ///< the first that was said
  WallTime since{};                  ///< when it was first said
  bool listed = false;               ///< other jobs are given it; else it is a suspect
  std::vector<InputReport> reports;  ///< the oldest `kMostReports`; none: somebody listed it
  bool operator==(const BadInput&) const = default;
};

struct BadInputRules {
  std::uint32_t failures = 2;  ///< attempts that failed at a record until it is listed; at least 1
};

/// What has to be written down.
struct InputChanges {
  std::vector<BadInput> put;
  std::vector<InputKey> removed;
};

/// Keeps the records of all tenants.
///
/// A record is listed at once if a job could tell that it is corrupt, and if a person says so. One
/// at which a job failed is a suspect: it is listed once `failures` attempts have failed at it as
/// their user's or as semantic failures. A machine's failure proves nothing against a record, nor
/// does one that a job survived. Thread safety: none.
class BadInputs {
 public:
  static constexpr std::size_t kMostText = 512;        ///< bytes of a data set's or record's name
  static constexpr std::size_t kMostReason = 1000;     ///< bytes
  static constexpr std::size_t kMostRecords = 20'000;  ///< of a tenant
  static constexpr std::size_t kMostReports = 16;      ///< of a record

  explicit BadInputs(BadInputRules rules = {}) : rules_(rules) {}

  /// Takes what was written down.
  void restore(BadInput input);

  /// An attempt says that a record is corrupt. The same report twice changes nothing.
  /// @return what the record is now.
  /// @throws std::invalid_argument, one sentence with the value: a name that is empty, too long or
  /// holds control characters, a reason that is too long, a tenant with `kMostRecords`.
  const BadInput& report(const InputKey& key, const std::string& reason, const InputReport& report,
                         WallTime now, InputChanges& changes);

  /// A person lists a record. @throws std::invalid_argument as `report`.
  const BadInput& add(const InputKey& key, const std::string& reason, WallTime now,
                      InputChanges& changes);

  /// Forgets a record; jobs may report it again. @return whether it was known.
  bool remove(const InputKey& key, InputChanges& changes);

  /// An attempt is over.
  /// @param counts  it failed, and its failure was its user's or a semantic one.
  void over(const Attempt& attempt, bool counts, InputChanges& changes);

  /// Part of a tenant's records in the order of their keys.
  struct Part {
    std::vector<const BadInput*> inputs;  ///< valid until the next change
    bool more = false;
  };
  /// @param dataset  absent: all.
  /// @param after    where to go on: data set and record of the last one; absent: at the begin.
  /// @param bytes    of names and reasons, about; at least one record is returned.
  [[nodiscard]] Part list(const std::string& tenant, const std::optional<std::string>& dataset,
                          const std::optional<InputKey>& after, bool suspects,
                          std::size_t bytes) const;

  /// Grows whenever a tenant's list (without suspects) changes; 0: it never had a record.
  [[nodiscard]] std::uint64_t version(const std::string& tenant) const;

 private:
  BadInput& at(const InputKey& key, const std::string& reason, WallTime now);
  void judge(BadInput& input);

  BadInputRules rules_;
  std::map<InputKey, BadInput> inputs_;
  std::map<std::string, std::size_t> counts_;  // of a tenant's records
  std::map<std::string, std::uint64_t> versions_;
  std::map<Attempt, std::set<InputKey>> undecided_;  // failing reports of attempts that go on
};

}  // namespace commensal::cluster
