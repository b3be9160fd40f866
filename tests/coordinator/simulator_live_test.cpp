// SPDX-License-Identifier: Apache-2.0
// The live coordinator, with its store, in simulated time: the jobs of a trace, beside the
// policies' simulator on the same trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/engines/simulator/readers/trace_reader.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/engines/simulator/simulator_engine.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/simulated_time.h"
#include "tests/coordinator/store_script.h"
#include "tests/sanitizers.h"

namespace commensal::simulator::simulator_live_test {
namespace {

using namespace std::chrono_literals;
using cluster::WallTime;
using nlohmann::json;

/// Nothing is ever synced: no machine is switched off here.
const bool kInstalled = (fault_vfs::install(), true);

constexpr int kNodes = 4;
constexpr int kDevices = 8;    // of each
constexpr double kBusy = 0.3;  // what the coordinator assumes of a job that nobody has measured

/// What there is of each job in the end, by its name; seconds on the trace's clock.
struct Lived {
  double start = 0;
  double end = 0;
  double jct = 0;
  std::string state;
};

Trace mixed_trace() {
  Trace trace = read_trace(COMMENSAL_TEST_DATA "/cluster-traces/mixed-200.csv", "commensal", {});
  for (TraceJob& job : trace.jobs) job.busy = kBusy;
  return trace;
}

std::vector<policies::Tenant> tenants() {
  return {{.name = "default", .quota = std::nullopt},
          {.name = "speech", .quota = 8},
          {.name = "vision", .quota = 12}};
}

/// Where jobs run, and for whom.
struct Site {
  std::vector<cluster::EngineNode> nodes = simulated_nodes(kNodes, kDevices);
  std::vector<policies::Tenant> tenants = simulator_live_test::tenants();
};

SharingModel sharing() {
  SharingModel model;
  model.busy = kBusy;
  return model;
}

Duration from_seconds(double seconds) {
  return Duration{static_cast<Duration::rep>(std::llround(seconds * 1e9))};
}

/// A coordinator whose world is numbers; it can be killed, and begins anew with what is left.
class LiveRun {
 public:
  LiveRun(const Trace& trace, const std::string& policy, const Site& site = {})
      : trace_(trace),
        policy_(policies::make_policy(policy, {})),
        machines_(clock_, {.nodes = site.nodes,
                           .run_of = [this](const auto&, const auto& spec) { return run(spec); },
                           .sharing = sharing()}) {
    for (const TraceJob& job : trace.jobs) by_name_[job.name] = &job;
    config_.look = 1h;
    open();
    for (const policies::Tenant& tenant : site.tenants) {
      if (tenant.quota) {
        ask({{"type", "quota"}, {"tenant", tenant.name}, {"quota", *tenant.quota}});
      }
    }
  }

  /// @param deaths  the coordinator is killed after so many steps, again and again; 0: never.
  std::map<std::string, Lived> play(int deaths = 0) {
    std::vector<const TraceJob*> waiting;
    for (const TraceJob& job : trace_.jobs) waiting.push_back(&job);
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](const auto* a, const auto* b) { return a->submit < b->submit; });
    auto next = waiting.begin();
    for (int step = 1;; ++step) {
      const TimePoint arrival =
          next == waiting.end() ? TimePoint::max() : begin_ + from_seconds((*next)->submit);
      const TimePoint change = machines_.next_change();
      if (arrival == TimePoint::max() && change == TimePoint::max()) break;
      clock_.set(std::max(clock_.now(), std::min({arrival, change, coordinator_->next_wake()})));
      for (; next != waiting.end() && begin_ + from_seconds((*next)->submit) <= clock_.now();
           ++next) {
        (void)coordinator_->answer(submission(**next), clock_.now());
      }
      if (deaths > 0 && step % deaths == 0) {
        settle_once();  // what was acknowledged; then it dies with everything that it knows
        open();
      }
      settle();
    }
    return lived();
  }

  /// Plays until all jobs have ended, or nothing has for so long. @return how many have.
  std::size_t ended_within(Duration quiet) {
    auto next = trace_.jobs.begin();  // they stand in the order of their submission
    std::size_t ended = 0;
    TimePoint changed = clock_.now();
    while (ended < trace_.jobs.size() && clock_.now() < changed + quiet) {
      const TimePoint arrival =
          next == trace_.jobs.end() ? TimePoint::max() : begin_ + from_seconds(next->submit);
      const TimePoint due = std::min(machines_.next_change(), coordinator_->next_wake());
      clock_.set(std::max(clock_.now(), std::min({arrival, due, clock_.now() + quiet})));
      if (arrival <= clock_.now()) {
        (void)coordinator_->answer(submission(*next++), clock_.now());
        changed = clock_.now();
      }
      settle();
      const std::size_t now = store_->ended(1000).size();
      if (std::exchange(ended, now) != now) changed = clock_.now();
    }
    return ended;
  }

  [[nodiscard]] bool started_twice() const {
    return std::any_of(by_name_.begin(), by_name_.end(), [this](const auto& entry) {
      return machines_.starts({ids_.at(entry.first), 1}) != 1 ||
             machines_.starts({ids_.at(entry.first), 2}) != 0;
    });
  }

 private:
  void open() {
    coordinator_.reset();
    engine_.reset();
    store_.reset();
    store_.emplace(folder_.path() / "cluster.db");
    engine_.emplace(machines_);
    coordinator_.emplace(
        config_, *store_, *engine_, classes_, *policy_, [this] { return wall(); }, log_,
        clock_.now());
  }

  [[nodiscard]] WallTime wall() const {
    return WallTime{24h + std::chrono::round<std::chrono::milliseconds>(clock_.now() - begin_)};
  }
  [[nodiscard]] SimulatedRun run(const cluster::JobSpec& spec) const {
    SimulatedRun run;
    run.work = from_seconds(by_name_.at(spec.name)->duration);
    return run;
  }

  json submission(const TraceJob& job) {
    return {{"type", "submit"},
            {"request", job.name},
            {"job",
             {{"name", job.name},
              {"tenant", job.tenant},
              {"class", to_string(job.asked)},
              {"gpus", job.gpus},
              {"cpu_milli", 0},
              {"host_memory_mib", 0},
              {"environment", json::object()},
              {"command", json::array({"train"})},
              {"directory", "/"}}}};
  }
  void ask(const json& request) {
    (void)coordinator_->answer(request, clock_.now());
    settle();
  }
  void settle_once() { coordinator_->settle(clock_.now()); }
  /// Until nothing more happens at this moment.
  void settle() {
    for (int i = 0; i < 4; ++i) settle_once();
  }

  std::map<std::string, Lived> lived() {
    std::map<std::string, Lived> all;
    const auto seconds = [](WallTime at) {
      return std::chrono::duration<double>(at - WallTime{24h}).count();
    };
    for (const cluster::JobRecord& job : store_->ended(1000)) {
      Lived& lived = all[job.spec.name];
      lived.end = seconds(job.changed);
      lived.jct = seconds(job.changed) - seconds(job.submitted);
      lived.state = to_string(job.state);
      for (const cluster::Transition& line : store_->history(job.id)) {
        if (line.to == cluster::JobState::kStarting) lived.start = seconds(line.at);
      }
      ids_[job.spec.name] = job.id;
    }
    return all;
  }

  const Trace& trace_;
  std::map<std::string, const TraceJob*> by_name_;
  std::map<std::string, JobId> ids_;
  const cluster::TemporaryFolder folder_;
  cluster::ClusterConfig config_;
  SimulatedTime clock_;
  const TimePoint begin_ = clock_.now();
  std::unique_ptr<policies::ClusterPolicy> policy_;
  SimulatedMachines machines_;
  SimulatedClasses classes_{machines_};
  std::shared_ptr<spdlog::logger> log_ =
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_st>());
  std::optional<cluster::Store> store_;
  std::optional<SimulatorEngine> engine_;
  std::optional<cluster::ClusterCoordinator> coordinator_;
};

/// @param until_settled  the policy is asked as often as the coordinator asks it.
Outcome simulated(const Trace& trace, const std::string& policy, bool until_settled) {
  const auto rules = make_semantics("commensal", policy, trace, 0, sharing());
  const auto decides = policies::make_policy(policy, rules->options(policy));
  std::vector<policies::NodeSpec> nodes;
  for (const cluster::EngineNode& node : simulated_nodes(kNodes, kDevices)) {
    nodes.push_back({.name = node.name,
                     .gpu_type = node.device_type,
                     .gpus = kDevices,
                     .cpu_milli = node.cpu_milli,
                     .memory_mib = node.memory_mib});
  }
  Conditions conditions;
  conditions.tenants = tenants();
  conditions.until_settled = until_settled;
  return simulate(trace, policies::Cluster(std::move(nodes)), *rules, policy, *decides, {}, {},
                  conditions);
}

double mean_jct(const std::map<std::string, Lived>& jobs) {
  double sum = 0;
  for (const auto& [name, job] : jobs) sum += job.jct;
  return sum / static_cast<double>(jobs.size());
}

double mean_jct(const Outcome& outcome) {
  double sum = 0;
  for (const JobOutcome& job : outcome.jobs) sum += job.end - job.submit;
  return sum / static_cast<double>(outcome.jobs.size());
}

struct Played {
  std::string policy;
  bool exact = true;  ///< else the simulator places jobs in another way, or asks at other moments
};
void PrintTo(const Played& played, std::ostream* out) { *out << played.policy; }

class SimulatorLive : public ::testing::TestWithParam<Played> {
 protected:
  const std::string policy_ = GetParam().policy;
  const Trace trace_ = mixed_trace();
};

/// How far the ends of jobs are apart, at most, in seconds.
double furthest(const std::map<std::string, Lived>& lived, const Trace& trace,
                const Outcome& outcome) {
  double most = 0;
  for (const JobOutcome& job : outcome.jobs) {
    most = std::max(most, std::abs(lived.at(trace.jobs[job.row].name).end - job.end));
  }
  return most;
}

TEST_P(SimulatorLive, TheCoordinatorAndThePoliciesSimulatorTellTheSame) {
  LiveRun run{trace_, policy_};
  const auto lived = run.play();
  ASSERT_EQ(lived.size(), trace_.jobs.size());
  for (const auto& [name, job] : lived) EXPECT_EQ(job.state, "finished") << name;
  EXPECT_FALSE(run.started_twice());

  // Asked equally often, the policy does the same: to the millisecond that the store keeps.
  const Outcome settled = simulated(trace_, policy_, true);
  if (GetParam().exact) {
    EXPECT_LE(furthest(lived, trace_, settled), 0.0015);
  }
  double waited = 0;
  for (const JobOutcome& job : settled.jobs) waited += job.waited;
  EXPECT_GT(waited / 200, 10) << "a trace in which nobody waits shows nothing";

  // The simulator asks it once an event, and no more until the next one.
  const Outcome expected = simulated(trace_, policy_, false);
  EXPECT_NEAR(mean_jct(lived) / mean_jct(expected), 1, 0.01);
  std::cout << policy_ << ": average JCT live " << mean_jct(lived) << " s, simulated "
            << mean_jct(expected) << " s\n";
}

TEST_P(SimulatorLive, ACoordinatorThatDiesAgainAndAgainChangesNoJobsTimes) {
  LiveRun steady{trace_, policy_};
  LiveRun dies{trace_, policy_};
  const auto expected = steady.play();
  const auto lived = dies.play(7);
  ASSERT_EQ(lived.size(), expected.size());
  EXPECT_FALSE(dies.started_twice());
  int apart = 0;
  for (const auto& [name, job] : expected) {
    EXPECT_EQ(lived.at(name).state, "finished") << name;
    apart += lived.at(name).start == job.start && lived.at(name).end == job.end ? 0 : 1;
  }
  EXPECT_EQ(apart, 0);
}

// fifo takes devices from the emptiest node live, and from the first one in the simulator's
// profile; dragon looks at its clock.
INSTANTIATE_TEST_SUITE_P(Policies, SimulatorLive,
                         ::testing::Values(Played{"antman"}, Played{"pai"}, Played{"fifo", false},
                                           Played{"dragon", false}),
                         [](const auto& tested) { return tested.param.policy; });

TEST(EveryPolicyLive, EndsAllJobs) {
  Trace trace = mixed_trace();
  trace.jobs.resize(testing::kSanitized ? 30 : 100);
  std::vector<std::string> offline;
  for (const policies::PolicyEntry& entry : policies::all_policies()) {
    SCOPED_TRACE(entry.name);
    policies::Options none{{}};
    const auto policy = entry.make(none);
    if (!policy->needs().empty()) {
      offline.emplace_back(entry.name);
      continue;
    }
    LiveRun run{trace, std::string{entry.name}};
    EXPECT_EQ(run.ended_within(24h), trace.jobs.size());
  }
  EXPECT_THAT(offline, ::testing::ElementsAre("gandiva", "gavel", "optimus", "optimus+oracle"));
}

/// One tenant sends an auto job each 80 s, each of which takes 100 s; a guaranteed one of another
/// comes at 10 s.
Trace one_among_auto_jobs(int count) {
  Trace trace;
  const auto add = [&](std::string name, double submit, std::string tenant,
                       policies::AskedClass asked) {
    TraceJob& job = trace.jobs.emplace_back();
    job.name = std::move(name);
    job.submit = submit;
    job.duration = 100;
    job.gpus = 1;
    job.tenant = std::move(tenant);
    job.asked = asked;
    job.busy = kBusy;
  };
  for (int i = 0; i < count; ++i) {
    add("auto-" + std::to_string(i), i * 80.0, "audio", policies::AskedClass::kAuto);
  }
  add("guaranteed", 10, "nlp", policies::AskedClass::kGuaranteed);
  return trace;
}

TEST(EveryPolicyLive, AGuaranteedJobWaitsForTheOneThatRunsAndNotForThoseThatCameLater) {
  const Trace trace = one_among_auto_jobs(20);
  const Site one_device{.nodes = simulated_nodes(1, 1),
                        .tenants = {{.name = "audio", .quota = 1}, {.name = "nlp", .quota = 4}}};
  for (const policies::PolicyEntry& entry : policies::all_policies()) {
    policies::Options none{{}};
    if (!entry.make(none)->needs().empty()) continue;
    LiveRun run{trace, std::string{entry.name}, one_device};
    auto lived = run.play();
    EXPECT_LE(lived["guaranteed"].start, lived["auto-0"].end + 1) << entry.name;
    EXPECT_EQ(lived.size(), trace.jobs.size()) << entry.name;
  }
}

}  // namespace
}  // namespace commensal::simulator::simulator_live_test
