// SPDX-License-Identifier: Apache-2.0
// Queues in front of types of GPU. Source: stanford-futuredata/gavel, scheduler/policies/fifo.py.
#include "coordinator/policies/gavel_fifo.h"

#include <algorithm>
#include <deque>

namespace commensal::policies {
namespace {

/// Types with enough GPUs, by column.
std::vector<std::size_t> fitting(const std::vector<double>& free, double gpus) {
  std::vector<std::size_t> types;
  for (std::size_t type = 0; type < free.size(); ++type) {
    if (free[type] > 0 && free[type] >= gpus) types.push_back(type);
  }
  return types;
}

Shares none(const ShareProblem& problem) {
  return Shares(problem.gpus.size(), std::vector<double>(problem.capacity.size(), 0));
}

}  // namespace

Shares fastest_types(const ShareProblem& problem) {
  Shares shares = none(problem);
  std::vector<double> free = problem.capacity;
  for (std::size_t row = 0; row < problem.gpus.size(); ++row) {
    const std::vector<std::size_t> types = fitting(free, problem.gpus[row]);
    if (types.empty()) break;
    const std::size_t best =
        *std::max_element(types.begin(), types.end(), [&](std::size_t a, std::size_t b) {
          return problem.rates[row][a] < problem.rates[row][b];
        });
    if (problem.rates[row][best] <= 0) continue;
    shares[row][best] = 1;
    free[best] -= problem.gpus[row];
  }
  return shares;
}

Shares kept_types(const std::vector<JobIndex>& jobs, const ShareProblem& problem, Notes& notes,
                  SeededRandom& random) {
  std::vector<std::uint8_t>& held = notes.level;
  held.resize(std::max<std::size_t>(held.size(), jobs.empty() ? 0 : jobs.back() + 1));
  std::vector<double> free = problem.capacity;
  std::deque<std::size_t> queue;
  for (std::size_t row = 0; row < jobs.size(); ++row) {
    if (held[jobs[row]] == 0) queue.push_back(row);
  }
  const auto take = [&](std::size_t row, std::size_t type) {
    held[jobs[row]] = static_cast<std::uint8_t>(type + 1);
    free[type] -= problem.gpus[row];
  };
  const std::vector<std::uint8_t> before = held;
  std::size_t row = 0;
  for (JobIndex job = 0; job < before.size(); ++job) {
    const bool active = row < jobs.size() && jobs[row] == job;
    const std::size_t at = active ? row++ : 0;
    if (before[job] == 0) continue;
    const std::size_t type = before[job] - 1U;
    if (active) {
      free[type] -= problem.gpus[at];
      continue;
    }
    held[job] = 0;
    if (queue.empty() || problem.gpus[queue.front()] > free[type]) continue;
    if (problem.rates[queue.front()][type] <= 0) continue;
    take(queue.front(), type);
    queue.pop_front();
  }
  std::vector<std::size_t> open;
  for (std::size_t type = 0; type < free.size(); ++type) {
    if (free[type] > 0) open.push_back(type);
  }
  for (; !queue.empty() && !open.empty(); queue.pop_front()) {
    const std::size_t next = queue.front();
    std::vector<std::size_t> fits;  // positions in `open`
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (free[open[i]] >= problem.gpus[next]) fits.push_back(i);
    }
    if (fits.empty()) break;
    const std::size_t drawn = fits[random.below(static_cast<std::uint32_t>(fits.size()))];
    const std::size_t type = open.back();
    if (problem.rates[next][type] <= 0) continue;
    take(next, type);
    if (free[type] == 0) open.erase(open.begin() + static_cast<std::ptrdiff_t>(drawn));
  }
  Shares shares = none(problem);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (held[jobs[i]] != 0) shares[i][held[jobs[i]] - 1U] = 1;
  }
  return shares;
}

}  // namespace commensal::policies
