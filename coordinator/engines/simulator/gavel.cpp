// SPDX-License-Identifier: Apache-2.0
// Rounds of whole steps: a round is over when the last of its jobs has made the steps that fit into
// 360 s. Two jobs on the same GPUs begin and end together. Source: stanford-futuredata/gavel,
// scheduler/scheduler.py (simulation).
#include "coordinator/engines/simulator/gavel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/readers/throughput_reader.h"
#include "coordinator/policies/throughput_table.h"

namespace commensal::simulator {
namespace {

using policies::ClusterState;
using policies::JobIndex;
using policies::ThroughputTable;

constexpr double kGavelRound = 360;

class GavelRounds final : public Semantics {
 public:
  explicit GavelRounds(const Trace& trace) : source_(trace.source), table_(trace.throughputs) {
    if (!table_) {
      throw std::invalid_argument(
          fmt::format("semantics gavel needs throughputs by GPU type, and {} has none", source_));
    }
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "gavel"; }
  [[nodiscard]] const policies::Placer& placer(std::string_view /*policy*/) const override {
    return placer_;
  }
  [[nodiscard]] std::map<std::string, std::string> options(std::string_view policy) const override {
    if (policy == "fifo") return {{"types", "agnostic"}};
    return {};
  }
  [[nodiscard]] policies::JobModels models() const override {
    return {.throughputs = table_.get()};
  }

  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    const std::string key = profile_key(recorded.model, recorded.gpus);
    const auto profile = table_->find_profile(key);
    if (!profile) {
      throw std::invalid_argument(
          fmt::format("{}: no throughput of {} for {}", source_, key, recorded.name));
    }
    job.profile = *profile;
    job.submit = recorded.submit;
    work.left = recorded.iterations;
    work.unit_seconds = 1 / table_->reference(*profile);
    job.duration = job.remaining = work.left * work.unit_seconds;
  }

  /// Says how many steps each job makes in the round that begins, and so how long the round is.
  void settle(const Change& change) override {
    const policies::Cluster& cluster = change.state.cluster();
    if (types_.empty()) types_ = table_->types_of(cluster.types());
    std::vector<std::vector<JobIndex>> sharing(static_cast<std::size_t>(cluster.total_gpus()));
    for (const JobIndex job : change.state.running()) {
      const policies::GpuPart& part = change.state.job(job).placement.front();
      sharing[cluster.index(part.node, static_cast<std::int32_t>(part.gpu))].push_back(job);
    }
    length_ = 0;
    for (const std::vector<JobIndex>& jobs : sharing) {
      double seconds = 0;
      for (const JobIndex job : jobs) {
        Work& work = change.works[job];
        const double rate = rate_of(change.state, job, jobs);
        work.round_units = std::min(std::floor(rate * kGavelRound), work.left);
        seconds = std::max(seconds, rate > 0 ? work.round_units / rate : kGavelRound);
      }
      for (const JobIndex job : jobs) change.works[job].round_seconds = seconds;
      if (!jobs.empty()) busy_ += seconds * change.state.job(jobs.front()).gpus;
      length_ = std::max(length_, seconds);
    }
    if (length_ == 0) length_ = kGavelRound;  // nobody runs yet
  }

  /// With `utilisation`: the mean over all GPUs of the part of the time that somebody had them.
  [[nodiscard]] std::map<std::string, double> metrics(const Trace& /*trace*/,
                                                      const policies::Cluster& cluster,
                                                      const Outcome& outcome) const override {
    std::map<std::string, double> all = metrics_of(outcome);
    const double there = cluster.total_gpus() * all["makespan"];
    all["utilisation"] = there > 0 ? busy_ / there : 0;
    return all;
  }

  /// Jobs advance in whole rounds only.
  void advance(ClusterJob& /*job*/, Work& /*work*/, double /*seconds*/) const override {}

  [[nodiscard]] double round() const override { return length_; }
  [[nodiscard]] Time round_of(Time arrival) const override { return arrival; }

  [[nodiscard]] std::optional<Time> run_round(ClusterJob& job, Work& work,
                                              Time now) const override {
    work.left -= work.round_units;
    job.attained += work.round_seconds;
    job.remaining = work.left * work.unit_seconds;
    if (work.left > 0) return std::nullopt;
    return now + work.round_seconds;
  }

 private:
  /// Steps per second: that of the slowest type that the job is on, alone or with the other one.
  [[nodiscard]] double rate_of(const ClusterState& state, JobIndex job,
                               const std::vector<JobIndex>& jobs) const {
    double rate = std::numeric_limits<double>::infinity();
    for (const policies::GpuPart& part : state.job(job).placement) {
      const std::uint32_t type = types_[state.cluster().nodes()[part.node].type];
      rate = std::min(rate, rate_on(state, job, jobs, type));
    }
    return rate;
  }

  /// In a pair the one that arrived first is the first of the table.
  [[nodiscard]] double rate_on(const ClusterState& state, JobIndex job,
                               const std::vector<JobIndex>& jobs, std::uint32_t type) const {
    if (jobs.size() == 1) return table_->alone(type, state.job(job).profile);
    if (jobs.size() > 2) {
      throw std::logic_error(
          fmt::format("{}: {} jobs on one GPU, and throughputs of two", source_, jobs.size()));
    }
    const auto [first, second] = std::minmax(jobs[0], jobs[1]);
    const ThroughputTable::Pair rates =
        table_->together(type, state.job(first).profile, state.job(second).profile);
    return job == first ? rates.first : rates.second;
  }

  std::string source_;
  std::shared_ptr<const ThroughputTable> table_;
  policies::FirstNodePlacer placer_;
  std::vector<std::uint32_t> types_;  // numbers in the table, by type of the cluster
  double length_ = kGavelRound;       // of the round that has begun
  double busy_ = 0;                   // GPU-seconds that were used
};

}  // namespace

std::unique_ptr<Semantics> make_gavel(const Trace& trace) {
  return std::make_unique<GavelRounds>(trace);
}

}  // namespace commensal::simulator
