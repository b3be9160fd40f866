// SPDX-License-Identifier: Apache-2.0
// Rivendile/Muri, simulator: work in iterations; at every event a running job loses the seconds
// that a restart of its model takes, restarted or not, so that results depend on the number of
// events.
#include "coordinator/engines/simulator/muri.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "coordinator/policies/placer.h"

namespace commensal::simulator {
namespace {

/// An iteration takes this much longer than the trace says.
constexpr double kSlower = 1.015;

struct Overheads {
  std::string_view model;
  std::array<double, 6> seconds;  ///< with 1, 2, 4, 8, 16, 32 GPUs
};
constexpr std::array<Overheads, 8> kOverheads{{{"vgg16", {7, 7, 8, 9, 9, 10}},
                                               {"vgg19", {7, 7, 8, 9, 10, 10}},
                                               {"resnet18", {4, 5, 5, 7, 7, 7}},
                                               {"shufflenet_v2_x1_0", {4, 4, 5, 5, 7, 8}},
                                               {"bert", {10, 10, 10, 10, 10, 10}},
                                               {"gpt2", {10, 10, 10, 10, 10, 10}},
                                               {"a2c", {38, 39, 39, 46, 46, 46}},
                                               {"dqn", {5, 5, 6, 6, 8, 8}}}};

double overhead_of(const TraceJob& job) {
  const auto* model = std::find_if(kOverheads.begin(), kOverheads.end(),
                                   [&](const Overheads& o) { return o.model == job.model; });
  const auto gpus = static_cast<unsigned>(std::max(1, job.gpus));
  const auto column = static_cast<std::size_t>(std::bit_width(gpus - 1));
  if (model == kOverheads.end() || column >= model->seconds.size()) {
    throw std::invalid_argument(
        fmt::format("job {}: Muri's simulator has no restart time for model {} on {} GPUs",
                    job.name, job.model, job.gpus));
  }
  return model->seconds[column];
}

/// How many iterations of a guaranteed job pass while an opportunistic one fits one of its own into
/// the stages that the other leaves.
double iterations_beside(const TraceJob& own, const TraceJob& partner) {
  auto [d, g, n] = own.stage_seconds;
  const auto [D, G, N] = partner.stage_seconds;
  double k = std::floor(d / (G + N));
  double r = std::fmod(d, G + N);
  if (r > 0) {
    k += 1;
    g -= std::min({g, N, G + N - r});
  }
  k += std::floor(g / (D + N));
  r = std::fmod(g, D + N);
  if (r > 0) {
    k += 1;
    if (r < D) n -= std::min(n, D + G - r);
  }
  k += std::floor(n / (D + G));
  if (std::fmod(n, D + G) > D) k += 1;
  return k;
}

class Muri final : public Semantics {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "muri"; }
  [[nodiscard]] bool equal_nodes() const noexcept override { return true; }

  [[nodiscard]] const policies::Placer& placer(std::string_view policy) const override {
    if (policy == "2d-las") return counted_;
    return first_node_;
  }

  [[nodiscard]] std::map<std::string, std::string> options(std::string_view policy) const override {
    if (policy == "2d-las") return {{"crossing", "ceil"}};
    return {};
  }

  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    job.submit = recorded.submit;
    work.unit_seconds = recorded.iteration_seconds * kSlower;
    work.left = recorded.iterations;
    work.overhead = overhead_of(recorded);
    job.duration = work.left * work.unit_seconds;
    job.remaining = job.duration;
  }

  void advance(ClusterJob& job, Work& work, double seconds) const override {
    job.attained += seconds;
    work.left -= std::max(seconds - work.overhead, 0.0) / work.unit_seconds;
    job.remaining = work.left * work.unit_seconds;
  }

  /// An opportunistic job's iteration takes as long as those of the guaranteed jobs that its stages
  /// have to be fitted between.
  void settle(const Change& change) override {
    const policies::ClusterState& state = change.state;
    std::vector<policies::JobIndex> holder(static_cast<std::size_t>(state.cluster().total_gpus()),
                                           policies::kNoJob);
    for (const policies::JobIndex index : state.running()) {
      const ClusterJob& job = state.job(index);
      if (job.job_class != JobClass::kGuaranteed) continue;
      for (const auto& part : job.placement) {
        holder[state.cluster().index(part.node, part.gpu)] = index;
      }
    }
    for (const policies::JobIndex index : state.running()) {
      const ClusterJob& job = state.job(index);
      if (job.job_class == JobClass::kGuaranteed) continue;
      const TraceJob& own = *change.works[index].recorded;
      double unit = own.iteration_seconds * kSlower;
      for (const auto& part : job.placement) {
        const auto partner = holder[state.cluster().index(part.node, part.gpu)];
        if (partner == policies::kNoJob) continue;
        const Work& other = change.works[partner];
        unit = std::max(unit, iterations_beside(own, *other.recorded) * other.unit_seconds);
      }
      change.set_unit(index, unit);
    }
  }

  [[nodiscard]] bool counts_events() const override { return true; }

  [[nodiscard]] bool together(Time end, Time first) const override {
    return end <= first || end - first <= 1e-9 * end;
  }

 private:
  policies::CountedPlacer counted_;
  policies::FirstNodePlacer first_node_;
};

}  // namespace

std::unique_ptr<Semantics> make_muri() { return std::make_unique<Muri>(); }

}  // namespace commensal::simulator
