// SPDX-License-Identifier: Apache-2.0
// Changes of classes on their way to nodes that are reached by their heartbeats alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/base/mutex.h"
#include "coordinator/wire/heartbeat_parts.h"

namespace commensal::cluster {

/// Keeps what nodes are to do until they have answered it.
///
/// An order goes out with each answer to its node's heartbeats, so it arrives though some get lost;
/// its number tells the node that it has done it already. A newer order for the same job takes the
/// place of the older one. What nobody asks about any more is forgotten, as is what a node that has
/// left was to do. Nothing of it is written down: who wants a change asks again.
///
/// Thread safety: any member may be called from any thread.
class NodeOrders {
 public:
  static constexpr Duration kKept = std::chrono::seconds{30};  ///< after it was asked for last

  static constexpr Duration kLook = std::chrono::seconds{1};

  /// @param run  a word that no other start of a coordinator uses: numbers begin anew with each.
  explicit NodeOrders(std::string run, const Clock& clock = SteadyClock::instance());

  /// Whether a node has reported a job lately (NodeReports::kSilent).
  [[nodiscard]] bool reaches(const std::string& node, const std::string& job) const;

  /// Why a node is not reached for a job; empty: it is.
  [[nodiscard]] std::string why_not(const std::string& node, const std::string& job) const;

  /// Asks a node to change a job's class: the same again is the same order, until its end has been
  /// returned once.
  /// @param patience  waits so long for what comes of it.
  /// @return what the node said; deferred while it has not said it, with the reason.
  [[nodiscard]] wire::SetReply ask(const std::string& node, const std::string& job,
                                   JobClass job_class, std::chrono::milliseconds patience);

  /// Takes what a node says of its orders (docs/cluster.md, "heartbeat").
  /// @param report  its report, as NodeReports has taken it.
  /// @param told  null: the node takes no orders.
  /// @return the same part of the answer; null if `told` is.
  /// @throws std::invalid_argument with one sentence; nothing has changed then.
  [[nodiscard]] nlohmann::json exchange(const std::string& node, const nlohmann::json& report,
                                        const nlohmann::json& told);

  /// Forgets what nobody asks about, and nodes that have left. Looks once a `kLook` at most.
  void expire();

  /// Lets nobody wait any more, from now on.
  void stop();

  /// Orders that are kept.
  [[nodiscard]] std::size_t size() const;

 private:
  struct Order {
    std::uint64_t number = 0;
    JobClass job_class = JobClass::kOpportunistic;
    std::optional<wire::Outcome> outcome = {};  // nothing: it has said nothing
    std::string reason = {};
    TimePoint asked = {};
  };
  struct Node {
    std::set<std::string> jobs;  // of the last report
    TimePoint heard;
    bool takes_orders = false;
    std::map<std::string, Order> orders;  // by job
  };
  [[nodiscard]] std::string problem_with(const std::string& node, const std::string& job) const
      COMMENSAL_REQUIRES(mutex_);
  /// The order for it, as asked for now; null: there is no room.
  [[nodiscard]] Order* order_for(const std::string& node, const std::string& job,
                                 JobClass job_class) COMMENSAL_REQUIRES(mutex_);
  /// Null: another one has taken its place, or it is forgotten.
  [[nodiscard]] Order* find(const std::string& node, const std::string& job, std::uint64_t number)
      COMMENSAL_REQUIRES(mutex_);

  const std::string run_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::condition_variable_any told_;
  std::map<std::string, Node> nodes_ COMMENSAL_GUARDED_BY(mutex_);
  std::uint64_t last_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  TimePoint next_look_ COMMENSAL_GUARDED_BY(mutex_);
  bool stopped_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

}  // namespace commensal::cluster
