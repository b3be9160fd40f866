// SPDX-License-Identifier: Apache-2.0
// What Prometheus reads (docs/cluster.md lists the names).
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace commensal::page {

/// Counts, measures, and writes it down in Prometheus' text format.
/// Thread safety: any member may be called from any thread.
class Metrics {
 public:
  /// @param version  of the program.
  explicit Metrics(const std::string& version);
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  using Seconds = std::chrono::duration<double>;

  // What happens.
  void decided(Seconds took);
  void wrote(Seconds took);
  /// A job was started; it had waited since it was queued.
  void started(std::string_view job_class, Seconds waited);
  void ended(std::string_view state);
  /// A request of the command line, the page or another client was answered.
  /// @param type  of docs/cluster.md; another one counts as "unknown".
  /// @param result  "ok", or the code of the error.
  void answered(std::string_view type, std::string_view result);
  /// The engine could not be asked, and that was not known yet.
  void engine_failed();
  void served(const std::string& path, int status);

  // What is. As ClusterCoordinator::picture gives it.
  void show(const nlohmann::json& picture);
  void listeners(int count);

  [[nodiscard]] std::string text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace commensal::page
