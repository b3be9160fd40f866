// SPDX-License-Identifier: Apache-2.0
// Medians of step times, and how sure they are.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace commensal::node {

/// A median, or another quantile, and how sure it is (its standard error), in seconds.
struct MedianEstimate {
  double seconds = 0.0;
  double error = 0.0;
  std::size_t steps = 0;
};

/// Slowdown = shared / baseline - 1, with its standard error.
struct SlowdownEstimate {
  double value = 0.0;
  double error = 0.0;
  std::size_t steps = 0;  ///< shared ones that it is made of
  /// What it is at least, beyond doubt: two standard errors less. With one, chance alone would
  /// cross any border once in six looks, and there are two looks a second.
  [[nodiscard]] double certain() const noexcept { return value - 2.0 * error; }
  /// What it is at most, beyond doubt.
  [[nodiscard]] double possible() const noexcept { return value + 2.0 * error; }
};

/// A standard error up to which a figure is told whatever its size: 0.3 % +- 2 % says that little
/// is lost, 20 % +- 30 % says nothing.
inline constexpr double kTellingError = 0.05;

/// Says why a slowdown is not told as a figure: it was not measured yet, or its standard error is
/// above `kTellingError` and larger than the slowdown itself. Pure; empty: the figure is known.
[[nodiscard]] std::string why_not_known(const std::optional<SlowdownEstimate>& slowdown);

/// Returns the median. @param values  at least one.
[[nodiscard]] double median(std::vector<double> values);

/// Returns the median absolute deviation from the median, times 1.4826: of a normal distribution
/// its standard deviation. @param values  at least one.
[[nodiscard]] double deviation(std::vector<double> values);

/// Returns the standard error of a median: 1.2533 deviations over the root of their number, and
/// more for a few values, of which the spread is itself a guess; at least a thousandth of the
/// median.
[[nodiscard]] double error_of_median(const std::vector<double>& values);

}  // namespace commensal::node
