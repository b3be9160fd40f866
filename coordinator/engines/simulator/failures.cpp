// SPDX-License-Identifier: Apache-2.0
// From attempt to attempt, with the books kept.
#include "coordinator/engines/simulator/failures.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>
#include <stdexcept>

#include "coordinator/policies/nearest_name.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator {
namespace {

using policies::Options;
using policies::Time;

double number_in(Options& options, const std::string& name, double fallback, double least,
                 double most) {
  const double value = options.number(name, fallback);
  if (value >= least && value <= most) return value;
  throw std::invalid_argument(
      fmt::format("--failures: {} is not from {} to {}: {}", name, least, most, value));
}

std::uint32_t count_in(Options& options, const std::string& name, std::uint32_t fallback,
                       std::uint32_t least) {
  constexpr double kMost = 1'000'000;
  const double value = number_in(options, name, fallback, least, kMost);
  if (value != std::floor(value)) {
    throw std::invalid_argument(fmt::format("--failures: {} is no whole number: {}", name, value));
  }
  return static_cast<std::uint32_t>(value);
}

std::map<std::string, std::string> pairs_of(const std::string& text) {
  std::map<std::string, std::string> pairs;
  if (text == "on") return pairs;
  std::istringstream in(text);
  for (std::string pair; std::getline(in, pair, ',');) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw std::invalid_argument(
          fmt::format("--failures: neither on nor name=value[,name=value...]: {}", text));
    }
    pairs[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return pairs;
}

constexpr double kLong = 1e9;  // seconds

void read_rates(Options& options, FailureRates& rates) {
  rates.user = number_in(options, "user", rates.user, 0, 1);
  rates.user_seconds = number_in(options, "user-seconds", rates.user_seconds, 0, kLong);
  rates.user_spread = number_in(options, "user-spread", rates.user_spread, 0, 20);
  rates.semantic = number_in(options, "semantic", rates.semantic, 0, 1);
  rates.gpu_hours = number_in(options, "gpu-hours", rates.gpu_hours, 0, kLong);
  rates.corrupt = number_in(options, "corrupt", rates.corrupt, 0, 1);
  rates.inputs = count_in(options, "inputs", rates.inputs, 1);
  rates.records = count_in(options, "records", rates.records, 0);
  rates.passes = number_in(options, "passes", rates.passes, 1, kLong);
}

void read_retry(Options& options, RetryRule& retry) {
  const std::string which = options.choice("retry", "all", {"none", "all", "class"});
  retry.which = which == "none"  ? RetryRule::Which::kNone
                : which == "all" ? RetryRule::Which::kAll
                                 : RetryRule::Which::kByClass;
  retry.retries = count_in(options, "retries", retry.retries, 0);
  retry.back_off = number_in(options, "back-off", retry.back_off, 0, kLong);
  retry.longest_back_off = number_in(options, "longest-back-off", retry.longest_back_off, 0, kLong);
}

}  // namespace

FailureOptions failure_options(const std::string& text) {
  Options options(pairs_of(text));
  FailureOptions failures;
  read_rates(options, failures.rates);
  read_retry(options, failures.retry);
  failures.pre_run.pool = count_in(options, "prerun", failures.pre_run.pool, 0);
  failures.pre_run.seconds =
      number_in(options, "prerun-seconds", failures.pre_run.seconds, 0, kLong);
  failures.pre_run.from = static_cast<std::int32_t>(
      count_in(options, "prerun-from", static_cast<std::uint32_t>(failures.pre_run.from), 1));
  failures.blacklist = options.choice("blacklist", "off", {"on", "off"}) == "on";
  failures.checkpoint = number_in(options, "checkpoint", failures.checkpoint, 0, kLong);
  if (const auto left = options.left(); !left.empty()) {
    throw std::invalid_argument(fmt::format("--failures: no option {}; did you mean {}?",
                                            left.front(),
                                            policies::nearest_name(left.front(), options.known())));
  }
  return failures;
}

double FailureCosts::wasted_gpu_seconds() const {
  double wasted = pre_run_gpu_seconds;
  for (const OfClass& of_class : by_class) wasted += of_class.wasted_gpu_seconds;
  return wasted;
}

std::map<std::string, double> FailureCosts::metrics() const {
  double failed = 0;
  double given_up = 0;
  for (const OfClass& of_class : by_class) {
    failed += static_cast<double>(of_class.failed_attempts);
    given_up += static_cast<double>(of_class.given_up);
  }
  const double wasted = wasted_gpu_seconds();
  return {{"completed", static_cast<double>(completed)},
          {"given_up", given_up},
          {"failed_attempts", failed},
          {"retries", static_cast<double>(retries)},
          {"wasted_gpu_seconds", wasted},
          {"wasted_percent", used_gpu_seconds > 0 ? 100 * wasted / used_gpu_seconds : 0},
          {"prerun_gpu_seconds", pre_run_gpu_seconds},
          {"avg_first_report",
           first_reports > 0 ? first_report_seconds / static_cast<double>(first_reports) : 0}};
}

Failures::Failures(const FailureOptions& options, const Trace& trace, std::uint64_t seed)
    : options_(options),
      trace_(trace),
      model_(options.rates, seed),
      pool_(options.pre_run),
      courses_(trace.jobs.size()) {}

double Failures::gpus_of(std::size_t row) const {
  const TraceJob& job = trace_.jobs[row];
  return static_cast<double>(job.gpus) * job.gpu_milli / policies::kWholeGpu;
}

void Failures::report(Course& course, Time now) {
  if (course.reported) return;
  course.reported = true;
  ++costs_.first_reports;
  costs_.first_report_seconds += now - course.submit;
}

Failures::Admission Failures::admit(std::size_t row, Time submit, double duration) {
  Course& course = courses_[row];
  course.submit = submit;
  course.duration = duration;
  const auto error = model_.user_error(row);
  const auto trial = pool_.try_out(submit, trace_.jobs[row].gpus, duration, error);
  if (!trial) return {submit, submit, false};
  ++costs_.pre_runs;
  costs_.pre_run_gpu_seconds += trial->seconds();
  costs_.used_gpu_seconds += trial->seconds();
  if (trial->fails) {
    ++costs_.found_by_pre_run;
    FailureCosts::OfClass& of_class =
        costs_.by_class[static_cast<std::size_t>(FailureClass::kUser)];
    ++of_class.failed_attempts;
    ++of_class.given_up;
    report(course, trial->end);
  }
  return {trial->begin, trial->end, trial->fails};
}

Failures::Attempt Failures::begin(std::size_t row) {
  Course& course = courses_[row];
  course.next =
      model_.next(trace_.jobs[row], row, course.duration, course.saved, course.attempt, known_);
  ++course.attempt;
  return {course.saved, course.next ? course.duration - course.next->at : 0};
}

Failures::Ending Failures::end(std::size_t row, Time now, double seconds) {
  Course& course = courses_[row];
  const double held = seconds * gpus_of(row);
  costs_.used_gpu_seconds += held;
  if (!course.next) {
    ++costs_.completed;
    return {true, std::nullopt};
  }
  const Failure failure = *course.next;
  FailureCosts::OfClass& of_class = costs_.by_class[static_cast<std::size_t>(failure.kind)];
  ++of_class.failed_attempts;
  report(course, now);
  const bool input = failure.kind == FailureClass::kInput;
  if (input && options_.blacklist && known_.insert(failure.record).second) ++costs_.blacklisted;
  const auto delay =
      options_.retry.delay(failure.kind, course.attempt, input && options_.blacklist);
  if (!delay) {
    ++of_class.given_up;
    of_class.wasted_gpu_seconds += held + course.held;
    return {};
  }
  ++costs_.retries;
  const double before = course.saved;
  if (options_.checkpoint > 0) {
    course.saved =
        std::max(before, std::floor(failure.at / options_.checkpoint) * options_.checkpoint);
  }
  const double kept = std::min(held, (course.saved - before) * gpus_of(row));
  course.held += kept;
  of_class.wasted_gpu_seconds += held - kept;
  return {false, now + *delay};
}

}  // namespace commensal::simulator
