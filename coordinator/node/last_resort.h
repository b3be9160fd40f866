// SPDX-License-Identifier: Apache-2.0
// What is done, in which order, when a guaranteed job lacks memory of its minimum.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"

namespace commensal::node {

/// The steps in the order in which they are taken once all of the free budget is granted and still
/// something is lacking (docs/assumptions.md, "When a guaranteed job lacks its minimum"). Each is
/// for what the ones before it leave. To offload by other means than the job's own would come
/// before `kBeyondBudget`: nothing here can.
enum class Resort : std::uint8_t {
  kNone,          ///< nothing is lacking, or nothing more is done
  kWait,          ///< whoever owes it gives it back, within the deadline
  kBeyondBudget,  ///< memory that is physically free, for the minimum alone
  kStop,          ///< the job that owes most is stopped from outside
  kEnd            ///< it is ended, with notice, where the operator allows that
};
[[nodiscard]] std::string_view to_string(Resort resort) noexcept;

/// A job that is charged with more than its limit.
struct Debtor {
  JobId id;
  std::string name;
  Bytes owed;
  Bytes charged;
  Duration owed_for{};
  /// It has said what it keeps, or is known not to go on: waiting for it is no use.
  bool settled = false;
  bool stopped = false;    ///< by whomever
  bool ending = false;     ///< it has been told to end, and runs for that
  bool reachable = false;  ///< it is opportunistic, and signals reach it
};

struct ResortView {
  Bytes lacking;   ///< of the minima of guaranteed jobs, with all that the budget allows
  Bytes physical;  ///< free of the machine beyond the budget
  std::vector<Debtor> debtors;
};

struct ResortConfig {
  /// Within this time a job gives back what it is told to, or it counts as one that cannot.
  Duration deadline = std::chrono::seconds(1);
  /// A job that owes for so long, parked or not, is stopped.
  Duration stop_after = std::chrono::seconds(20);
  /// One that owes for so long is told to end.
  Duration end_after = std::chrono::seconds(30);
  /// From then on it has so much time to end by itself.
  Duration notice = std::chrono::seconds(30);
  /// Whether the operator allows that (`--last-resort end`).
  bool may_end = false;
};

struct ResortDecision {
  Resort resort = Resort::kNone;
  std::optional<std::size_t> debtor;  ///< of the view: whom `kStop` and `kEnd` are about
  std::string reason;                 ///< for people; empty: nothing is lacking
};

/// Chooses the next step. Equal view, equal decision.
[[nodiscard]] ResortDecision next_resort(const ResortView& view, const ResortConfig& config);

}  // namespace commensal::node
