// SPDX-License-Identifier: Apache-2.0
// The profile `commensal`: exact events, placement on nodes, speeds by the co-execution model. A
// gang is as fast as its slowest GPU.
#include "coordinator/engines/simulator/shared_gpus.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "coordinator/policies/placer.h"

namespace commensal::simulator {
namespace {

using policies::ClusterState;
using policies::JobIndex;

class SharedGpus final : public Semantics {
 public:
  explicit SharedGpus(const SharingModel& model) : model_(model) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "commensal"; }

  [[nodiscard]] const policies::Placer& placer(std::string_view /*policy*/) const override {
    return placer_;
  }

  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    job.submit = recorded.submit;
    job.duration = recorded.duration;
    job.remaining = recorded.duration;
    const double busy = recorded.busy < 0 ? model_.busy : recorded.busy;
    job.load_milli = static_cast<std::int32_t>(std::lround(busy * policies::kWholeGpu));
    work.left = recorded.duration;
  }

  /// Only jobs on GPUs on which somebody came or went can have another speed.
  void settle(const Change& change) override {
    on_.resize(static_cast<std::size_t>(change.state.cluster().total_gpus()));
    speeds_.resize(on_.size());
    placed_.resize(change.works.size());
    std::vector<std::size_t> touched;
    for (const JobIndex job : change.ended) leave(job, touched);
    for (const policies::Decision& decision : change.plan.decisions) {
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

  [[nodiscard]] SharingSpeeds speeds_on(std::size_t gpu, const ClusterState& state) const {
    double guaranteed_busy = 0;
    std::vector<double> others;
    for (const JobIndex job : on_[gpu]) {
      const double busy = static_cast<double>(state.job(job).load_milli) / policies::kWholeGpu;
      if (state.job(job).job_class == JobClass::kGuaranteed) {
        guaranteed_busy += busy;
      } else {
        others.push_back(busy);
      }
    }
    return speeds_on_gpu(model_, guaranteed_busy, others);
  }

  [[nodiscard]] double unit_of(JobIndex job, const ClusterState& state) const {
    double speed = 1;
    for (const std::size_t gpu : placed_[job]) {
      speed = std::min(speed, state.job(job).job_class == JobClass::kGuaranteed
                                  ? speeds_[gpu].guaranteed
                                  : speeds_[gpu].opportunistic);
    }
    // An elastic job is as fast as it has GPUs, in proportion.
    const ClusterJob& placed = state.job(job);
    if (placed.held() > 0) speed *= static_cast<double>(placed.held()) / placed.gpus;
    return 1 / speed;
  }

  SharingModel model_;
  policies::FirstNodePlacer placer_;
  std::vector<std::vector<JobIndex>> on_;         // by GPU
  std::vector<SharingSpeeds> speeds_;             // by GPU
  std::vector<std::vector<std::size_t>> placed_;  // by job: GPUs
};

}  // namespace

std::unique_ptr<Semantics> make_commensal(const SharingModel& model) {
  return std::make_unique<SharedGpus>(model);
}

}  // namespace commensal::simulator
