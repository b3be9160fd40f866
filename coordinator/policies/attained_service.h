// SPDX-License-Identifier: Apache-2.0
// The queues of Tiresias: jobs fall to a lower one as the service that they have got grows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/registry.h"

namespace commensal::policies {

/// When a policy asks to be called because a job crosses a limit.
enum class Crossing : std::uint8_t {
  kSeconds,  ///< now + limit - executed: service is time
  kExact,    ///< now + limit / GPUs - executed seconds
  kFloor,    ///< now + floor((limit - executed seconds) / GPUs): Tiresias' simulator, as it is
  kCeil      ///< now + ceil(limit / GPUs) - executed seconds: Muri's simulator
};

struct ServiceQueues {
  static constexpr std::size_t kQueues = 3;
  std::array<double, kQueues - 1> limits{3250, 7200};  ///< Tiresias' simulator
  bool by_gpus = true;                                 ///< service is GPU-time, else time
  Crossing crossing = Crossing::kFloor;

  [[nodiscard]] double service(const ClusterJob& job) const noexcept {
    return by_gpus ? job.attained * job.gpus : job.attained;
  }

  /// The queue of a job that arrives: the first, unless it ran before a restart.
  [[nodiscard]] std::uint8_t level_of(const ClusterJob& job) const noexcept {
    std::uint8_t level = 0;
    while (level + 1U < kQueues && job.attained > 0 && service(job) >= limits[level]) ++level;
    return level;
  }

  /// Moves to the next queue each job whose service has reached the limit of its own, in the order
  /// of arrival, one queue a decision. Candidates are those that run and those that moved last time
  /// (`notes.lists[moved_list]`). Calls `move(job, from)`.
  template <typename Move>
  void demote(const ClusterView& view, Notes& notes, std::size_t moved_list,
              const Move& move) const;

  /// The first moment at which a job of `running` crosses its limit.
  [[nodiscard]] Time next_crossing(const ClusterView& view, const Notes& notes,
                                   const std::vector<JobIndex>& running) const;
};

/// Reads first-limit, second-limit (seconds, or GPU-seconds where service is counted `by_gpus`) and
/// crossing (exact, floor or ceil).
[[nodiscard]] ServiceQueues read_service_queues(Options& options, bool by_gpus);

template <typename Move>
void ServiceQueues::demote(const ClusterView& view, Notes& notes, std::size_t moved_list,
                           const Move& move) const {
  std::vector<JobIndex> due;
  const auto look = [&](JobIndex job) {
    const std::size_t level = notes.level[job];
    if (view.jobs[job].phase == JobPhase::kEnded || level + 1 >= kQueues) return;
    if (service(view.jobs[job]) >= limits[level]) due.push_back(job);
  };
  for (const JobIndex job : view.running) look(job);
  for (const JobIndex job : notes.lists[moved_list]) {
    if (view.jobs[job].phase == JobPhase::kWaiting) look(job);
  }
  std::sort(due.begin(), due.end());
  for (const JobIndex job : due) {
    move(job, notes.level[job]);
    ++notes.level[job];
  }
  notes.lists[moved_list] = std::move(due);
}

}  // namespace commensal::policies
