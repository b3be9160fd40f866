// SPDX-License-Identifier: Apache-2.0
// Lawson and Hanson: unknowns are let go of zero one by one, and put back when they would fall
// below.
#include "coordinator/prediction/nnls.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace commensal::prediction {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

class ActiveSet {
 public:
  ActiveSet(MatrixXd columns, VectorXd wanted)
      : columns_(std::move(columns)),
        wanted_(std::move(wanted)),
        x_(VectorXd::Zero(columns_.cols())) {}

  VectorXd solve() {
    const Index most = 3 * columns_.cols();
    for (Index turn = 0; turn < most && let_one_go(); ++turn) settle();
    return x_;
  }

 private:
  /// Frees the unknown along which the sum of squares falls most steeply, seen from its own scale.
  bool let_one_go() {
    const VectorXd residual = wanted_ - columns_ * x_;
    const double least = 1e-10 * std::max(wanted_.norm(), std::numeric_limits<double>::min());
    Index best = -1;
    double steepest = least;
    for (Index i = 0; i < columns_.cols(); ++i) {
      const double length = columns_.col(i).norm();
      if (length == 0 || std::find(free_.begin(), free_.end(), i) != free_.end()) continue;
      const double slope = columns_.col(i).dot(residual) / length;
      if (slope <= steepest) continue;
      steepest = slope;
      best = i;
    }
    if (best >= 0) free_.push_back(best);
    return best >= 0;
  }

  /// Goes towards the least squares of the free unknowns as far as none falls below zero.
  void settle() {
    while (!free_.empty()) {
      const VectorXd aim =
          MatrixXd(columns_(Eigen::all, free_)).colPivHouseholderQr().solve(wanted_);
      double way = 1;
      for (std::size_t i = 0; i < free_.size(); ++i) {
        const double from = x_[free_[i]];
        const double to = aim[static_cast<Index>(i)];
        if (to <= 0) way = std::min(way, from > 0 ? from / (from - to) : 0);
      }
      for (std::size_t i = 0; i < free_.size(); ++i) {
        double& value = x_[free_[i]];
        value += way * (aim[static_cast<Index>(i)] - value);
      }
      if (way == 1) return;
      const double zero = 1e-14 * std::max(1.0, x_.cwiseAbs().maxCoeff());
      std::erase_if(free_, [&](Index i) {
        if (x_[i] > zero) return false;
        x_[i] = 0;
        return true;
      });
    }
  }

  MatrixXd columns_;
  VectorXd wanted_;
  VectorXd x_;
  std::vector<Index> free_;
};

}  // namespace

std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& wanted) {
  if (rows.empty() || rows.size() != wanted.size()) {
    throw std::invalid_argument("least squares of " + std::to_string(rows.size()) + " rows and " +
                                std::to_string(wanted.size()) + " values");
  }
  const std::size_t unknowns = rows.front().size();
  MatrixXd columns(static_cast<Index>(rows.size()), static_cast<Index>(unknowns));
  VectorXd values(static_cast<Index>(rows.size()));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const bool finite = std::all_of(rows[row].begin(), rows[row].end(),
                                    [](double value) { return std::isfinite(value); });
    if (rows[row].size() != unknowns || !finite || !std::isfinite(wanted[row])) {
      throw std::invalid_argument("least squares: row " + std::to_string(row) +
                                  " has another length, or a value that is not finite");
    }
    for (std::size_t i = 0; i < unknowns; ++i) {
      columns(static_cast<Index>(row), static_cast<Index>(i)) = rows[row][i];
    }
    values[static_cast<Index>(row)] = wanted[row];
  }
  const VectorXd x = ActiveSet(std::move(columns), std::move(values)).solve();
  return {x.begin(), x.end()};
}

}  // namespace commensal::prediction
