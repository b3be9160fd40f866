// SPDX-License-Identifier: Apache-2.0
// How Optimus (EuroSys '18) predicts a job: its loss by steps, its speed by workers and servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace commensal::prediction {

struct LossPoint {
  double step = 0;
  double loss = 0;
};

/// loss(k) = 1 / (b0 k + b1) + b2, in shares of the largest loss; b0 and b1 by non-negative least
/// squares on points without outliers (each inner one is the median of itself and its neighbours),
/// b2 the one of fifty between zero and the least loss that fits best.
class LossCurve {
 public:
  static constexpr std::size_t kLeastPoints = 3;

  /// Returns a curve; nothing for fewer than three points, or losses that are not above zero.
  [[nodiscard]] static std::optional<LossCurve> fit(const std::vector<LossPoint>& points);

  [[nodiscard]] double loss(double step) const;

  /// Returns the steps from `step` until the loss falls by less than `threshold` (a share of the
  /// largest loss) in `epoch_steps`; zero if it does already.
  [[nodiscard]] double steps_until_flat(double step, double epoch_steps, double threshold) const;

 private:
  LossCurve(double b0, double b1, double b2, double largest)
      : b0_(b0), b1_(b1), b2_(b2), largest_(largest) {}

  double b0_;
  double b1_;
  double b2_;
  double largest_;
};

enum class Training : std::uint8_t { kSynchronous, kAsynchronous };

struct SpeedPoint {
  double workers = 1;
  double servers = 1;
  double batch = 1;    ///< samples of a step over all workers; of no account if asynchronous
  double seconds = 0;  ///< of a step: of all workers, or of one if asynchronous
};

/// Synchronous: seconds = t0 M / w + t1 + t2 w / p + t3 w + t4 p, for M samples, w workers and p
/// servers. Asynchronous: t0 + t1 w / p + t2 w + t3 p. All by non-negative least squares.
class SpeedFit {
 public:
  /// @throws std::invalid_argument for no point, or one without a worker or server.
  SpeedFit(Training training, const std::vector<SpeedPoint>& points);

  /// Returns the seconds of a step; those of the point are of no account.
  [[nodiscard]] double seconds(const SpeedPoint& point) const;

 private:
  Training training_;
  std::vector<double> weights_;
};

}  // namespace commensal::prediction
