// SPDX-License-Identifier: Apache-2.0
// A small pool of GPUs on which the first step of a job is tried before its gang gets GPUs.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "coordinator/policies/cluster_view.h"

namespace commensal::simulator {

struct PreRunOptions {
  std::uint32_t pool = 0;  ///< GPUs besides those of the cluster; zero: nothing is tried
  double seconds = 120;    ///< until the first step is done
  std::int32_t from = 2;   ///< jobs of fewer GPUs are not tried: that would save nothing
};

/// First come, first served; one GPU a job. Shows what does not need the gang: errors of users.
class PreRunPool {
 public:
  explicit PreRunPool(const PreRunOptions& options)
      : options_(options), free_at_(std::greater<>{}, std::vector<policies::Time>(options.pool)) {}

  struct Trial {
    policies::Time begin = 0;
    policies::Time end = 0;
    bool fails = false;
    [[nodiscard]] double seconds() const { return end - begin; }
  };

  /// Tries a job; they come in the order of `submit`. `error`: its user's, in seconds of work.
  /// @return absent: it is not tried.
  [[nodiscard]] std::optional<Trial> try_out(policies::Time submit, std::int32_t gpus,
                                             double duration, std::optional<double> error) {
    if (options_.pool == 0 || gpus < options_.from) return std::nullopt;
    const policies::Time begin = std::max(submit, free_at_.top());
    const double step = std::min(options_.seconds, duration);
    const bool fails = error && *error < step;
    free_at_.pop();
    free_at_.push(begin + (fails ? *error : step));
    return Trial{begin, begin + (fails ? *error : step), fails};
  }

 private:
  PreRunOptions options_;
  std::priority_queue<policies::Time, std::vector<policies::Time>, std::greater<>> free_at_;
};

}  // namespace commensal::simulator
