// SPDX-License-Identifier: Apache-2.0
// What jobs usually ask for, and how much idle GPU of a node is of no use to them.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// What a job asks for, as far as it matters for fragments.
struct TypicalRequest {
  std::int64_t cpu_milli = 0;
  std::int32_t gpu_milli = 0;  ///< of each GPU
  std::int32_t gpus = 0;
  std::uint32_t gpu_types = 0;
  auto operator<=>(const TypicalRequest&) const = default;
};
[[nodiscard]] TypicalRequest request_of(const ClusterJob& job) noexcept;

/// Requests with their frequencies, the most frequent ones that together make up 95 % of all jobs.
/// Thread safety: does not change.
class TypicalJobs {
 public:
  /// Counts by shape of what a node's cores suffice for.
  using Weights = std::vector<std::int64_t>;

  /// `requests` with how often each was seen; each once.
  explicit TypicalJobs(std::vector<std::pair<TypicalRequest, std::int64_t>> requests);

  /// Jobs that are counted.
  [[nodiscard]] std::int64_t weight() const noexcept { return weight_; }

  /// Writes how many typical jobs of each shape of GPUs a node of this type with so many cores free
  /// has cores for.
  void weigh(std::uint32_t gpu_type, std::int64_t cpu_milli, Weights& weights) const;

  /// Returns the fragment of a node times `weight()`, in thousandths of a GPU: idle GPU that a
  /// typical job cannot use, summed over the typical jobs. All of it counts for a job without GPUs,
  /// of other types, or that does not fit; else what is idle on GPUs with less left than it asks of
  /// each.
  [[nodiscard]] std::int64_t fragment(std::span<const std::int32_t> left,
                                      const Weights& weights) const;

 private:
  struct Shape {
    std::int32_t gpu_milli;
    std::int32_t gpus;
    std::uint32_t gpu_types;
    std::vector<std::pair<std::int64_t, std::int64_t>> upto;  // cores, and jobs with at most these
  };
  std::vector<Shape> shapes_;  // by gpu_milli, descending
  std::int64_t weight_ = 0;
};

}  // namespace commensal::policies
