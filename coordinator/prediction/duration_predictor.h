// SPDX-License-Identifier: Apache-2.0
// How long a job will take, from what is known when it is submitted and from jobs that have ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace commensal::prediction {

/// What a job is known by before it runs. An empty text: not stated, so it is like no other.
struct Submission {
  std::string_view user;
  std::string_view group;  ///< of jobs that do the same: script, arguments and inputs
  std::string_view name;   ///< as its user calls it
  std::int32_t gpus = 1;
  std::int32_t gpu_milli = 1000;  ///< of each of them
};

/// By which jobs a duration was predicted, from the finest to none at all.
struct Prediction {
  double seconds = 0;
  std::string_view key = kNothing;  ///< a literal: what these jobs have in common
  bool alike = false;               ///< they are like this one; else all or none of them

  static constexpr std::string_view kEverything = "all jobs";
  static constexpr std::string_view kNothing = "nothing";
};

/// Predicts durations. Knows only what it was told: tell it of a job when that has ended. Thread
/// safety: none.
class DurationPredictor {
 public:
  virtual ~DurationPredictor() = default;

  /// Predicts from jobs like this one; from all of them if there was none, and zero seconds while
  /// nothing has ended: who is unknown goes first, as in PAI's simulator.
  [[nodiscard]] virtual Prediction predict(const Submission& job) const = 0;

  /// Takes in how long a job took that has ended.
  virtual void learn(const Submission& job, double seconds) = 0;
};

/// Names of predictors:
///   group-request  means by (group, user, request), else (group, user), else (group): PAI
///   group          means by (group, user), else (group)
///   user           means by user
///   qssf           means by user and similar names: similar_names_predictor.h
[[nodiscard]] const std::vector<std::string_view>& all_predictors();

/// @throws std::invalid_argument for a name that does not exist.
[[nodiscard]] std::unique_ptr<DurationPredictor> make_predictor(std::string_view name);

}  // namespace commensal::prediction
