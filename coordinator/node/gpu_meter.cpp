// SPDX-License-Identifier: Apache-2.0
// Adds up what is not waited, and averages what a driver says.
#include "coordinator/node/gpu_meter.h"

#include <algorithm>

namespace commensal::node {

void GpuTimeMeter::note(const WaitsShown& shown, TimePoint now) {
  Duration waited = shown.ended;
  if (shown.since) {
    waited += std::max(now - *shown.since, Duration{});
    if (looks_ >= kMostLooks) {
      looks_ /= 2;
      at_work_ /= 2;
    }
    looks_ += 1;
    if (shown.works) at_work_ += 1;
  }
  if (last_ && now > *last_) {
    const Duration passed = now - *last_;
    // A wait that was only concluded, from silence, may turn out to be none.
    const Duration waiting = std::clamp(waited - waited_, Duration{}, passed);
    const double idle = looks_ > 0.0 ? 1.0 - at_work_ / looks_ : 1.0;
    busy_ += passed - std::chrono::duration_cast<Duration>(waiting * idle);
  }
  last_ = now;
  waited_ = waited;
}

void DriverBusyShare::note(double share, TimePoint now) {
  shares_.emplace_back(now, std::clamp(share, 0.0, 1.0));
  while (shares_.front().first < now - keep_) shares_.pop_front();
}

std::optional<double> DriverBusyShare::mean(TimePoint now) const noexcept {
  double sum = 0.0;
  double count = 0.0;
  for (const auto& [at, share] : shares_) {
    if (at < now - keep_) continue;
    sum += share;
    count += 1.0;
  }
  if (count == 0.0) return std::nullopt;
  return sum / count;
}

}  // namespace commensal::node
