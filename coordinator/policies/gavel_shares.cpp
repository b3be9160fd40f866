// SPDX-License-Identifier: Apache-2.0
// Gavel's linear programs. Source: stanford-futuredata/gavel, scheduler/policies: isolated,
// max_min_fairness, min_total_duration, max_sum_throughput (without SLOs and prices), each with
// packing or without.
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

/// A column for each job or pair and type (unit * types + type), rows for what every division has
/// to keep.
class Program {
 public:
  /// A column in which a job runs, and how fast.
  struct Run {
    int column;
    double rate;
  };

  Program(const ShareProblem& problem, int more_columns)
      : problem_(problem),
        types_(static_cast<int>(problem.capacity.size())),
        units_(static_cast<int>(problem.gpus.size() + problem.pairs.size())),
        runs_(problem.gpus.size()),
        objective_(static_cast<std::size_t>(units_ * types_ + more_columns)) {
    terms_.setTestForDuplicateIndex(false);
    list_runs();
    for (int type = 0; type < types_; ++type) {
      for (int unit = 0; unit < units_; ++unit) term(column(unit, type), gpus_of(unit));
      row(-COIN_DBL_MAX, problem_.capacity[static_cast<std::size_t>(type)]);
    }
    for (const std::vector<Run>& runs : runs_) {
      for (const Run& run : runs) term(run.column, 1);
      row(-COIN_DBL_MAX, 1);
    }
  }

  [[nodiscard]] std::size_t jobs() const noexcept { return runs_.size(); }
  /// The first column behind those of the units.
  [[nodiscard]] int more() const noexcept { return units_ * types_; }
  [[nodiscard]] const std::vector<Run>& runs(std::size_t job) const { return runs_[job]; }

  void objective(int column, double value) {
    objective_[static_cast<std::size_t>(column)] += value;
  }
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
    Shares shares(static_cast<std::size_t>(units_));
    for (int unit = 0; unit < units_; ++unit) {
      for (int type = 0; type < types_; ++type) {
        shares[static_cast<std::size_t>(unit)].push_back(
            std::clamp(solution[column(unit, type)], 0.0, 1.0));
      }
    }
    return shares;
  }

 private:
  [[nodiscard]] int column(int unit, int type) const { return unit * types_ + type; }

  [[nodiscard]] double gpus_of(int unit) const {
    const auto index = static_cast<std::size_t>(unit);
    const std::size_t jobs = problem_.gpus.size();
    return problem_.gpus[index < jobs ? index : problem_.pairs[index - jobs].first];
  }

  void list_runs() {
    const std::size_t jobs = runs_.size();
    for (std::size_t job = 0; job < jobs; ++job) add_runs(job, job, problem_.rates[job]);
    for (std::size_t i = 0; i < problem_.pairs.size(); ++i) {
      const SharedUnit& pair = problem_.pairs[i];
      add_runs(pair.first, jobs + i, pair.first_rates);
      add_runs(pair.second, jobs + i, pair.second_rates);
    }
  }
  void add_runs(std::size_t job, std::size_t unit, const std::vector<double>& rates) {
    for (int type = 0; type < types_; ++type) {
      runs_[job].push_back(
          {column(static_cast<int>(unit), type), rates[static_cast<std::size_t>(type)]});
    }
  }

  const ShareProblem& problem_;
  int types_;
  int units_;
  std::vector<std::vector<Run>> runs_;  // by job
  std::vector<double> objective_;
  CoinPackedVector terms_;  // of the row that has begun
  std::vector<CoinPackedVector> rows_;
  std::vector<double> least_;
  std::vector<double> most_;
};

/// Tries to end all jobs in `seconds`.
std::optional<Shares> shares_within(const ShareProblem& problem, double seconds) {
  Program program(problem, 0);
  for (std::size_t job = 0; job < program.jobs(); ++job) {
    for (const auto& run : program.runs(job)) program.term(run.column, run.rate);
    program.row(problem.steps[job] / seconds, COIN_DBL_MAX);
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
  const int least = program.more();
  program.objective(least, 1);
  for (std::size_t job = 0; job < program.jobs(); ++job) {
    double proportional = 0;
    for (std::size_t type = 0; type < problem.capacity.size(); ++type) {
      proportional += problem.rates[job][type] * problem.capacity[type] / total;
    }
    if (proportional <= 0) continue;  // it runs on none of these types
    const double scale = problem.gpus[job] / problem.weights[job] / proportional;
    for (const auto& run : program.runs(job)) program.term(run.column, run.rate * scale);
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
  for (std::size_t job = 0; job < program.jobs(); ++job) {
    for (const auto& run : program.runs(job)) program.objective(run.column, run.rate);
  }
  return program.solve(Method::kInterior).value();
}

}  // namespace commensal::policies
