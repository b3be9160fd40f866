// SPDX-License-Identifier: Apache-2.0
// Requests of the local socket's owner and of keys, with what each may ask and see.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/node_orders.h"
#include "coordinator/cluster/node_placements.h"
#include "coordinator/cluster/node_reports.h"
#include "coordinator/keys/allowed_keys.h"

namespace commensal::cluster {

/// Who asks. Thread safety: none; a key must outlive it.
class Caller {
 public:
  /// The owner of the local socket, who may everything that is not a node's.
  [[nodiscard]] static Caller owner() noexcept { return Caller{nullptr}; }
  /// Somebody with a key that is allowed now.
  [[nodiscard]] static Caller of(const keys::AllowedKey& key) noexcept { return Caller{&key}; }

  /// Null: the owner of the local socket.
  [[nodiscard]] const keys::AllowedKey* key() const noexcept { return key_; }

 private:
  explicit Caller(const keys::AllowedKey* key) noexcept : key_(key) {}
  const keys::AllowedKey* key_;
};

/// What is kept of nodes that report, and told to them. Not owned.
struct Nodes {
  NodeReports& reports;
  NodeOrders& orders;
  NodePlacements& placements;
};

/// Reads a message: one frame, an object of this version, within the bounds of text from others.
/// @throws RequestRefused ("malformed", "oversized", "version").
[[nodiscard]] nlohmann::json read_request(const std::vector<std::string>& frames);

/// An answer. The jobs of `queue` are text already: as objects 100,000 of them are ten times as
/// large, and take twice the time.
struct Reply {
  nlohmann::json object;
  std::optional<std::string> jobs{};  ///< a JSON list, a field of the object

  /// Returns all of it as JSON. What is not UTF-8 is replaced.
  [[nodiscard]] std::string text() const;
};

/// Answers one request: checks who asks, hands it on, and leaves out of the answer what the asker
/// may not see. As for `ClusterCoordinator::answer`, what it changes is durable after `settle`
/// only.
/// @throws RequestRefused ("forbidden": not for this key), EngineFailed, StoreFailed.
[[nodiscard]] Reply answer_request(ClusterCoordinator& coordinator, const Nodes& nodes,
                                   Caller caller, nlohmann::json request, TimePoint now);

/// Whether a request changes nothing that must become durable: a node's report.
[[nodiscard]] bool is_report(const nlohmann::json& request);

/// Whether a request asks, and changes nothing: it can be answered while nothing can be written
/// down. What is not known is none.
[[nodiscard]] bool is_question(const nlohmann::json& request);

}  // namespace commensal::cluster
