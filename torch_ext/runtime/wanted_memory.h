// SPDX-License-Identifier: Apache-2.0
// How much device memory a job would use without a limit: the coordinator gives the rest away.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/elastic_allocator.h"

namespace commensal {

/// Returns what a job needs now: its blocks, but for those of tags that were parked or dropped by
/// request, or the chunks that they lie in; and what PyTorch's own allocator holds.
[[nodiscard]] inline Bytes needed_now(const AllocatorStats& stats,
                                      const std::vector<TagResidency>& tags) {
  Bytes away = stats.dropped;
  for (const TagResidency& tag : tags) {
    if (tag.parked) away += tag.saved;
  }
  return stats.outside + std::max(saturating_sub(stats.live, away),
                                  saturating_sub(stats.device, stats.cached) + stats.host);
}

/// Keeps the largest need of the last steps. Samples older than both `kSteps` steps and `kTime`
/// no longer count, so that a need that has gone is given back and a peak within a step is not
/// forgotten between two of them. Not thread-safe.
class WantedMemory {
 public:
  static constexpr std::uint64_t kSteps = 8;
  static constexpr Duration kTime = std::chrono::seconds{10};

  void note(Bytes bytes, std::uint64_t step, TimePoint now) {
    while (!samples_.empty() && samples_.back().bytes <= bytes) samples_.pop_back();
    samples_.push_back({bytes, step, now});
    while (samples_.size() > 1 && step - samples_.front().step > kSteps &&
           now - samples_.front().time > kTime) {
      samples_.pop_front();
    }
  }
  [[nodiscard]] Bytes wanted() const noexcept {
    return samples_.empty() ? Bytes{} : samples_.front().bytes;
  }

 private:
  struct Sample {
    Bytes bytes;
    std::uint64_t step;
    TimePoint time;
  };
  std::deque<Sample> samples_;  // falling sizes, rising times
};

}  // namespace commensal
