// SPDX-License-Identifier: Apache-2.0
// What the cluster's coordinator wants a node to do, and what came of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/heartbeats.h"
#include "coordinator/wire/heartbeat_parts.h"

namespace commensal::node {

/// Takes orders out of answers to heartbeats, and tells with each heartbeat what came of them.
///
/// An order is repeated until its result has arrived, so it is known by its number and done once;
/// one that was put off is tried again each time it comes. What is not an answer to one of the last
/// heartbeats is refused, and an older order never undoes a newer one for the same job. Without
/// answers nothing happens. Has no socket and no clock. Thread safety: none.
class ClusterOrders {
 public:
  static constexpr std::size_t kLongestReason = 512;  ///< bytes; what is longer is cut

  /// Returns the part "orders" of the next heartbeat (docs/cluster.md).
  [[nodiscard]] nlohmann::json tell();

  /// Takes the same part of an answer; null: it has none.
  /// @throws std::invalid_argument with one sentence; nothing has changed then.
  void take(const nlohmann::json& part);

  /// Returns what is to be done now; `heard` is to be called for each of them, soon or late.
  [[nodiscard]] std::vector<wire::NodeOrder> to_carry_out() { return std::exchange(due_, {}); }

  /// Notes what came of an order; one that has lost its meaning meanwhile is ignored.
  void heard(std::uint64_t number, wire::Outcome outcome, const std::string& reason);

 private:
  struct Known {
    std::string job;
    std::optional<wire::Outcome> outcome = {};  // nothing: it is not known yet
    std::string reason = {};
    bool wanted = true;  // it came with the last answer: the coordinator has no result of it
  };
  void look_at(const wire::NodeOrder& order);
  void forget_some();

  std::string run_;  // of the coordinator; numbers mean nothing beyond it
  Heartbeats beats_;
  std::map<std::uint64_t, Known> known_;
  std::uint64_t forgotten_ = 0;  // up to here numbers are not known any more
  std::vector<wire::NodeOrder> due_;
};

}  // namespace commensal::node
