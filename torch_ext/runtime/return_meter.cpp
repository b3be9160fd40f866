// SPDX-License-Identifier: Apache-2.0
// Gaps, the patience, and what a copy was seen to take.
#include "torch_ext/runtime/return_meter.h"

#include <algorithm>

namespace commensal {
namespace {

/// Of the newest copy in what the next is foreseen to take.
constexpr double kNewest = 0.5;
/// A job that did not ask for so long waits for nothing: its wait begins anew.
constexpr Duration kForgotten = std::chrono::minutes{1};

}  // namespace

Bytes ReturnMeter::bytes_in(Duration time) const noexcept {
  constexpr double kMost = 1e18;
  const double bytes = static_cast<double>(time.count()) * rate_;
  return Bytes{static_cast<std::uint64_t>(std::clamp(bytes, 0.0, kMost))};
}

ReturnLeave ReturnMeter::leave(Bytes least, Bytes wanted) noexcept {
  const auto takes = static_cast<Duration::rep>(static_cast<double>(least.count()) / rate_);
  const Gate::Leave gap = gate_.leave(Duration{std::max<Duration::rep>(1, takes)});
  if (gap.fits > Duration::zero()) {
    waits_since_ = TimePoint{};
    return {std::clamp(bytes_in(gap.fits), least, wanted), ""};
  }
  const TimePoint now = clock_.now();
  if (waits_since_ == TimePoint{} || now - asked_ > kForgotten) waits_since_ = now;
  asked_ = now;
  const Duration waited = now - waits_since_;
  if (waited < kPatience) return {Bytes{}, gap.reason};
  waits_since_ = now;
  const auto share =
      std::chrono::duration_cast<Duration>(std::min(waited, kLongestSaved) * kOverdueShare);
  return {std::clamp(bytes_in(share), least, wanted), ""};
}

void ReturnMeter::returned(Bytes copied, Duration took) noexcept {
  if (copied.is_zero() || took <= Duration::zero()) return;
  const double seen = static_cast<double>(copied.count()) / static_cast<double>(took.count());
  rate_ += kNewest * (seen - rate_);
}

}  // namespace commensal
