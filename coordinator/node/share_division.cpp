// SPDX-License-Identifier: Apache-2.0
// Minimum shares first, then by deficit, with what nobody above its maximum can take going round.
#include "coordinator/node/share_division.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace commensal::node {
namespace {

constexpr double kNothing = 1e-12;

}  // namespace

std::vector<double> divide_share(double budget, const std::vector<ShareClaim>& claims) {
  std::vector<double> parts(claims.size(), 0.0);
  const double minima =
      std::accumulate(claims.begin(), claims.end(), 0.0,
                      [](double sum, const ShareClaim& claim) { return sum + claim.bounds.min; });
  const double scale = minima > budget ? std::max(0.0, budget) / minima : 1.0;
  for (std::size_t i = 0; i < claims.size(); ++i) parts[i] = scale * claims[i].bounds.min;
  double rest = budget - scale * minima;
  // Each round fills up at least one job, or gives all of the rest away.
  for (std::size_t round = 0; round <= claims.size() && rest > kNothing; ++round) {
    double weights = 0.0;
    bool by_deficit = false;
    for (std::size_t i = 0; i < claims.size(); ++i) {
      if (parts[i] < claims[i].bounds.max) by_deficit = by_deficit || claims[i].deficit > 0.0;
    }
    const auto weight = [&](std::size_t i) {
      if (parts[i] >= claims[i].bounds.max) return 0.0;
      return by_deficit ? claims[i].deficit : 1.0;
    };
    for (std::size_t i = 0; i < claims.size(); ++i) weights += weight(i);
    if (weights <= 0.0) break;
    const double now = rest;
    for (std::size_t i = 0; i < claims.size(); ++i) {
      const double more = now * weight(i) / weights;
      const double room = claims[i].bounds.max - parts[i];
      if (more <= 0.0) continue;
      // Filled up is exactly so: the next round must not take it for one with room.
      parts[i] = more < room ? parts[i] + more : claims[i].bounds.max;
      rest -= std::min(more, room);
    }
  }
  return parts;
}

std::vector<double> deficits(const std::vector<double>& used) {
  std::vector<double> result(used.size(), 0.0);
  if (used.empty()) return result;
  const double mean =
      std::accumulate(used.begin(), used.end(), 0.0) / static_cast<double>(used.size());
  for (std::size_t i = 0; i < used.size(); ++i) result[i] = std::max(0.0, mean - used[i]);
  return result;
}

}  // namespace commensal::node
