// SPDX-License-Identifier: Apache-2.0
// What sampled ops tell about a job: for how much of the time ops run, and of what kind they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"

namespace commensal {

/// Each op of a window is sampled with this probability.
inline constexpr double kSampleProbability = 0.01;

/// An op that was sampled.
struct OpSample {
  std::string_view name;
  std::string_view work;  ///< "compute" or "memory"; else it counts only as a sample
  Duration took{};        ///< from its begin to its end
  Duration ran{};         ///< of that, its thread was on a core
};

/// What is known from samples. Times are estimates for all ops of the windows: what the samples
/// took, divided by the probability.
struct OpSampleSums {
  struct Op {
    std::string name;
    std::string work;
    std::uint64_t samples = 0;
    Duration time{};
  };
  std::uint64_t samples = 0;       ///< ops of any kind
  std::uint64_t unclassified = 0;  ///< of these: not known to do their work themselves
  Duration compute{};              ///< time in ops of this kind, summed over threads
  Duration memory{};
  Duration ran{};       ///< of both: their threads were on a core
  std::vector<Op> top;  ///< by time, the longest first
};

/// Collects samples in fixed memory. Thread safety: any member from any thread.
class OpSamples {
 public:
  static constexpr std::size_t kMostNames = 64;  ///< further ones count in the sums alone
  static constexpr std::size_t kTop = 8;

  void note(const OpSample& sample) noexcept;
  [[nodiscard]] OpSampleSums sums() const;

 private:
  struct Named {
    std::array<char, 64> name{};  // longer names are cut
    bool compute = false;
    std::uint64_t samples = 0;
    Duration time{};
  };
  mutable Mutex mutex_;
  std::uint64_t samples_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  std::uint64_t unclassified_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  Duration compute_ COMMENSAL_GUARDED_BY(mutex_){};
  Duration memory_ COMMENSAL_GUARDED_BY(mutex_){};
  Duration ran_ COMMENSAL_GUARDED_BY(mutex_){};
  std::size_t names_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  std::array<Named, kMostNames> named_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
