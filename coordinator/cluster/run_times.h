// SPDX-License-Identifier: Apache-2.0
// How long jobs run, from those like them that have ended.
#pragma once

#include <memory>
#include <optional>

#include "coordinator/cluster/job.h"
#include "coordinator/prediction/duration_predictor.h"

namespace commensal::cluster {

struct ExpectedTime {
  double seconds = 0;
  bool alike = true;  ///< by jobs like it, or its time limit; else by all jobs that have ended
  bool operator==(const ExpectedTime&) const = default;
};

/// Means of what ended by itself, by tenant, folder, name and devices, the finest that has a
/// history (PAI's keys, duration_predictor.h). Thread safety: none.
class RunTimes {
 public:
  RunTimes() : predictor_(prediction::make_predictor("group-request")) {}

  /// A job of this kind ran so long.
  void learn(const JobSpec& spec, double seconds);

  /// Returns how long a job of this kind takes from its start, its time limit at most, of a
  /// pre-run what it was given; absent while nothing is known: no job has ended, and it has no
  /// limit.
  [[nodiscard]] std::optional<ExpectedTime> expect(const JobSpec& spec) const;

 private:
  std::unique_ptr<prediction::DurationPredictor> predictor_;
};

}  // namespace commensal::cluster
