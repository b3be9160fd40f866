// SPDX-License-Identifier: Apache-2.0
// Makes jobs that run in seats of Slurm guaranteed ones, where they run.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/slurm/slurm_commands.h"
#include "coordinator/engines/slurm/slurm_twins.h"
#include "coordinator/wire/messages.h"

namespace commensal::cluster {

/// An upgrade under Slurm: the job has a seat beside others, and is to have the devices under it
/// for itself. A second job of Slurm, its twin, asks for them as a guaranteed one on the same
/// nodes, and waits in Slurm's queue like any other. Once it has exactly the devices that the job
/// runs on, the job's nodes are told (by their heartbeats where they report the job, else by
/// `commensal set JOB --class guaranteed` within the job's own allocation), and the twin holds the
/// devices until the job has ended, whatever becomes of the coordinator. Where Slurm gives other
/// devices of a node first, the twin that has them keeps them while another one is asked for, and
/// goes then.
///
/// A twin lives as long as the note `guaranteed` is in the attempt's folder and there is no
/// outcome. So what is given up is over at the latest when Slurm starts it. Once the nodes were
/// told, a twin that is lost is replaced by the engine (slurm_twin_watch.h).
///
/// Thread safety: none; `ask` may wait for commands of Slurm.
class SlurmGuarantee {
 public:
  struct Options {
    std::string instance = "default";
    std::filesystem::path state;  ///< that of the engine, which has made it
    std::string partition = "guaranteed";
    slurm::SlurmCommands::Options commands;
    /// `commensal` and what it must know before `set`; empty: jobs run without it.
    std::vector<std::string> commensal;
    /// Asks a node that reports the job, in place of `commensal set`; nothing: it does not.
    std::function<std::optional<wire::Message>(const std::string& node, const wire::Message&)>
        by_heartbeat;
    /// How long an upgrade may wait for devices and for the nodes before it is given up.
    std::chrono::milliseconds patience{20'000};
    std::chrono::milliseconds node_answers{15'000};  ///< longest wait for `commensal set`
  };

  /// `runner` and `clock` must outlive this object. Slurm need not answer.
  /// @throws EngineFailed if the state folder cannot be written to.
  SlurmGuarantee(Options options, slurm::CommandRunner& runner,
                 const Clock& clock = SteadyClock::instance());

  /// Answers a SetRequest for the class of an attempt on one of its nodes (NodeClasses::Ask): what
  /// the node said, or that it is deferred. Once it is refused there is no
  /// twin any more. `attempt` is the one that the request's job stands for.
  [[nodiscard]] wire::Message ask(const Attempt& attempt, const std::string& node,
                                  const wire::SetRequest& request);

 private:
  using Answer = wire::SetReply;
  /// What a twin waits for still; nothing: one holds the devices.
  [[nodiscard]] std::optional<Answer> twin(const local::AttemptFolder& folder);
  [[nodiscard]] std::vector<slurm::JobLine> twins(const Attempt& attempt);
  [[nodiscard]] wire::Message tell(const local::AttemptFolder& folder, const std::string& node,
                                   const wire::SetRequest& request);
  void give_up(const local::AttemptFolder& folder) noexcept;

  Options options_;
  slurm::SlurmCommands commands_;
  const Clock& clock_;
  std::string name_;
  std::optional<slurm::Twins> twins_;
  std::map<Attempt, TimePoint> since_;  // asked for, not decided
};

}  // namespace commensal::cluster
