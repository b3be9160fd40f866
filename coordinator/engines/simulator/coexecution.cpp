// SPDX-License-Identifier: Apache-2.0
// Speeds of jobs that share a GPU, by who divides its time.
#include "coordinator/engines/simulator/coexecution.h"

#include <algorithm>
#include <numeric>

namespace commensal::simulator {
namespace {

SharingSpeeds behind_the_gate(const SharingModel& model, double guaranteed_busy,
                              std::span<const double> others) {
  SharingSpeeds speeds;
  if (others.empty()) return speeds;
  double free = 1;
  if (guaranteed_busy > 0) {
    speeds.guaranteed = 1 / (1 + model.slo);
    free = model.efficiency * (1 - guaranteed_busy / (1 + model.slo));
  }
  // Each wants its own busy share of the time; together they want this much.
  const double wanted = std::accumulate(others.begin(), others.end(), 0.0);
  speeds.opportunistic = wanted > 0 ? std::min(1.0, free / wanted) : 1.0;
  return speeds;
}

/// Without classes: everybody is slowed alike.
SharingSpeeds all_alike(double guaranteed_busy, std::span<const double> others, bool loses_idle) {
  double wanted = guaranteed_busy + std::accumulate(others.begin(), others.end(), 0.0);
  const std::size_t jobs = others.size() + (guaranteed_busy > 0 ? 1 : 0);
  if (loses_idle && jobs > 1) wanted = static_cast<double>(jobs);
  const double speed = wanted > 1 ? 1 / wanted : 1.0;
  return {.guaranteed = speed, .opportunistic = speed};
}

}  // namespace

SharingSpeeds speeds_on_gpu(const SharingModel& model, double guaranteed_busy,
                            std::span<const double> others) {
  switch (model.sharing) {
    case Sharing::kGate: return behind_the_gate(model, guaranteed_busy, others);
    case Sharing::kDefault: return all_alike(guaranteed_busy, others, true);
    case Sharing::kMps: return all_alike(guaranteed_busy, others, false);
  }
  return {};
}

}  // namespace commensal::simulator
