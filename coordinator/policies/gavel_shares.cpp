// SPDX-License-Identifier: Apache-2.0
// Gavel's linear programs. Source: stanford-futuredata/gavel, scheduler/policies: isolated,
// max_min_fairness, min_total_duration, max_sum_throughput (without SLOs and prices).
#include "coordinator/policies/gavel_shares.h"

#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <CoinPackedVector.hpp>
#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

namespace commensal::policies {
namespace {

/// Among divisions that are equally good, the original's solver takes one from the middle; so the
/// objectives go by the barrier method, with a crossover. Whether jobs can end in a given time is
/// asked of the simplex method, which is sure of a no.
enum class Method : std::uint8_t { kInterior, kSimplex };

/// A column for each job and type (job * types + type), rows for what every division has to keep.
class Program {
 public:
  Program(const ShareProblem& problem, int more_columns)
      : problem_(problem),
        types_(static_cast<int>(problem.capacity.size())),
        jobs_(static_cast<int>(problem.gpus.size())),
        objective_(static_cast<std::size_t>(jobs_ * types_ + more_columns)) {
    for (int type = 0; type < types_; ++type) {
      for (int job = 0; job < jobs_; ++job) {
        term(column(job, type), problem_.gpus[static_cast<std::size_t>(job)]);
      }
      row(-COIN_DBL_MAX, problem_.capacity[static_cast<std::size_t>(type)]);
    }
    for (int job = 0; job < jobs_; ++job) {
      for (int type = 0; type < types_; ++type) term(column(job, type), 1);
      row(-COIN_DBL_MAX, 1);
    }
  }

  [[nodiscard]] int column(int job, int type) const { return job * types_ + type; }
  [[nodiscard]] int jobs() const noexcept { return jobs_; }
  [[nodiscard]] int types() const noexcept { return types_; }
  [[nodiscard]] double rate(int job, int type) const {
    return problem_.rates[static_cast<std::size_t>(job)][static_cast<std::size_t>(type)];
  }

  void objective(int column, double value) { objective_[static_cast<std::size_t>(column)] = value; }
  /// Adds a term to the row that `row` ends.
  void term(int column, double value) { terms_.insert(column, value); }
  void row(double least, double most) {
    rows_.push_back(terms_);
    least_.push_back(least);
    most_.push_back(most);
    terms_.clear();
  }

  /// Returns the shares of the best division; nothing if there is none.
  [[nodiscard]] std::optional<Shares> solve(Method method) {
    CoinPackedMatrix matrix(false, 0, 0);
    matrix.setDimensions(0, static_cast<int>(objective_.size()));
    for (const CoinPackedVector& row : rows_) matrix.appendRow(row);
    const std::vector<double> zeros(objective_.size());
    const std::vector<double> unbounded(objective_.size(), COIN_DBL_MAX);
    ClpSimplex model;
    model.setLogLevel(0);
    model.loadProblem(matrix, zeros.data(), unbounded.data(), objective_.data(), least_.data(),
                      most_.data());
    model.setOptimizationDirection(-1);
    if (method == Method::kInterior) {
      ClpSolve options;
      options.setSolveType(ClpSolve::useBarrier);
      model.initialSolve(options);
    } else {
      model.dual();
    }
    if (model.isProvenPrimalInfeasible()) return std::nullopt;
    if (!model.isProvenOptimal()) throw std::runtime_error("a linear program was not solved");
    const double* const solution = model.getColSolution();
    Shares shares(static_cast<std::size_t>(jobs_));
    for (int job = 0; job < jobs_; ++job) {
      for (int type = 0; type < types_; ++type) {
        shares[static_cast<std::size_t>(job)].push_back(
            std::clamp(solution[column(job, type)], 0.0, 1.0));
      }
    }
    return shares;
  }

 private:
  const ShareProblem& problem_;
  int types_;
  int jobs_;
  std::vector<double> objective_;
  CoinPackedVector terms_;  // of the row that has begun
  std::vector<CoinPackedVector> rows_;
  std::vector<double> least_;
  std::vector<double> most_;
};

/// Tries to end all jobs in `seconds`.
std::optional<Shares> shares_within(const ShareProblem& problem, double seconds) {
  Program program(problem, 0);
  for (int job = 0; job < program.jobs(); ++job) {
    for (int type = 0; type < program.types(); ++type) {
      program.term(program.column(job, type), program.rate(job, type));
    }
    program.row(problem.steps[static_cast<std::size_t>(job)] / seconds, COIN_DBL_MAX);
  }
  return program.solve(Method::kSimplex);
}

}  // namespace

Shares equal_shares(const ShareProblem& problem) {
  const auto jobs = static_cast<double>(problem.gpus.size());
  Shares shares;
  for (const double gpus : problem.gpus) {
    std::vector<double> row;
    double sum = 0;
    for (const double capacity : problem.capacity) {
      row.push_back(capacity / jobs / gpus);
      sum += row.back();
    }
    for (double& share : row) share /= std::max(sum, 1.0);
    shares.push_back(std::move(row));
  }
  return shares;
}

Shares max_min_shares(const ShareProblem& problem) {
  double total = 0;
  for (const double capacity : problem.capacity) total += capacity;
  Program program(problem, 1);
  const int least = program.jobs() * program.types();
  program.objective(least, 1);
  for (int job = 0; job < program.jobs(); ++job) {
    const auto index = static_cast<std::size_t>(job);
    double proportional = 0;
    for (std::size_t type = 0; type < problem.capacity.size(); ++type) {
      proportional += problem.rates[index][type] * problem.capacity[type] / total;
    }
    if (proportional <= 0) continue;  // it runs on none of these types
    const double scale = problem.gpus[index] / problem.weights[index] / proportional;
    for (int type = 0; type < program.types(); ++type) {
      program.term(program.column(job, type), program.rate(job, type) * scale);
    }
    program.term(least, -1);
    program.row(0, COIN_DBL_MAX);
  }
  return program.solve(Method::kInterior).value();
}

Shares least_makespan_shares(const ShareProblem& problem) {
  for (const auto& rates : problem.rates) {
    if (*std::max_element(rates.begin(), rates.end()) <= 0) {
      throw std::runtime_error("a job cannot run on any type of GPU");
    }
  }
  constexpr double kClose = 1.05;
  double least = 100;
  double most = 1e6;
  double bound = most;
  std::optional<Shares> best;
  while (!best) {
    while (kClose * least < most) {
      const double middle = (least + most) / 2;
      if (auto shares = shares_within(problem, middle)) {
        best = std::move(shares);
        most = middle;
      } else {
        least = middle;
      }
    }
    least = bound;
    bound *= 10;
    most = bound;
  }
  return *best;
}

Shares max_throughput_shares(const ShareProblem& problem) {
  Program program(problem, 0);
  for (int job = 0; job < program.jobs(); ++job) {
    for (int type = 0; type < program.types(); ++type) {
      program.objective(program.column(job, type), program.rate(job, type));
    }
  }
  return program.solve(Method::kInterior).value();
}

}  // namespace commensal::policies
