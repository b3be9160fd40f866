// SPDX-License-Identifier: Apache-2.0
// Failures of a run: what is injected, how it is handled, and what it costs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/engines/simulator/failure_model.h"
#include "coordinator/engines/simulator/pre_run.h"
#include "coordinator/engines/simulator/retry_rule.h"
#include "coordinator/policies/cluster_view.h"

namespace commensal::simulator {

struct FailureOptions {
  FailureRates rates;
  RetryRule retry;
  PreRunOptions pre_run;
  bool blacklist = false;    ///< corrupt records that one job met are passed over by all
  double checkpoint = 3600;  ///< seconds of work between two; zero: a failed job begins anew
};

/// Reads options such as "retry=class,prerun=4", or "on" for the defaults alone.
/// @throws std::invalid_argument for a name that does not exist, with the nearest one, and for a
/// value that cannot be.
[[nodiscard]] FailureOptions failure_options(const std::string& text);

/// What failures cost. GPU-seconds are those during which GPUs were held; wasted are all that no
/// completed job has anything of.
struct FailureCosts {
  struct OfClass {
    std::uint64_t failed_attempts = 0;
    std::uint64_t given_up = 0;  ///< jobs whose last failure it was
    double wasted_gpu_seconds = 0;
  };
  std::array<OfClass, kFailureClasses> by_class{};
  std::uint64_t completed = 0;
  std::uint64_t retries = 0;
  std::uint64_t pre_runs = 0;
  std::uint64_t found_by_pre_run = 0;
  std::uint64_t blacklisted = 0;    ///< records
  double pre_run_gpu_seconds = 0;   ///< all of them count as wasted
  double used_gpu_seconds = 0;      ///< in all, those of pre-runs included
  double first_report_seconds = 0;  ///< from submission to the first failure, summed
  std::uint64_t first_reports = 0;  ///< jobs that failed at least once

  [[nodiscard]] double wasted_gpu_seconds() const;
  /// The figures by their names in `--json`: completed, given_up, failed_attempts, retries,
  /// wasted_gpu_seconds, wasted_percent, prerun_gpu_seconds, avg_first_report.
  [[nodiscard]] std::map<std::string, double> metrics() const;
};

/// Knows for each row of a trace what it has met. Thread safety: none.
class Failures {
 public:
  Failures(const FailureOptions& options, const Trace& trace, std::uint64_t seed);

  struct Admission {
    policies::Time begin = 0;    ///< of the pre-run
    policies::Time release = 0;  ///< when it goes to the cluster, or its pre-run fails
    bool fails = false;
  };
  /// Lets a job of so many seconds of work in; jobs come in the order of `submit`.
  [[nodiscard]] Admission admit(std::size_t row, policies::Time submit, double duration);

  /// An attempt: of the job's work, which part is done before, and which is never reached.
  struct Attempt {
    double done = 0;
    double beyond = 0;
  };
  [[nodiscard]] Attempt begin(std::size_t row);

  struct Ending {
    bool completed = false;
    std::optional<policies::Time> again;  ///< when it is tried again; absent: it is not
  };
  /// Notes that an attempt has ended, after so many seconds on its GPUs.
  [[nodiscard]] Ending end(std::size_t row, policies::Time now, double seconds);

  [[nodiscard]] const FailureCosts& costs() const noexcept { return costs_; }

 private:
  struct Course {
    policies::Time submit = 0;
    double duration = 0;
    double saved = 0;  ///< seconds of work that the next attempt does not repeat
    double held = 0;   ///< GPU-seconds of work that is saved
    std::uint32_t attempt = 0;
    bool reported = false;
    std::optional<Failure> next;
  };

  void report(Course& course, policies::Time now);
  [[nodiscard]] double gpus_of(std::size_t row) const;

  FailureOptions options_;
  const Trace& trace_;
  FailureModel model_;
  PreRunPool pool_;
  std::vector<Course> courses_;  // by row
  std::set<RecordId> known_;     // the blacklist; empty without one
  FailureCosts costs_;
};

}  // namespace commensal::simulator
