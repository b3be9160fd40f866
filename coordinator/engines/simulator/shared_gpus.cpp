// SPDX-License-Identifier: Apache-2.0
// The profile `commensal`: exact events, placement on nodes, speeds by the co-execution model. A
// gang is as fast as its slowest GPU.
#include "coordinator/engines/simulator/shared_gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "coordinator/engines/simulator/readers/throughput_reader.h"
#include "coordinator/policies/placer.h"

namespace commensal::simulator {
namespace {

using policies::ClusterState;
using policies::JobIndex;

class SharedGpus final : public Semantics {
 public:
  SharedGpus(const SharingModel& model, const Trace& trace)
      : model_(model), table_(model.sharing == Sharing::kPairs ? trace.throughputs : nullptr) {
    if (model.sharing != Sharing::kPairs || table_) return;
    throw std::invalid_argument(fmt::format(
        "--sharing pairs needs throughputs of models in pairs, and {} has none", trace.source));
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "commensal"; }

  [[nodiscard]] const policies::Placer& placer(std::string_view /*policy*/) const override {
    return placer_;
  }

  /// Rounding to whole seconds belongs to clocks of whole seconds.
  [[nodiscard]] std::map<std::string, std::string> options(std::string_view policy) const override {
    if (policy == "2d-las" || policy == "2d-gittins") return {{"crossing", "exact"}};
    return {};
  }

  /// Measured speeds are of the GPU types of a table: every job must run on those there are.
  void arrange(Trace& trace, std::vector<policies::NodeSpec>& nodes) override {
    if (!table_) return;
    const policies::Cluster cluster(nodes);
    types_ = table_->types_of(cluster.types());
    for (const TraceJob& job : trace.jobs) {
      const auto profile = table_->find_profile(profile_key(job.model, job.gpus));
      for (std::size_t type = 0; type < types_.size(); ++type) {
        if (profile && table_->alone(types_[type], *profile) > 0) continue;
        throw std::invalid_argument(
            fmt::format("{}: --sharing pairs: by the throughputs, job {} ({} on {} GPUs) does not "
                        "run on GPUs of type {}",
                        trace.source, job.name, job.model, job.gpus, cluster.types()[type]));
      }
    }
  }

  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    if (table_) job.profile = *table_->find_profile(profile_key(recorded.model, recorded.gpus));
    job.submit = recorded.submit;
    job.duration = recorded.duration;
    job.remaining = recorded.duration;
    const double busy = recorded.busy < 0 ? model_.busy : recorded.busy;
    job.load_milli = static_cast<std::int32_t>(std::lround(busy * policies::kWholeGpu));
    work.left = recorded.duration;
  }

  void stopped(ClusterJob& job, Work& work) const override {
    work.left += model_.restart;
    job.remaining += model_.restart * work.unit_seconds;
  }

  /// Only jobs on GPUs on which somebody came or went can have another speed.
  void settle(const Change& change) override {
    on_.resize(static_cast<std::size_t>(change.state.cluster().total_gpus()));
    speeds_.resize(on_.size());
    placed_.resize(change.works.size());
    for (std::size_t job = memory_.size(); job < change.works.size(); ++job) {
      memory_.push_back(change.works[job].recorded->gpu_memory_gib);
    }
    std::vector<std::size_t> touched;
    for (const JobIndex job : change.ended) leave(job, touched);
    for (const policies::Decision& decision : change.plan.decisions) {
      if (decision.action == policies::Action::kMove) {
        stopped(change.state.jobs()[decision.job], change.works[decision.job]);
      }
      leave(decision.job, touched);
      enter(decision.job, change.state, touched);
    }
    std::vector<JobIndex> affected;
    for (const std::size_t gpu : touched) {
      speeds_[gpu] = speeds_on(gpu, change.state);
      affected.insert(affected.end(), on_[gpu].begin(), on_[gpu].end());
    }
    std::sort(affected.begin(), affected.end());
    affected.erase(std::unique(affected.begin(), affected.end()), affected.end());
    for (const JobIndex job : affected) change.set_unit(job, unit_of(job, change.state));
  }

 private:
  void leave(JobIndex job, std::vector<std::size_t>& touched) {
    for (const std::size_t gpu : placed_[job]) {
      std::erase(on_[gpu], job);
      touched.push_back(gpu);
    }
    placed_[job].clear();
  }

  void enter(JobIndex job, const ClusterState& state, std::vector<std::size_t>& touched) {
    if (state.job(job).phase != policies::JobPhase::kRunning) return;
    for (const auto& part : state.job(job).placement) {
      if (part.gpu == policies::kHostOnly) continue;
      const std::size_t gpu = state.cluster().index(part.node, part.gpu);
      on_[gpu].push_back(job);
      placed_[job].push_back(gpu);
      touched.push_back(gpu);
    }
  }

  /// Speeds on a GPU, in the order of its jobs.
  [[nodiscard]] std::vector<double> speeds_on(std::size_t gpu, const ClusterState& state) const {
    if (table_) return measured_on(gpu, state);
    double guaranteed_busy = 0;
    double guaranteed_memory = 0;
    double memory = 0;
    std::vector<double> others;
    for (const JobIndex job : on_[gpu]) {
      const double busy = static_cast<double>(state.job(job).load_milli) / policies::kWholeGpu;
      if (state.job(job).job_class == JobClass::kGuaranteed) {
        guaranteed_busy += busy;
        guaranteed_memory += memory_[job];
      } else {
        others.push_back(busy);
        memory += memory_[job];
      }
    }
    const SharingSpeeds speeds = speeds_on_gpu(model_, guaranteed_busy, others);
    const double fits = speed_with(model_, part_in_memory(model_, guaranteed_memory, memory));
    std::vector<double> of_jobs;
    for (const JobIndex job : on_[gpu]) {
      const bool guaranteed = state.job(job).job_class == JobClass::kGuaranteed;
      const double moved = memory_[job] > 0 ? fits : 1;
      of_jobs.push_back(guaranteed ? speeds.guaranteed : speeds.opportunistic * moved);
    }
    return of_jobs;
  }

  [[nodiscard]] std::vector<double> measured_on(std::size_t gpu, const ClusterState& state) const {
    if (on_[gpu].empty()) return {};
    std::vector<PairedJob> jobs;
    for (const JobIndex job : on_[gpu]) {
      jobs.push_back({.profile = state.job(job).profile,
                      .guaranteed = state.job(job).job_class == JobClass::kGuaranteed});
    }
    const policies::Cluster& cluster = state.cluster();
    // All parts of a placement that are on this GPU are on its node.
    for (const auto& part : state.job(on_[gpu].front()).placement) {
      if (cluster.index(part.node, part.gpu) != gpu) continue;
      return pair_speeds(*table_, types_[cluster.nodes()[part.node].type], jobs);
    }
    return std::vector<double>(jobs.size(), 1);
  }

  [[nodiscard]] double unit_of(JobIndex job, const ClusterState& state) const {
    double speed = std::numeric_limits<double>::infinity();
    for (const std::size_t gpu : placed_[job]) {
      const auto at = std::find(on_[gpu].begin(), on_[gpu].end(), job) - on_[gpu].begin();
      speed = std::min(speed, speeds_[gpu][static_cast<std::size_t>(at)]);
    }
    if (placed_[job].empty()) return 1;
    // An elastic job is as fast as it has GPUs, in proportion.
    const ClusterJob& placed = state.job(job);
    if (placed.held() > 0) speed *= static_cast<double>(placed.held()) / placed.gpus;
    return 1 / speed;
  }

  SharingModel model_;
  std::shared_ptr<const policies::ThroughputTable> table_;  // of measured pairs, if they count
  std::vector<std::uint32_t> types_;                        // of the table, by type of the cluster
  policies::FirstNodePlacer placer_;
  std::vector<std::vector<JobIndex>> on_;         // by GPU
  std::vector<std::vector<double>> speeds_;       // by GPU, in the order of its jobs
  std::vector<std::vector<std::size_t>> placed_;  // by job: GPUs
  std::vector<double> memory_;                    // by job: GiB on each of its GPUs; zero: unknown
};

}  // namespace

std::unique_ptr<Semantics> make_commensal(const SharingModel& model, const Trace& trace) {
  return std::make_unique<SharedGpus>(model, trace);
}

}  // namespace commensal::simulator
