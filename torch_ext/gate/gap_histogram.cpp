// SPDX-License-Identifier: Apache-2.0
// Decayed counts, and quantiles of what survives.
#include "torch_ext/gate/gap_histogram.h"

#include <algorithm>

namespace commensal {
namespace {

constexpr double kGrowth = GapHistogram::kMemory / (GapHistogram::kMemory - 1.0);
constexpr double kMostUnit = 1e9;
/// How quickly a bucket's ends follow waits that no longer reach them.
constexpr double kForget = 1.0 / 16.0;

}  // namespace

void GapHistogram::add(Duration length) noexcept {
  const auto nanoseconds = static_cast<double>(std::max<Duration::rep>(0, length.count()));
  Bucket& bucket = buckets_[wire::gap_bucket(static_cast<std::uint64_t>(nanoseconds))];
  if (bucket.weight < unit_ * 1e-3) bucket.least = bucket.most = nanoseconds;
  bucket.least = std::min(nanoseconds, bucket.least + (nanoseconds - bucket.least) * kForget);
  bucket.most = std::max(nanoseconds, bucket.most + (nanoseconds - bucket.most) * kForget);
  bucket.weight += unit_;
  unit_ *= kGrowth;
  ++waits_;
  total_ += length;
  if (unit_ < kMostUnit) return;
  for (Bucket& each : buckets_) each.weight /= unit_;
  unit_ = 1.0;
}

/// The length that waits of this weight exceeded.
double GapHistogram::length_at(double weight_above) const noexcept {
  double above = 0.0;
  for (std::size_t i = wire::kGapBuckets; i-- > 0;) {
    const Bucket& bucket = buckets_[i];
    if (bucket.weight <= 0.0) continue;
    if (above + bucket.weight >= weight_above) {
      const double inside = std::clamp((weight_above - above) / bucket.weight, 0.0, 1.0);
      return bucket.most - inside * (bucket.most - bucket.least);
    }
    above += bucket.weight;
  }
  return 0.0;
}

Duration GapHistogram::expected(Duration waited) const noexcept {
  const auto first =
      wire::gap_bucket(static_cast<std::uint64_t>(std::max<Duration::rep>(0, waited.count())));
  double lasted = 0.0;
  for (std::size_t i = first; i < wire::kGapBuckets; ++i) lasted += buckets_[i].weight;
  // The newest wait weighs less than `unit_` already.
  if (lasted * kGrowth * kGrowth * kGrowth < kLeastWaits * unit_) return {};
  return Duration{static_cast<Duration::rep>(length_at(kSure * lasted))};
}

void GapHistogram::expected(
    std::array<std::uint64_t, wire::kGapBuckets>& nanoseconds) const noexcept {
  // From the longest down: `lasted` grows, and with it the weight that must lie above the answer,
  // whose bucket therefore only moves down.
  double lasted = 0.0;
  double above = 0.0;  // of the buckets beyond `answer`
  std::size_t answer = wire::kGapBuckets - 1;
  for (std::size_t i = wire::kGapBuckets; i-- > 0;) {
    lasted += buckets_[i].weight;
    if (lasted * kGrowth * kGrowth * kGrowth < kLeastWaits * unit_) {
      nanoseconds[i] = 0;
      continue;
    }
    const double wanted = kSure * lasted;
    while (answer > 0 && above + buckets_[answer].weight < wanted) {
      above += buckets_[answer--].weight;
    }
    const Bucket& bucket = buckets_[answer];
    const double inside =
        bucket.weight > 0.0 ? std::clamp((wanted - above) / bucket.weight, 0.0, 1.0) : 0.0;
    nanoseconds[i] =
        static_cast<std::uint64_t>(bucket.most - inside * (bucket.most - bucket.least));
  }
}

Duration GapHistogram::quantile(double fraction) const noexcept {
  double all = 0.0;
  for (const Bucket& bucket : buckets_) all += bucket.weight;
  if (all <= 0.0) return {};
  return Duration{static_cast<Duration::rep>(length_at((1.0 - fraction) * all))};
}

double GapHistogram::count(std::size_t bucket) const noexcept {
  return buckets_[bucket].weight / unit_;
}

}  // namespace commensal
