// SPDX-License-Identifier: Apache-2.0
// Robust statistics of a few numbers.
#include "coordinator/node/slowdown_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace commensal::node {
namespace {

constexpr double kMadToDeviation = 1.4826;
constexpr double kErrorOfMedian = 1.2533;
constexpr double kLeastRelativeError = 1e-3;

}  // namespace

std::string why_not_known(const std::optional<SlowdownEstimate>& slowdown) {
  if (!slowdown) return "not measured yet";
  if (slowdown->error <= std::max(kTellingError, std::abs(slowdown->value))) return {};
  return fmt::format("not known yet: {:.1f} % from {} steps, with a standard error of {:.1f} %",
                     100 * slowdown->value, slowdown->steps, 100 * slowdown->error);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double deviation(std::vector<double> values) {
  const double middle = median(values);
  for (double& value : values) value = std::abs(value - middle);
  return kMadToDeviation * median(std::move(values));
}

double error_of_median(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double error = std::max(kErrorOfMedian * deviation(values) / std::sqrt(n),
                                kLeastRelativeError * std::abs(median(values)));
  return error * (1.0 + 2.0 / n);
}

}  // namespace commensal::node
