// SPDX-License-Identifier: Apache-2.0
// Means of what ended, by keys.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "coordinator/prediction/duration_predictor.h"

namespace commensal::prediction {

struct Mean {
  double sum = 0;
  std::uint64_t count = 0;

  void add(double value) {
    sum += value;
    ++count;
  }
  [[nodiscard]] double value() const { return sum / static_cast<double>(count); }
};

/// Sums and counts by a key of several texts. Thread safety: none.
class HistoryMeans {
 public:
  using Key = std::initializer_list<std::string_view>;

  void add(Key key, double seconds) { means_[joined(key)].add(seconds); }

  /// Returns what is known of a key; nothing has a count of zero.
  [[nodiscard]] Mean of(Key key) const {
    const auto found = means_.find(joined(key));
    return found == means_.end() ? Mean{} : found->second;
  }

 private:
  /// Texts of files hold no zero byte.
  static std::string joined(Key key) {
    std::string all;
    for (const std::string_view part : key) all.append(part).push_back('\0');
    return all;
  }

  std::unordered_map<std::string, Mean> means_;
};

/// Returns what a job asks for as a part of a key.
[[nodiscard]] inline std::string request_of(const Submission& job) {
  return std::to_string(job.gpus) + "x" + std::to_string(job.gpu_milli);
}

/// Predicts from all jobs, for one that is like none.
[[nodiscard]] inline Prediction from_all(const Mean& all) {
  if (all.count == 0) return {};
  return {.seconds = all.value(), .key = Prediction::kEverything, .alike = false};
}

}  // namespace commensal::prediction
