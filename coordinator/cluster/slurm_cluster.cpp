// SPDX-License-Identifier: Apache-2.0
// Options to the engine for Slurm.
#include "coordinator/cluster/slurm_cluster.h"

#include <utility>

#include "coordinator/cluster/local_cluster.h"
#include "coordinator/engines/slurm/slurm_engine.h"

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

}  // namespace

std::unique_ptr<Engine> make_engine(const ClusterOptions& options) {
  return options.engine == "slurm" ? make_slurm_engine(options) : make_local_engine(options);
}

NodeClasses::Ask class_asker(const ClusterOptions& options, NodeClasses::Ask local) {
  if (options.engine != "slurm") return local;
  return [](const std::string&, const wire::Message&) -> wire::Message {
    return wire::Error{.code = "refused",
                       .what =
                           "Slurm gave it a seat beside others, not a device of its own: it "
                           "stays opportunistic until it ends"};
  };
}

}  // namespace commensal::cluster
