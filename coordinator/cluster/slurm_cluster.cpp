// SPDX-License-Identifier: Apache-2.0
// Options to the engine for Slurm.
#include "coordinator/cluster/slurm_cluster.h"

#include <utility>

#include "coordinator/cluster/local_cluster.h"
#include "coordinator/engines/slurm/slurm_engine.h"
#include "coordinator/engines/slurm/slurm_guarantee.h"

namespace commensal::cluster {
namespace {

/// The engine with what it runs commands by.
class OwningSlurmEngine final : private slurm::ProcessRunner, public SlurmEngine {
 public:
  explicit OwningSlurmEngine(SlurmEngine::Options options)
      : SlurmEngine(std::move(options), static_cast<slurm::ProcessRunner&>(*this)) {}
};

std::unique_ptr<Engine> make_slurm_engine(const ClusterOptions& options) {
  SlurmEngine::Options engine;
  engine.instance = options.instance;
  engine.state = options.state_dir / "slurm";
  engine.keeper = options.keeper;
  engine.guaranteed_partition = options.slurm.guaranteed_partition;
  engine.opportunistic_partition = options.slurm.opportunistic_partition;
  engine.commands = {options.slurm.programs, options.slurm.submit_options};
  engine.prefix = [options](const Attempt& attempt, JobClass job_class, const JobSpec& spec) {
    return run_prefix(options, attempt, job_class, spec);
  };
  return std::make_unique<OwningSlurmEngine>(std::move(engine));
}

/// The same for upgrades, which are asked for on another thread.
class OwningGuarantee final : private slurm::ProcessRunner, public SlurmGuarantee {
 public:
  explicit OwningGuarantee(SlurmGuarantee::Options options)
      : SlurmGuarantee(std::move(options), static_cast<slurm::ProcessRunner&>(*this)) {}
};

SlurmGuarantee::Options guarantee_options(const ClusterOptions& options) {
  SlurmGuarantee::Options guarantee;
  guarantee.instance = options.instance;
  guarantee.state = options.state_dir / "slurm";
  guarantee.partition = options.slurm.guaranteed_partition;
  guarantee.commands = {options.slurm.programs, options.slurm.submit_options};
  if (!options.commensal.empty()) {
    guarantee.commensal = {options.commensal, "--instance", options.instance, "--runtime-dir",
                           options.runtime_dir.native()};
  }
  return guarantee;
}

}  // namespace

std::unique_ptr<Engine> make_engine(const ClusterOptions& options) {
  return options.engine == "slurm" ? make_slurm_engine(options) : make_local_engine(options);
}

NodeClasses::Ask class_asker(const ClusterOptions& options, NodeClasses::Ask local,
                             AskByHeartbeat by_heartbeat) {
  if (options.engine != "slurm") return local;
  SlurmGuarantee::Options how = guarantee_options(options);
  how.by_heartbeat = std::move(by_heartbeat);
  auto guarantee = std::make_shared<OwningGuarantee>(std::move(how));
  return [guarantee](const std::string& node, const wire::Message& message) -> wire::Message {
    const auto* request = std::get_if<wire::SetRequest>(&message);
    const auto attempt = request == nullptr ? std::nullopt : attempt_of_node_job(request->job);
    if (!attempt || !request->job_class) {
      return wire::Error{.code = "malformed", .what = "no request for the class of a job"};
    }
    return guarantee->ask(*attempt, node, *request);
  };
}

}  // namespace commensal::cluster
