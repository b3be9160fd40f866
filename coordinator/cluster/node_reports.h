// SPDX-License-Identifier: Apache-2.0
// What nodes said of themselves, and since when they have been silent.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "allocator/base/clock.h"

namespace commensal::cluster {

/// Keeps each node's last report until the node has been silent for long.
///
/// Has no socket and no clock: time is an argument, and may stand still but not go back. One report
/// replaces the one before, so that memory is bounded by the number of nodes and the largest frame.
/// Thread safety: none.
class NodeReports {
 public:
  static constexpr Duration kSilent = std::chrono::seconds{5};     ///< then it is not up any more
  static constexpr Duration kForgotten = std::chrono::minutes{2};  ///< then it has left
  static constexpr Duration kLook = std::chrono::seconds{1};

  /// @throws std::invalid_argument with one sentence if it is not what `take` takes.
  static void check(const nlohmann::json& report);

  /// Takes what a node says: an object with the lists `devices` and `jobs`.
  /// @throws std::invalid_argument with one sentence if it is none; what it said before stays.
  void take(const std::string& node, nlohmann::json report, TimePoint now);

  /// Forgets nodes that have left. Looks once a `kLook` at most.
  void expire(TimePoint now);

  /// Adds reports to an answer to `nodes` (docs/cluster.md): to the node of the same name, and as
  /// nodes of their own (`only_reports`) those that the engine does not know.
  void add_to(nlohmann::json& answer, TimePoint now) const;

  /// What the page shows (docs/cluster.md, "reports"): `nodes`, those with jobs first, the first
  /// `detailed` of them with devices and jobs, `most` of them at most; `left_out`: so many more.
  [[nodiscard]] nlohmann::json picture(TimePoint now, std::size_t detailed = 24,
                                       std::size_t most = 500) const;

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }

 private:
  struct Said {
    nlohmann::json report;
    TimePoint at;
  };
  [[nodiscard]] static nlohmann::json shown(const Said& said, TimePoint now);

  std::map<std::string, Said> nodes_;
  TimePoint next_look_;
};

}  // namespace commensal::cluster
