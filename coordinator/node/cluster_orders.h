// SPDX-License-Identifier: Apache-2.0
// What the cluster's coordinator wants a node to do, and what came of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/ids.h"
#include "coordinator/node/heartbeats.h"

namespace commensal::node {

/// Takes orders out of answers to heartbeats, and tells with each heartbeat what came of them.
///
/// An order is repeated until its result has arrived, so it is known by its number and done once;
/// one that was put off is tried again each time it comes. What is not an answer to one of the last
/// heartbeats is refused, and an older order never undoes a newer one for the same job. Without
/// answers nothing happens. Has no socket and no clock. Thread safety: none.
class ClusterOrders {
 public:
  static constexpr std::size_t kMost = 64;  ///< in one answer
  static constexpr std::size_t kLongestJob = 256;
  static constexpr std::size_t kLongestReason = 512;

  struct Order {
    std::uint64_t number = 0;
    std::string job;
    JobClass job_class = JobClass::kOpportunistic;
  };

  /// Returns the part "orders" of the next heartbeat (docs/cluster.md).
  [[nodiscard]] nlohmann::json tell();

  /// Takes the same part of an answer; null: it has none.
  /// @throws std::invalid_argument with one sentence; nothing has changed then.
  void take(const nlohmann::json& part);

  /// Returns what is to be done now; `heard` is to be called for each of them, soon or late.
  [[nodiscard]] std::vector<Order> to_carry_out() { return std::exchange(due_, {}); }

  /// Notes what came of an order; one that has lost its meaning meanwhile is ignored.
  /// @param outcome  "applied", "refused", "stale" or "deferred", as wire::SetReply.
  void heard(std::uint64_t number, const std::string& outcome, const std::string& reason);

 private:
  struct Known {
    std::string job;
    std::string outcome = {};  // empty: nothing is known yet
    std::string reason = {};
    bool wanted = true;  // it came with the last answer: the coordinator has no result of it
  };
  void look_at(const Order& order);
  void forget_some();

  std::string run_;  // of the coordinator; numbers mean nothing beyond it
  Heartbeats beats_;
  std::map<std::uint64_t, Known> known_;
  std::uint64_t forgotten_ = 0;  // up to here numbers are not known any more
  std::vector<Order> due_;
};

}  // namespace commensal::node
