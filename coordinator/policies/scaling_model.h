// SPDX-License-Identifier: Apache-2.0
// What is known about how jobs speed up with GPUs, and how much they have left.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/prediction/optimus_fits.h"

namespace commensal::policies {

struct ClusterJob;

/// Measured, of jobs that are known by their `profile` and `epoch`. Pure. Thread safety: does not
/// change.
class ScalingModel {
 public:
  virtual ~ScalingModel() = default;

  /// Seconds of one step of `job` on so many GPUs, packed on as few nodes as can be; nothing if
  /// that is not known.
  [[nodiscard]] virtual std::optional<double> step_seconds(const ClusterJob& job,
                                                           std::int32_t gpus) const = 0;

  /// Steps that `job` has left at its batch size, at least one.
  [[nodiscard]] virtual double remaining_steps(const ClusterJob& job) const = 0;

  /// Steps of an epoch of `job`.
  [[nodiscard]] virtual double epoch_steps(const ClusterJob& job) const = 0;

  /// Samples of a step of `job`.
  [[nodiscard]] virtual double batch(const ClusterJob& job) const = 0;

  /// The loss of `job` at the end of each epoch so far.
  [[nodiscard]] virtual std::vector<prediction::LossPoint> losses(const ClusterJob& job) const = 0;
};

}  // namespace commensal::policies
