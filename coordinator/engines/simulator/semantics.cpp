// SPDX-License-Identifier: Apache-2.0
// What all profiles share, and those of a few lines: tiresias, helios.
#include "coordinator/engines/simulator/semantics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "coordinator/engines/simulator/fgd_profile.h"
#include "coordinator/engines/simulator/gavel.h"
#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/muri.h"
#include "coordinator/engines/simulator/pollux.h"
#include "coordinator/engines/simulator/shared_gpus.h"
#include "coordinator/policies/cluster_plan.h"
#include "coordinator/policies/nearest_name.h"

namespace commensal::simulator {
namespace {

using policies::kNever;

/// Whole seconds, at least one.
void prepare_whole_seconds(const TraceJob& recorded, ClusterJob& job, Work& work) {
  job.submit = std::floor(recorded.submit);
  job.duration = std::max(1.0, std::floor(recorded.duration));
  job.remaining = job.duration;
  work.left = job.duration;
}

/// SymbioticLab/Tiresias, simulator with placement "count": no topology, stopping is free.
class Tiresias final : public Semantics {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "tiresias"; }
  [[nodiscard]] const policies::Placer& placer(std::string_view /*policy*/) const override {
    return placer_;
  }
  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    prepare_whole_seconds(recorded, job, work);
  }

 private:
  policies::CountedPlacer placer_;
};

/// Helios' artifact: ticks of a second, placement "consolidate", stopping costs by size. Its loop
/// for policies that stop jobs notices an end one tick late.
class Helios final : public Semantics {
 public:
  explicit Helios(std::string_view policy) : lag_(policy == "srtf" ? 1 : 0) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "helios"; }
  [[nodiscard]] bool equal_nodes() const noexcept override { return true; }
  [[nodiscard]] const policies::Placer& placer(std::string_view /*policy*/) const override {
    return placer_;
  }
  [[nodiscard]] std::map<std::string, std::string> options(std::string_view policy) const override {
    if (policy == "srtf") return {{"ties", "queue"}};
    return {};
  }
  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    prepare_whole_seconds(recorded, job, work);
  }
  [[nodiscard]] bool before(const ClusterJob& a, const ClusterJob& b) const override {
    return std::tuple(a.submit, a.gpus, a.duration) < std::tuple(b.submit, b.gpus, b.duration);
  }
  [[nodiscard]] Time end(const ClusterJob& /*job*/, const Work& work, Time now) const override {
    return now + work.left + lag_;
  }
  void advance(ClusterJob& job, Work& work, double seconds) const override {
    job.attained += seconds;
    work.left -= seconds;  // below zero in the tick that notices the end
    job.remaining = std::max(0.0, work.left);
  }
  void stopped(ClusterJob& job, Work& work) const override {
    work.left = std::max(0.0, work.left) + (job.gpus == 1 ? 7 : job.gpus <= 8 ? 30 : 60);
    job.remaining = work.left;
  }
  /// A stopped job has another remaining time at the next tick.
  [[nodiscard]] Time again(Time now, bool stops) const override { return stops ? now + 1 : kNever; }

 private:
  double lag_;
  policies::ConsolidatingPlacer placer_;
};

}  // namespace

std::map<std::string, std::string> Semantics::options(std::string_view /*policy*/) const {
  return {};
}

void Semantics::arrange(Trace& /*trace*/, std::vector<policies::NodeSpec>& /*nodes*/) {}

std::map<std::string, double> Semantics::metrics(const Trace& /*trace*/,
                                                 const policies::Cluster& /*cluster*/,
                                                 const Outcome& outcome) const {
  return metrics_of(outcome);
}

bool Semantics::before(const ClusterJob& a, const ClusterJob& b) const {
  return a.submit < b.submit;
}

void Semantics::advance(ClusterJob& job, Work& work, double seconds) const {
  job.attained += seconds;
  work.left -= seconds / work.unit_seconds;
  job.remaining = std::max(0.0, work.left * work.unit_seconds);
}

Time Semantics::end(const ClusterJob& /*job*/, const Work& work, Time now) const {
  return now + work.left * work.unit_seconds;
}

Time Semantics::round_of(Time arrival) const { return std::ceil(arrival / round()) * round(); }

std::optional<Time> Semantics::run_round(ClusterJob& job, Work& work, Time now) const {
  const Time last = end(job, work, now);
  advance(job, work, std::min(round(), last - now));
  if (last > now + round()) return std::nullopt;
  return last;
}

void Semantics::settle(const Change& /*change*/) {}

void Semantics::stopped(ClusterJob& /*job*/, Work& /*work*/) const {}

Time Semantics::again(Time /*now*/, bool /*stops*/) const { return kNever; }

const std::vector<std::string_view>& all_semantics() {
  static const std::vector<std::string_view> names{"commensal", "fgd",    "gavel",   "helios",
                                                   "muri",      "pollux", "tiresias"};
  return names;
}

std::unique_ptr<Semantics> make_semantics(std::string_view name, std::string_view policy,
                                          const Trace& trace, std::uint64_t seed,
                                          const SharingModel& sharing) {
  if (name == "fgd") return make_fgd(seed);
  if (name == "commensal") return make_commensal(sharing, trace);
  if (name == "tiresias") return std::make_unique<Tiresias>();
  if (name == "helios") return std::make_unique<Helios>(policy);
  if (name == "muri") return make_muri();
  if (name == "pollux") return make_pollux(trace);
  if (name == "gavel") return make_gavel(trace);
  throw std::invalid_argument(
      fmt::format("no semantics {}; did you mean {}? There are {}", name,
                  policies::nearest_name(name, {all_semantics().begin(), all_semantics().end()}),
                  fmt::join(all_semantics(), ", ")));
}

}  // namespace commensal::simulator
