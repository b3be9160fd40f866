// SPDX-License-Identifier: Apache-2.0
// The page beside the coordinator's loop: what it shows, what it asks for, and the metrics.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/cluster_observer.h"
#include "coordinator/cluster/shown_cluster.h"
#include "coordinator/page/address.h"
#include "coordinator/page/board.h"
#include "coordinator/page/http_server.h"
#include "coordinator/page/load_history.h"
#include "coordinator/page/metrics.h"
#include "coordinator/page/node_status.h"
#include "coordinator/page/request_box.h"
#include "coordinator/wire/handover.h"

namespace spdlog {
class logger;
}

namespace commensal::cluster {

/// What `--http` and its like said.
struct PageOptions {
  std::optional<page::Address> address = page::Address{};  ///< absent: no page
  std::vector<std::string> hosts;                          ///< further names, HOST:PORT
  bool required = false;  ///< somebody asked for it: without it there is no start
};

/// Serves the page. Nothing that goes wrong with HTTP stops the loop: what it throws is logged.
///
/// Thread safety: none; its members are called by the loop. The server's threads reach the loop by
/// the descriptor alone.
class PageService final : public ClusterObserver {
 public:
  /// Opens the token and begins to serve.
  /// @param state_dir  of the token (`page-token`) and of the last port (`page-port`).
  /// @param ask_node  returns this machine's status; throws if there is none.
  /// @param node_name  what the engine calls the node that has that status.
  /// @throws std::runtime_error, one sentence, if the address or the token cannot be used and the
  /// page is required; else that is logged, and there is no page.
  PageService(const PageOptions& options, const std::filesystem::path& state_dir,
              const std::string& version, page::NodeStatus::Ask ask_node,
              std::shared_ptr<spdlog::logger> log, std::string node_name = "");
  PageService(const PageService&) = delete;
  PageService& operator=(const PageService&) = delete;
  ~PageService() override;

  /// Becomes readable when a thread of the server wants something of the loop.
  [[nodiscard]] int descriptor() const noexcept { return wake_.get(); }
  /// "http://127.0.0.1:8100/"; empty: there is no page.
  [[nodiscard]] std::string url() const;
  [[nodiscard]] std::string token_file() const;

  /// Returns the changes that were asked for since the last call. They are docs/cluster.md's
  /// messages, answered as those are.
  [[nodiscard]] std::vector<page::RequestBox::Request> take();
  void answer(page::RequestBox::Number number, nlohmann::json answer);
  /// Notes the answer of any request, for the metrics.
  void count(const nlohmann::json& request, const nlohmann::json& answer);

  using Reports = std::function<nlohmann::json()>;

  /// Puts up what there is, if somebody looks and it has changed. Call it after each step.
  /// @param reports  returns what nodes report (NodeReports::picture); called only if it is shown.
  void publish(ShownCluster& cluster, TimePoint now, const Reports& reports = {});
  /// When to call `publish` if nothing happens before.
  [[nodiscard]] TimePoint next_wake() const noexcept { return next_; }

  void moved(const JobRecord& before, const JobRecord& after) noexcept override;
  void begins(Work work) noexcept override;
  void ended(Work work) noexcept override;
  void engine_failed() noexcept override { metrics_.engine_failed(); }

 private:
  void wake() const noexcept;
  void drain() const noexcept;
  void serve(const PageOptions& options);
  void put_up(ShownCluster& cluster);
  void put_up_reports(const Reports& reports);
  void note_load(const ShownCluster& cluster, TimePoint now);

  std::shared_ptr<spdlog::logger> log_;
  std::filesystem::path token_file_;
  std::filesystem::path port_file_;
  wire::UniqueFd wake_;
  page::Metrics metrics_;
  page::Board board_;
  page::RequestBox requests_;
  page::NodeStatus node_;
  std::optional<page::HttpServer> server_;
  page::LoadHistory history_;
  std::uint64_t noted_ = 0;     // revision that the history knows
  std::uint64_t shown_ = 0;     // revision
  std::uint64_t answered_ = 0;  // question
  TimePoint last_{};
  TimePoint next_reports_{};
  TimePoint next_ = TimePoint::max();
  std::map<Work, TimePoint> begun_;
};

}  // namespace commensal::cluster
