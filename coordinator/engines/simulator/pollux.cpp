// SPDX-License-Identifier: Apache-2.0
// petuum/adaptdl, branch osdi21-artifact, simulator: rounds of a minute; work in steps of the
// smallest batch, by goodput; a job that starts or moves pauses for half a minute.
#include "coordinator/engines/simulator/pollux.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "coordinator/engines/simulator/training_profile.h"
#include "coordinator/policies/placer.h"
#include "coordinator/policies/scaling_model.h"

namespace commensal::simulator {
namespace {

using policies::Action;
using policies::Decision;

constexpr double kPolluxRound = 60;
constexpr double kPauseSeconds = 30;

/// GPUs on each node, as lengths of runs of equal nodes.
NodeCounts counts_of(const policies::Placement& placement) {
  NodeCounts counts;
  for (std::size_t i = 0; i < placement.size(); ++i) {
    if (i == 0 || placement[i].node != placement[i - 1].node) counts.push_back(0);
    ++counts.back();
  }
  return counts;
}

/// An application at a batch size; many jobs are alike.
struct Kind {
  const TrainingProfile* profile;
  std::int32_t batch;
  std::vector<std::optional<double>> step_seconds;  ///< on packed GPUs, one and more
};

class Kinds final : public policies::ScalingModel {
 public:
  explicit Kinds(const Trace& trace) {
    for (const TraceJob& job : trace.jobs) add(trace, job);
  }

  [[nodiscard]] std::uint32_t number(const TraceJob& job) const {
    return numbers_.at({job.model, job.batch_size});
  }
  [[nodiscard]] const Kind& operator[](std::uint32_t number) const { return kinds_[number]; }

  [[nodiscard]] std::optional<double> step_seconds(const ClusterJob& job,
                                                   std::int32_t gpus) const override {
    const auto& known = kinds_[job.profile].step_seconds;
    if (gpus < 1 || static_cast<std::size_t>(gpus) > known.size()) return std::nullopt;
    return known[static_cast<std::size_t>(gpus) - 1];
  }

  [[nodiscard]] double remaining_steps(const ClusterJob& job) const override {
    const Kind& kind = kinds_[job.profile];
    return kind.profile->remaining_steps(kind.batch, job.epoch);
  }

  [[nodiscard]] double epoch_steps(const ClusterJob& job) const override {
    const Kind& kind = kinds_[job.profile];
    return kind.profile->steps_after(kind.batch, 0);
  }

  [[nodiscard]] double batch(const ClusterJob& job) const override {
    return kinds_[job.profile].batch;
  }

  [[nodiscard]] std::vector<prediction::LossPoint> losses(const ClusterJob& job) const override {
    const Kind& kind = kinds_[job.profile];
    std::vector<prediction::LossPoint> points;
    points.reserve(static_cast<std::size_t>(job.epoch));
    for (std::int32_t epoch = 0; epoch < job.epoch; ++epoch) {
      points.push_back({kind.profile->steps_after(kind.batch, epoch),
                        kind.profile->loss_after(kind.batch, epoch)});
    }
    return points;
  }

 private:
  void add(const Trace& trace, const TraceJob& job) {
    const auto number = static_cast<std::uint32_t>(kinds_.size());
    if (!numbers_.emplace(std::pair(job.model, job.batch_size), number).second) return;
    const auto profile = trace.profiles->find(job.model);
    if (profile == trace.profiles->end()) {
      throw std::invalid_argument(
          fmt::format("{}: job {}: no profile of {}", trace.source, job.name, job.model));
    }
    Kind kind{.profile = &profile->second, .batch = job.batch_size, .step_seconds = {}};
    if (!kind.profile->covers(kind.batch)) {
      throw std::invalid_argument(
          fmt::format("{}: job {}: batch {} of {} is outside of what was measured: {} to {}",
                      trace.source, job.name, kind.batch, job.model, kind.profile->smallest_batch(),
                      kind.profile->largest_batch()));
    }
    for (std::int32_t gpus = 1;
         gpus <= std::min(kind.profile->most_gpus(kind.batch), kMostMeasured); ++gpus) {
      kind.step_seconds.push_back(
          kind.profile->step_seconds(packed(gpus), kind.profile->split(kind.batch, gpus, true)));
    }
    kinds_.push_back(std::move(kind));
  }

  static constexpr std::int32_t kMostMeasured = 64;  // on packed GPUs

  std::map<std::pair<std::string, std::int32_t>, std::uint32_t> numbers_;
  std::vector<Kind> kinds_;
};

class Pollux final : public Semantics {
 public:
  explicit Pollux(const Trace& trace) : profiles_(trace.profiles), kinds_(trace) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "pollux"; }
  [[nodiscard]] const policies::Placer& placer(std::string_view /*policy*/) const override {
    return placer_;
  }
  [[nodiscard]] policies::JobModels models() const override { return {.scaling = &kinds_}; }
  [[nodiscard]] double round() const override { return kPolluxRound; }

  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    job.submit = recorded.submit;
    job.profile = kinds_.number(recorded);
    const Kind& kind = kinds_[job.profile];
    job.min_gpus = 1;
    job.max_gpus = kind.profile->most_gpus(kind.batch);
    job.duration = recorded.duration;
    job.remaining = job.duration;
    work.left = kind.profile->progress_after(kind.profile->epochs() - 1);
  }

  /// What started or moved pauses, and has other step times.
  void settle(const Change& change) override {
    for (const Decision& decision : change.plan.decisions) {
      if (decision.action != Action::kStart && decision.action != Action::kMove) continue;
      const ClusterJob& job = change.state.job(decision.job);
      Work& work = change.works[decision.job];
      work.overhead = kPauseSeconds;
      work.unit_seconds = seconds_of_step(job, *work.recorded);
    }
  }

  [[nodiscard]] std::optional<Time> run_round(ClusterJob& job, Work& work,
                                              Time now) const override {
    const Kind& kind = kinds_[job.profile];
    const std::int32_t batch = kind.profile->split(kind.batch, job.held()).batch();
    const double pause = std::min(work.overhead, kPolluxRound);
    work.overhead -= pause;
    now += pause;
    job.attained += kPolluxRound;
    for (double seconds = kPolluxRound - pause; seconds > 0;) {
      const double goodput = kind.profile->gain(batch, job.epoch) / work.unit_seconds;
      const double target = kind.profile->progress_after(job.epoch);
      if (work.done + goodput * seconds < target) {
        work.done += goodput * seconds;
        break;
      }
      // An epoch ends at a whole second, half ones to the even; what is over is lost.
      const double until = std::nearbyint((target - work.done) / goodput);
      work.done = target;
      seconds -= until;
      now += until;
      ++job.epoch;
      if (job.epoch == kind.profile->epochs()) {
        job.remaining = work.left = 0;
        return now;
      }
    }
    const double total = kind.profile->progress_after(kind.profile->epochs() - 1);
    work.left = total - work.done;
    job.remaining = job.duration * work.left / total;
    return std::nullopt;
  }

 private:
  [[nodiscard]] double seconds_of_step(const ClusterJob& job, const TraceJob& recorded) const {
    const Kind& kind = kinds_[job.profile];
    const NodeCounts counts = counts_of(job.placement);
    const BatchSplit split = kind.profile->split(kind.batch, job.held());
    const auto seconds = kind.profile->step_seconds(counts, split);
    if (seconds && kind.profile->covers(split.batch())) return *seconds;
    throw std::invalid_argument(fmt::format(
        "job {}: what {} does with {} samples a GPU on {} GPUs of its nodes was not measured",
        recorded.name, recorded.model, split.atomic, fmt::join(counts, " + ")));
  }

  std::shared_ptr<const TrainingProfiles> profiles_;
  Kinds kinds_;
  policies::MostFreePlacer placer_;
};

}  // namespace

std::unique_ptr<Semantics> make_pollux(const Trace& trace) {
  if (trace.profiles == nullptr) {
    throw std::invalid_argument(fmt::format(
        "{}: semantics pollux need a trace with profiles of its applications (format pollux)",
        trace.source));
  }
  return std::make_unique<Pollux>(trace);
}

}  // namespace commensal::simulator
