// SPDX-License-Identifier: Apache-2.0
// Least squares whose unknowns are not negative.
#pragma once

#include <vector>

namespace commensal::prediction {

/// Returns x >= 0 for which the sum of squares of rows * x - wanted is least, by the active-set
/// method of Lawson and Hanson (Solving Least Squares Problems, 1974); Eigen solves what is
/// unbounded in it. Of columns that say the same, only one is used.
/// @throws std::invalid_argument for no row, or rows that do not have equally many finite values.
[[nodiscard]] std::vector<double> non_negative_least_squares(
    const std::vector<std::vector<double>>& rows, const std::vector<double>& wanted);

}  // namespace commensal::prediction
