// SPDX-License-Identifier: Apache-2.0
// How long one decision of a policy takes on a large cluster with a long queue, through
// `ClusterState` as a coordinator and the simulator decide: arrivals and ends, then a plan that is
// checked and committed. One JSON object.
//
//   decision_benchmark POLICY NODES QUEUED CHANGES DECISIONS
//
// The first decision fills an empty cluster of 8 GPUs a node from the whole queue. Before each of
// the others half of CHANGES jobs end, drawn among those that run, and as many arrive as keep the
// queue QUEUED long; the changes themselves are not timed.
#include <array>
#include <ctime>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"

namespace commensal::policies {
namespace {

constexpr std::int32_t kGpusPerNode = 8;
constexpr std::size_t kTenants = 50;
constexpr std::int32_t kBusyMilli = 600;
constexpr Time kBetween = 10;  // seconds on the clock of the decisions

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

/// Draws jobs: mostly of one GPU, six in ten guaranteed, three opportunistic, one auto.
class Jobs {
 public:
  ClusterJob next(Time now) {
    constexpr std::array<std::int32_t, 6> kSizes{1, 2, 4, 8, 16, 32};
    ClusterJob job;
    job.submit = now;
    job.gpus = job.min_gpus = job.max_gpus = kSizes[static_cast<std::size_t>(size_(random_))];
    job.tenant = tenant_(random_);
    job.asked = static_cast<AskedClass>(class_(random_));
    job.duration = job.remaining = 3600;
    job.load_milli = kBusyMilli;
    return job;
  }

  /// A number below `count`.
  std::size_t draw(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>{0, count - 1}(random_);
  }

 private:
  // NOLINTNEXTLINE(bugprone-random-generator-seed): the same jobs each time
  std::mt19937_64 random_{1};
  std::discrete_distribution<int> size_{70, 8, 7, 12, 2, 1};
  std::discrete_distribution<int> class_{6, 3, 1};  // in the order of AskedClass
  std::uniform_int_distribution<TenantIndex> tenant_{0, kTenants - 1};
};

std::vector<Tenant> tenants(std::int32_t gpus) {
  std::vector<Tenant> all;
  all.reserve(kTenants);
  for (std::size_t i = 0; i < kTenants; ++i) {
    // Half as much again as there is: quotas bind some, the cluster the others.
    all.push_back({.name = "t" + std::to_string(i),
                   .quota = gpus * 3 / 2 / static_cast<std::int32_t>(kTenants)});
  }
  return all;
}

class Benchmark {
 public:
  Benchmark(const std::string& policy, std::int32_t nodes, std::size_t queued)
      : policy_(make_policy(policy, {})),
        state_(Cluster(equal_nodes(nodes, kGpusPerNode)), tenants(nodes * kGpusPerNode)),
        queued_(queued) {}

  nlohmann::json run(std::size_t changes, std::size_t decisions) {
    fill_queue();
    nlohmann::json result{{"first", decide()}, {"others", nlohmann::json::array()}};
    for (std::size_t i = 0; i < decisions; ++i) {
      for (std::size_t end = 0; end < changes / 2; ++end) {
        state_.end(state_.running()[jobs_.draw(state_.running().size())]);
        ++ended_;
      }
      fill_queue(changes - changes / 2);
      now_ += kBetween;
      result["others"].push_back(decide());
    }
    result["queued"] = queue();
    result["running"] = state_.running().size();
    return result;
  }

 private:
  [[nodiscard]] std::size_t queue() {
    return state_.jobs().size() - state_.running().size() - ended_;
  }

  void fill_queue(std::size_t least = 0) {
    for (std::size_t i = 0; i < least || queue() < queued_; ++i) state_.arrive(jobs_.next(now_));
  }

  nlohmann::json decide() {
    const double began = seconds_of(CLOCK_MONOTONIC);
    const double cpu_began = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const ClusterPlan plan = state_.decide(*policy_, placer_, {}, now_);
    const double cpu_decided = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    state_.commit(plan);
    const double cpu_ended = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return {{"decide_cpu_ms", (cpu_decided - cpu_began) * 1e3},
            {"commit_cpu_ms", (cpu_ended - cpu_decided) * 1e3},
            {"wall_ms", (seconds_of(CLOCK_MONOTONIC) - began) * 1e3},
            {"decisions", plan.decisions.size()}};
  }

  std::unique_ptr<ClusterPolicy> policy_;
  FirstNodePlacer placer_;
  ClusterState state_;
  Jobs jobs_;
  std::size_t queued_;
  std::size_t ended_ = 0;
  Time now_ = 0;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 6) {
    throw std::runtime_error("usage: decision_benchmark POLICY NODES QUEUED CHANGES DECISIONS");
  }
  Benchmark benchmark(arguments[1], std::stoi(arguments[2]), std::stoul(arguments[3]));
  std::cout << benchmark.run(std::stoul(arguments[4]), std::stoul(arguments[5])) << "\n";
  return 0;
}

}  // namespace
}  // namespace commensal::policies

int main(int argc, char** argv) {
  try {
    return commensal::policies::run(std::vector<std::string>(argv, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "decision_benchmark: " << error.what() << '\n';
    return 1;
  }
}
