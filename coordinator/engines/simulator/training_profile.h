// SPDX-License-Identifier: Apache-2.0
// What was measured of a training application: how long its steps take where it runs, and what its
// epochs need at each batch size.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/engines/simulator/scattered_points.h"

namespace commensal::simulator {

/// GPUs on each of the nodes of a job, in its order.
using NodeCounts = std::vector<std::int32_t>;

/// Returns a job's GPUs packed on as few nodes as can be; the machines of the profiles have four.
[[nodiscard]] NodeCounts packed(std::int32_t gpus);

/// Tables as they were read.
struct MeasuredSteps {
  struct Row {
    double local_batch = 0;
    Value2 seconds{};  ///< of a step, and of these what synchronising takes
  };
  std::map<std::string, std::vector<Row>> placements;  ///< by GPUs a node, a digit each
  std::vector<Point3> scaled;                          ///< nodes, GPUs, local batch
  std::vector<Value2> scaled_seconds;
};
struct MeasuredEpoch {
  double progress = 0;    ///< when it ends
  double iterations = 0;  ///< when it ends
  double metric = 0;      ///< of validation: a loss, or an accuracy of at most 1 or 100
  double grad_sqr = 0;
  double grad_var = 0;
};
using MeasuredEpochs = std::map<std::int32_t, std::vector<MeasuredEpoch>>;  ///< by batch size

/// How a batch is divided among GPUs.
struct BatchSplit {
  std::int32_t gpus = 1;
  std::int32_t atomic = 0;         ///< samples that a GPU takes at a time
  std::int32_t accumulations = 0;  ///< times it does so before the last one, which synchronises
  [[nodiscard]] std::int32_t batch() const noexcept { return gpus * atomic * (accumulations + 1); }
  bool operator==(const BatchSplit&) const = default;
};

/// Rules of petuum/adaptdl, branch osdi21-artifact, simulator/applications.py and simulator.py.
/// Thread safety: does not change.
class TrainingProfile {
 public:
  /// @throws std::invalid_argument if a table is empty or the steps cannot be triangulated.
  TrainingProfile(std::string name, const MeasuredSteps& steps, MeasuredEpochs epochs);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::int32_t epochs() const noexcept { return epochs_; }
  [[nodiscard]] std::int32_t smallest_batch() const { return measured_.begin()->first; }
  [[nodiscard]] std::int32_t largest_batch() const { return measured_.rbegin()->first; }
  /// Most GPUs between which a batch can be divided.
  [[nodiscard]] std::int32_t most_gpus(std::int32_t batch) const;
  /// Whether epochs were measured at this batch size or around it.
  [[nodiscard]] bool covers(std::int32_t batch) const;

  /// Divides a batch. One GPU accumulates at least once if the batch is larger than the smallest,
  /// or whenever `always_accumulates`.
  [[nodiscard]] BatchSplit split(std::int32_t batch, std::int32_t gpus,
                                 bool always_accumulates = false) const;

  /// Returns how long a step takes; nothing where that was not measured.
  [[nodiscard]] std::optional<double> step_seconds(const NodeCounts& placement,
                                                   const BatchSplit& split) const;

  /// Returns how many steps of the smallest batch one step of `batch` is worth during an epoch.
  /// `batch` is covered (all of these).
  [[nodiscard]] double gain(std::int32_t batch, std::int32_t epoch) const;
  /// Returns the progress at which an epoch ends, in steps of the smallest batch.
  [[nodiscard]] double progress_after(std::int32_t epoch) const;
  /// Returns the steps from the end of `epoch` to the end of the last one, as Optimus is told; at
  /// least one.
  [[nodiscard]] double remaining_steps(std::int32_t batch, std::int32_t epoch) const;

  /// Returns the steps until an epoch ends.
  [[nodiscard]] double steps_after(std::int32_t batch, std::int32_t epoch) const;
  /// Returns the loss when an epoch ends: the metric if it falls, else what it lacks to its most.
  [[nodiscard]] double loss_after(std::int32_t batch, std::int32_t epoch) const;

  /// Returns how long all epochs take on packed GPUs; nothing where that was not measured.
  [[nodiscard]] std::optional<double> seconds_alone(std::int32_t batch, std::int32_t gpus) const;

 private:
  [[nodiscard]] double between(std::int32_t batch, std::int32_t epoch,
                               double MeasuredEpoch::*column) const;
  [[nodiscard]] std::optional<Value2> times(const NodeCounts& placement, double local_batch) const;

  std::string name_;
  std::map<std::string, std::vector<MeasuredSteps::Row>> placements_;  // by local batch
  ScatteredPoints scaled_;
  MeasuredEpochs measured_;
  std::int32_t epochs_ = 0;
  std::int32_t smallest_local_ = 0;
  std::int32_t largest_local_ = 0;
};

/// Profiles by application.
using TrainingProfiles = std::map<std::string, TrainingProfile, std::less<>>;

}  // namespace commensal::simulator
