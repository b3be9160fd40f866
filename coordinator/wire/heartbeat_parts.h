// SPDX-License-Identifier: Apache-2.0
// What a node and the cluster's coordinator tell each other with each heartbeat and its answer, in
// parts of their own: orders, and placements (docs/cluster.md, "heartbeat").
//
// Each part names the heartbeat and the coordinator's run. A run is a word that no other start of a
// coordinator uses: numbers of orders and lists mean nothing beyond it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/field_rules.h"
#include "allocator/base/ids.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/placements.h"

namespace commensal::wire {

inline constexpr std::size_t kMostOrders = 64;  ///< of a node at once
inline constexpr std::size_t kLongestOrderedJob = 256;
inline constexpr std::size_t kLongestOrderReason = 1024;
inline constexpr TextSize kRunSize{0, 64};

/// The class of a job is to be changed.
struct NodeOrder {
  std::uint64_t number = 0;  ///< from 1; a newer order has a higher one
  std::string job;
  JobClass job_class = JobClass::kOpportunistic;
};
void fields(SameAs<NodeOrder> auto& order, auto& field) {
  field("number", order.number, NotBelow{std::uint64_t{1}});
  field("job", order.job, TextSize{1, kLongestOrderedJob});
  field("class", order.job_class);
}

/// What became of an order.
struct OrderResult {
  std::uint64_t number = 0;
  Outcome outcome = Outcome::kApplied;
  std::string reason;
};
void fields(SameAs<OrderResult> auto& result, auto& field) {
  field("number", result.number);
  field("outcome", result.outcome);
  field("reason", result.reason, TextSize{0, kLongestOrderReason});
}

/// Of a heartbeat: the part "orders".
struct OrderReport {
  std::uint64_t beat = 0;  ///< number of the heartbeat; goes back with the answer
  std::string run;         ///< that the node heard last; empty: none
  std::vector<OrderResult> results;
};
void fields(SameAs<OrderReport> auto& part, auto& field) {
  field("beat", part.beat);
  field("run", part.run, kRunSize);
  field("results", part.results, ListSize{0, kMostOrders});
}

/// Of its answer: all orders that have no result yet.
struct OrderList {
  std::uint64_t beat = 0;
  std::string run;
  std::vector<NodeOrder> list;
};
void fields(SameAs<OrderList> auto& part, auto& field) {
  field("beat", part.beat);
  field("run", part.run, kRunSize);
  field("list", part.list, ListSize{0, kMostOrders});
}

/// Of a heartbeat: the part "placements".
struct PlacementReport {
  std::uint64_t beat = 0;
  std::string run;
  std::uint64_t number = 0;  ///< of the list that it has; 0: none
};
void fields(SameAs<PlacementReport> auto& part, auto& field) {
  field("beat", part.beat);
  field("run", part.run, kRunSize);
  field("number", part.number);
}

/// Of its answer: what is placed on the node.
struct PlacementList {
  std::uint64_t beat = 0;
  std::string run;
  std::uint64_t number = 0;                    ///< of the list; a newer one has a higher one
  std::optional<std::vector<Placement>> list;  ///< absent: the node has it
  std::optional<std::uint64_t> left_out;       ///< placements that did not fit; beside a list
};
void fields(SameAs<PlacementList> auto& part, auto& field) {
  field("beat", part.beat);
  field("run", part.run, kRunSize);
  field("number", part.number, NotBelow{std::uint64_t{1}});
  field("list", part.list, ListSize{0, kMostPlacements});
  field("left_out", part.left_out);
  field.check([&](const std::string& path) -> std::string {
    if (part.list && !part.left_out) return "field '" + path + "left_out' is missing";
    return part.list ? repeated_id(*part.list) : "";
  });
}

}  // namespace commensal::wire
