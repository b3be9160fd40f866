// SPDX-License-Identifier: Apache-2.0
// A plan as JSON, with the names of the state.
#include "coordinator/engines/simulator/replay.h"

#include <set>
#include <string>
#include <utility>

#include "coordinator/engines/simulator/state_file.h"
#include "coordinator/policies/one_kind.h"
#include "coordinator/policies/placer.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator {
namespace {

using nlohmann::json;
using policies::Decision;
using policies::JobIndex;
using policies::JobPhase;

json json_of(const policies::Placement& placement, const RecordedState& recorded) {
  json parts = json::array();
  for (const policies::GpuPart& part : placement) {
    json entry{{"node", recorded.state.cluster().nodes()[part.node].name}};
    if (part.gpu != policies::kHostOnly) {
      entry["device"] = recorded.devices[part.node][part.gpu];
      entry["share"] = static_cast<double>(part.milli) / policies::kWholeGpu;
    }
    parts.push_back(std::move(entry));
  }
  return parts;
}

json json_of(const Decision& decision, const RecordedState& recorded) {
  json entry{{"job", recorded.jobs[decision.job]},
             {"action", policies::to_string(decision.action)},
             {"placement", json_of(decision.placement, recorded)},
             {"reason", policies::to_string(decision.reason)}};
  if (decision.action == policies::Action::kStart) {
    entry["class"] = to_string(decision.job_class);
  }
  return entry;
}

json summary_of(const RecordedState& recorded, const std::string& file) {
  const std::size_t running = recorded.state.running().size();
  return {{"file", file},
          {"kind", recorded.kind},
          {"now", recorded.now},
          {"nodes", recorded.state.cluster().nodes().size()},
          {"gpus", recorded.state.cluster().total_gpus()},
          {"running", running},
          {"queued", recorded.jobs.size() - running}};
}

}  // namespace

json replay(const RunOptions& options) {
  const auto policy = policies::make_policy(options.policy, options.policy_options, options.seed);
  RecordedState recorded = read_state(options.state);
  json answer{{"schema", 1},
              {"state", summary_of(recorded, options.state)},
              {"policy", options.policy},
              {"options", options.policy_options},
              {"assumed", recorded.assumed},
              {"goes_on", json::array()},
              {"waits", json::array()},
              {"never_fits", json::array()}};
  const policies::MostFreePlacer placer;
  const policies::ClusterPlan plan = recorded.state.decide(*policy, placer, {}, recorded.now);
  json decisions = json::array();
  std::set<JobIndex> decided;
  for (const Decision& decision : plan.decisions) {
    decisions.push_back(json_of(decision, recorded));
    decided.insert(decision.job);
  }
  const policies::DeviceKinds kinds = policies::kinds_of(recorded.state.cluster());
  for (JobIndex job = 0; job < recorded.jobs.size(); ++job) {
    if (decided.contains(job)) continue;
    const policies::ClusterJob& shown = recorded.state.job(job);
    const bool runs = shown.phase == JobPhase::kRunning;
    answer[runs ? "goes_on" : "waits"].push_back(recorded.jobs[job]);
    std::string lack = runs ? "" : policies::lack_of_one_kind(shown.gpus, kinds);
    if (lack.empty()) continue;
    answer["never_fits"].push_back({{"job", recorded.jobs[job]}, {"reason", std::move(lack)}});
  }
  answer["plan"] = {{"decisions", std::move(decisions)}, {"wake_seconds", nullptr}};
  if (plan.wake < policies::kNever) answer["plan"]["wake_seconds"] = plan.wake - recorded.now;
  return answer;
}

}  // namespace commensal::simulator
