// SPDX-License-Identifier: Apache-2.0
// Shares of time on each type of GPU, as Gavel's objectives divide them: linear programs, by CLP.
#pragma once

#include <cstddef>
#include <vector>

namespace commensal::policies {

/// Jobs, in rows, by types of GPU, in columns.
using ByJobAndType = std::vector<std::vector<double>>;

/// Two jobs that may share their GPUs, and how fast they are then, by type: two zeros where they do
/// not fit, or are no faster together than one after the other.
struct SharedUnit {
  std::size_t first = 0;
  std::size_t second = 0;
  std::vector<double> first_rates;
  std::vector<double> second_rates;
};

struct ShareProblem {
  ByJobAndType rates;               ///< steps per second, alone
  std::vector<double> gpus;         ///< by job
  std::vector<double> weights;      ///< by job
  std::vector<double> steps;        ///< by job: that are left
  std::vector<double> capacity;     ///< by type: GPUs
  std::vector<SharedUnit> pairs{};  ///< of jobs with equally many GPUs; none: nobody shares
};

/// Part of the time, 0 to 1, that a job is to run on a type, and behind the jobs each pair. In each
/// result a job has at most one in all, alone and in pairs, and the GPUs of a type are enough.
using Shares = ByJobAndType;

/// Divides every type equally.
[[nodiscard]] Shares equal_shares(const ShareProblem& problem);

/// Maximises the least of what jobs get, each measured by what it would get from a proportional
/// part of every type, and by its weight and GPUs.
[[nodiscard]] Shares max_min_shares(const ShareProblem& problem);

/// Finds the least time, within 5 %, in which all jobs can end.
/// @throws std::runtime_error if a job cannot run on any type.
[[nodiscard]] Shares least_makespan_shares(const ShareProblem& problem);

/// Maximises the sum of all rates.
[[nodiscard]] Shares max_throughput_shares(const ShareProblem& problem);

}  // namespace commensal::policies
