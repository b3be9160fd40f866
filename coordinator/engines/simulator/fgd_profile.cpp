// SPDX-License-Identifier: Apache-2.0
// Order, amount and metrics of FGD's experiments.
#include "coordinator/engines/simulator/fgd_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "coordinator/engines/simulator/go_random.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/cluster_plan.h"
#include "coordinator/policies/typical_jobs.h"

namespace commensal::simulator {
namespace {

using policies::kNever;
using policies::kWholeGpu;

constexpr double kDemand = 1.3;  // of the GPUs of the cluster
// Watches of the scheduler's client that draw the length of their timeouts before nodes are
// shuffled.
constexpr int kDrawsOfWatches = 10;

std::int64_t gpu_milli(const TraceJob& job) { return std::int64_t{job.gpus} * job.gpu_milli; }

/// The original's tables have two digits.
double hundredths(double value) { return std::nearbyint(value * 100) / 100; }

/// Adds or takes out pods at random until the demand is `target` thousandths of a GPU.
void tune(GoRandom& random, double target, const std::vector<TraceJob>& recorded,
          std::vector<TraceJob>& jobs) {
  std::int64_t sum = 0;
  for (const TraceJob& job : jobs) sum += gpu_milli(job);
  while (static_cast<double>(sum) > target) {
    const std::size_t out = random.draw(jobs.size());
    sum -= gpu_milli(jobs[out]);
    jobs.erase(jobs.begin() + static_cast<std::ptrdiff_t>(out));
  }
  if (jobs.size() < recorded.size() || sum == 0) return;
  for (std::size_t added = 0; static_cast<double>(sum) < target; ++added) {
    TraceJob job = recorded[random.draw(recorded.size())];
    if (static_cast<double>(sum + job.gpu_milli) > target) break;  // of one of its GPUs
    sum += gpu_milli(job);
    job.name += fmt::format("-tuned-{}", added);
    jobs.push_back(std::move(job));
  }
}

template <typename T>
void sort_by_name(std::vector<T>& values) {
  std::sort(values.begin(), values.end(), [](const T& a, const T& b) { return a.name < b.name; });
}

class Fgd final : public Semantics {
 public:
  explicit Fgd(std::uint64_t seed) : seed_(seed) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "fgd"; }
  [[nodiscard]] const policies::Placer& placer(std::string_view /*policy*/) const override {
    return placer_;
  }
  [[nodiscard]] std::map<std::string, std::string> options(std::string_view policy) const override {
    if (policy == "random") return {{"seed", std::to_string(seed_)}};
    return {};
  }
  [[nodiscard]] policies::JobModels models() const override {
    policies::JobModels models;
    models.typical = typical_ ? &*typical_ : nullptr;
    return models;
  }

  void arrange(Trace& trace, std::vector<policies::NodeSpec>& nodes) override {
    sort_by_name(trace.jobs);
    sort_by_name(nodes);
    std::int64_t gpus = 0;
    for (const policies::NodeSpec& node : nodes) gpus += node.gpus;
    const std::vector<TraceJob> recorded = trace.jobs;
    GoRandom random(seed_);
    (void)random.bits();  // the original writes one into its log
    random.shuffle(trace.jobs);
    tune(random, kDemand * static_cast<double>(gpus * kWholeGpu), recorded, trace.jobs);
    for (int drawn = 0; drawn < kDrawsOfWatches; ++drawn) (void)random.bits();
    const std::vector<policies::NodeSpec> by_name = nodes;
    const std::vector<std::size_t> places = random.permutation(nodes.size());
    for (std::size_t node = 0; node < nodes.size(); ++node) nodes[places[node]] = by_name[node];
    count_typical(recorded, policies::Cluster(nodes));
  }

  void prepare(const TraceJob& /*recorded*/, ClusterJob& job, Work& work) override {
    job.submit = static_cast<double>(arrivals_++);
    job.duration = job.remaining = kNever;
    work.left = kNever;
  }
  [[nodiscard]] bool leaves() const override { return false; }
  [[nodiscard]] Time end(const ClusterJob& /*job*/, const Work& /*work*/,
                         Time /*now*/) const override {
    return kNever;
  }

  [[nodiscard]] std::map<std::string, double> metrics(const Trace& trace,
                                                      const policies::Cluster& cluster,
                                                      const Outcome& outcome) const override {
    const double all = static_cast<double>(cluster.total_gpus()) * kWholeGpu / 100;
    std::map<int, std::pair<double, int>> at;  // percent arrived: percent allocated, summed; pods
    std::int64_t arrived = 0;
    std::int64_t allocated = 0;
    int placed = 0;
    for (const JobOutcome& job : outcome.jobs) {
      const std::int64_t milli = gpu_milli(trace.jobs[job.row]);
      arrived += milli;
      if (job.first_start < kNever) {
        allocated += milli;
        ++placed;
      }
      auto& [sum, pods] = at[static_cast<int>(std::nearbyint(static_cast<double>(arrived) / all))];
      sum += hundredths(static_cast<double>(allocated) / all);
      ++pods;
    }
    std::map<std::string, double> metrics{
        {"jobs", static_cast<double>(outcome.jobs.size())},
        {"jobs_placed", static_cast<double>(placed)},
        {"gpu_allocation_ratio", static_cast<double>(allocated) / all}};
    for (int percent = 10; percent <= 130; percent += 10) {
      const auto found = at.find(percent);
      if (found == at.end()) continue;
      metrics[fmt::format("gpu_allocation_ratio_at_demand_{}pct", percent)] =
          hundredths(found->second.first / found->second.second);
    }
    return metrics;
  }

 private:
  void count_typical(const std::vector<TraceJob>& jobs, const policies::Cluster& cluster) {
    std::map<policies::TypicalRequest, std::int64_t> counts;
    for (const TraceJob& recorded : jobs) {
      ClusterJob job;
      job.gpus = recorded.gpus;
      job.gpu_milli = recorded.gpu_milli;
      job.cpu_milli = recorded.cpu_milli;
      job.gpu_types = cluster.type_bits(recorded.gpu_types);
      ++counts[policies::request_of(job)];
    }
    typical_.emplace(std::vector<std::pair<policies::TypicalRequest, std::int64_t>>(counts.begin(),
                                                                                    counts.end()));
  }

  std::uint64_t seed_;
  policies::CountedPlacer placer_;
  std::optional<policies::TypicalJobs> typical_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace

std::unique_ptr<Semantics> make_fgd(std::uint64_t seed) { return std::make_unique<Fgd>(seed); }

}  // namespace commensal::simulator
