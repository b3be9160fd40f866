// SPDX-License-Identifier: Apache-2.0
// What a policy of the cluster decides: changes in the order in which they are made, each with its
// reason.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Why: a text with up to two numbers, put together only when somebody reads it.
struct Reason {
  std::string_view text;  ///< a literal, in the syntax of fmt
  std::array<double, 2> values{};
  bool operator==(const Reason&) const = default;
};
[[nodiscard]] std::string to_string(const Reason& reason);

enum class Action : std::uint8_t {
  kStop,     ///< back to waiting, with its progress
  kStart,    ///< whole, on what the decision names
  kMove,     ///< runs on, on what the decision names; an elastic job with more or fewer GPUs
  kUpgrade,  ///< an opportunistic job becomes guaranteed where it runs
  kReserve   ///< waits on; what the decision names, in place of what was, is kept for it
};
[[nodiscard]] std::string_view to_string(Action action) noexcept;

struct Decision {
  JobIndex job = kNoJob;
  Action action = Action::kStart;
  Placement placement;  ///< empty: its GPUs are only counted (a reservation: none)
  Reason reason;
  JobClass job_class = JobClass::kGuaranteed;  ///< as which a job starts
  bool operator==(const Decision&) const = default;
};

inline constexpr Time kNever = std::numeric_limits<double>::infinity();

/// All of it happens at once, what gives before what takes. A job that is not named goes on.
struct ClusterPlan {
  std::vector<Decision> decisions;
  Time wake = kNever;  ///< when to ask again if nothing happens before
  bool operator==(const ClusterPlan&) const = default;
};

}  // namespace commensal::policies
