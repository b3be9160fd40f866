// SPDX-License-Identifier: Apache-2.0
// Rivendile/Muri, simulator: work in iterations; at every event a running job loses the seconds that
// a restart of its model takes, restarted or not, so that results depend on the number of events.
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

class Muri final : public Semantics {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "muri"; }

  [[nodiscard]] const policies::Placer& placer(std::string_view policy) const override {
    if (policy == "2d-las") return counted_;
    return first_node_;
  }

  [[nodiscard]] std::map<std::string, std::string> options(std::string_view policy) const override {
    if (policy == "2d-las") return {{"crossing", "ceil"}};
    return {};
  }

  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) const override {
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
