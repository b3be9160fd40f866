// SPDX-License-Identifier: Apache-2.0
// What the page shows of a cluster, from whoever knows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// How much of everything a picture shows, at most.
struct PictureSize {
  std::size_t placed = 2000;
  std::size_t parked = 500;
  std::size_t waiting = 500;
  std::size_t ended = 100;
  std::size_t events = 200;
};

/// Jobs that have devices, by class, and that wait.
struct JobCounts {
  std::int64_t guaranteed = 0;
  std::int64_t opportunistic = 0;
  std::int64_t waiting = 0;
};

/// A cluster as it is shown. Thread safety: none; asked by the coordinator's own thread.
class ShownCluster {
 public:
  virtual ~ShownCluster() = default;

  /// Returns what there is: `coordinator`, `nodes`, `tenants` as those requests answer them, `jobs`
  /// and `events` as `queue` and `explain` do, and `summary` with the numbers of all.
  /// @throws StoreFailed.
  [[nodiscard]] virtual nlohmann::json picture(const PictureSize& size) = 0;
  /// Grows whenever `picture` may have changed.
  [[nodiscard]] virtual std::uint64_t revision() const noexcept = 0;
  [[nodiscard]] virtual JobCounts counts() const = 0;
  /// Returns the time of day that it goes by.
  [[nodiscard]] virtual WallTime wall_time() const = 0;
};

}  // namespace commensal::cluster
