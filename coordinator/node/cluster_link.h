// SPDX-License-Identifier: Apache-2.0
// What a node tells the cluster's coordinator about itself.
#pragma once

#include <spdlog/fwd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/base/clock.h"
#include "coordinator/keys/key_pair.h"
#include "coordinator/node/cluster_orders.h"
#include "coordinator/node/cluster_placements.h"

namespace commensal::node {

/// Makes a report of a node's status (docs/stats.md, "status"; docs/cluster.md, "heartbeat"): its
/// devices, and of the jobs that run what others need. Pure.
/// @param jobs  so many jobs at most; `jobs_left_out` says how many more there are.
[[nodiscard]] nlohmann::json node_report(const nlohmann::json& status, std::size_t jobs = 64);

/// Sends a report each second over TCP, encrypted, with the node's key, and takes the orders
/// and placements that come back.
///
/// Nothing here waits: while the coordinator is away or does not read, reports are dropped, and the
/// connection is made anew every ten seconds. So the loop that divides the devices never depends on
/// it. Thread safety: none.
class ClusterLink {
 public:
  static constexpr Duration kPeriod = std::chrono::seconds{1};
  static constexpr Duration kSilent = std::chrono::seconds{10};  ///< then the log says so

  struct Options {
    std::string address;             ///< "tcp://HOST:PORT"
    std::filesystem::path keys_dir;  ///< empty: keys::default_key_folder
    std::string key = "node";        ///< its name in that folder
  };

  /// Begins to connect. @throws keys::KeyProblem, std::exception with one sentence.
  ClusterLink(const Options& options, std::shared_ptr<spdlog::logger> log, TimePoint now);
  ClusterLink(const ClusterLink&) = delete;
  ClusterLink& operator=(const ClusterLink&) = delete;
  ~ClusterLink();

  /// Takes answers, and sends a report if one is due and would be read.
  /// @param report  called only then.
  void beat(const std::function<nlohmann::json()>& report, TimePoint now);

  /// What is to be done, and what came of it. Changes with `beat`.
  [[nodiscard]] ClusterOrders& orders() noexcept { return orders_; }
  /// What is placed here. Changes with `beat`.
  [[nodiscard]] const ClusterPlacements& placements() const noexcept { return placements_; }
  /// Whether there is another list than at the last call.
  [[nodiscard]] bool take_new_placements() noexcept { return std::exchange(placed_anew_, false); }
  /// When the coordinator answered last; when this began, if it never has.
  [[nodiscard]] TimePoint heard() const noexcept { return heard_; }

  /// Reports that were sent, and that were left out because nobody would have read them.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }

 private:
  struct Socket;
  void exchange(const std::function<nlohmann::json()>& report, TimePoint now);
  void connect();
  void take_answers(TimePoint now);
  [[nodiscard]] std::string problem_with(std::string_view frame);
  void note(const std::string& problem);

  std::shared_ptr<spdlog::logger> log_;
  std::string address_;
  keys::KeyPair own_;
  keys::Key server_;
  std::unique_ptr<Socket> socket_;
  TimePoint next_;
  TimePoint heard_;
  TimePoint connected_;
  ClusterOrders orders_;
  ClusterPlacements placements_;
  bool placed_anew_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t dropped_ = 0;
  std::string problem_ = "not heard of yet";  // what the log was told last; empty: all is well
};

}  // namespace commensal::node
