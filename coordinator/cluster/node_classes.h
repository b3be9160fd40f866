// SPDX-License-Identifier: Apache-2.0
// Changes the class of running jobs through this machine's node coordinator.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocator/base/mutex.h"
#include "coordinator/cluster/class_changer.h"
#include "coordinator/cluster/node_job.h"
#include "coordinator/wire/messages.h"

namespace commensal::cluster {

/// Sends a request to a node's coordinator. A change of a job that it does not know is
/// deferred, not refused: a job is told to its node once its script has imported PyTorch.
/// @throws what `request` throws.
[[nodiscard]] wire::Message ask_patiently(
    const std::function<wire::Message(const wire::Message&)>& request,
    const wire::Message& message);

/// Asks a node's coordinator on a thread of its own, again while it defers. A job that the node
/// does not know runs without commensal: only its charge changes. Of a job on several nodes each is
/// asked; if one says no to an upgrade, those that had said yes are asked to go back.
///
/// Thread safety: `change` and `outcomes` are called by one thread.
class NodeClasses final : public ClassChanger {
 public:
  /// Sends one request to the coordinator of a node and waits for the answer.
  /// @throws wire::CoordinatorUnreachable.
  using Ask = std::function<wire::Message(const std::string& node, const wire::Message&)>;

  /// @param again  between two requests while the node defers; @param tries  so often.
  NodeClasses(Ask ask, std::chrono::milliseconds again, int tries);
  NodeClasses(const NodeClasses&) = delete;
  NodeClasses& operator=(const NodeClasses&) = delete;
  ~NodeClasses() override;

  void change(const JobRecord& job, JobClass job_class) override;
  [[nodiscard]] std::vector<Outcome> outcomes() override;

 private:
  struct Order {
    JobClass job_class;
    std::set<std::string> nodes;  // that are to be asked still
    std::set<std::string> done = {};
    int tries = 0;
  };
  struct Said {
    bool changed = false;
    bool later = false;
    std::string reason;
  };
  [[nodiscard]] Said ask_node(const std::string& node, const Attempt& attempt,
                              JobClass job_class) const;
  void work();
  [[nodiscard]] std::optional<Outcome> ask_once(const Attempt& attempt, Order& order) const;

  const Ask ask_;
  const std::chrono::milliseconds again_;
  const int tries_;
  Mutex mutex_;
  std::condition_variable_any woken_;
  std::map<Attempt, Order> orders_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<Outcome> outcomes_ COMMENSAL_GUARDED_BY(mutex_);
  bool leaving_ COMMENSAL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace commensal::cluster
