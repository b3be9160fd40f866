// SPDX-License-Identifier: Apache-2.0
// Which nodes are given no new jobs for a while, because jobs fail on them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"

namespace commensal::cluster {

struct HealthRules {
  std::uint32_t failures = 3;  ///< that are a node's, within `window`; zero: never
  std::uint32_t jobs = 2;      ///< that these are failures of, at least
  Duration window = std::chrono::hours{1};
  Duration first = std::chrono::minutes{10};  ///< it is avoided for so long; doubled each time
  Duration longest = std::chrono::hours{24};
};

/// Counts infrastructure failures by node. One job that always fails is no proof against a node;
/// a job that ends well there is a proof for it. Known to this process only: a coordinator that
/// begins anew gives every node another chance. Thread safety: none.
class NodeHealth {
 public:
  explicit NodeHealth(HealthRules rules) : rules_(rules) {}

  /// An attempt failed there, through no fault of its user's; told twice, it counts once.
  /// @return whether the node is avoided from now on, and was not before.
  bool failed(const std::string& node, const JobId& job, std::uint32_t attempt, TimePoint now);
  /// A job ended well there: what was held against the node is forgotten.
  void worked(const std::string& node) { suspects_.erase(node); }
  /// An operator says that it is good.
  void forgive(const std::string& node) { suspects_.erase(node); }

  /// Returns why a node is avoided; absent: it is not.
  [[nodiscard]] std::optional<std::string> avoided(const std::string& node, TimePoint now) const;
  /// When the next one is avoided no longer.
  [[nodiscard]] TimePoint next_change(TimePoint now) const noexcept;

 private:
  struct Failure {
    TimePoint at;
    JobId job;
    std::uint32_t attempt = 0;
  };
  struct Suspect {
    std::deque<Failure> failures;
    std::uint32_t times = 0;  // it was avoided
    TimePoint until{};
    std::string reason;
  };

  HealthRules rules_;
  std::map<std::string, Suspect> suspects_;
};

}  // namespace commensal::cluster
