// SPDX-License-Identifier: Apache-2.0
// The engine whose processes are numbers: the live coordinator in simulated time.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/engines/simulator/simulated_machines.h"

namespace commensal::simulator {

/// Keeps the contract of engines over simulated machines, which keep everything: another object
/// finds what this one left and tells of it again.
///
/// Its descriptor does not become readable because time passes: whoever holds the clock moves it to
/// `SimulatedMachines::next_change` and asks. It has no logs.
class SimulatorEngine final : public cluster::Engine {
 public:
  /// @param machines  not owned, must outlive this object.
  explicit SimulatorEngine(SimulatedMachines& machines) : machines_(machines) { machines_.tell(); }

  [[nodiscard]] std::string_view name() const noexcept override { return "simulator"; }
  [[nodiscard]] std::vector<cluster::EngineNode> nodes() override;
  void hold(const cluster::Attempt& attempt, const cluster::JobSpec& spec) override;
  void place(const cluster::Attempt& attempt, const std::vector<cluster::DevicePlace>& placement,
             JobClass job_class) override;
  void release(const cluster::Attempt& attempt) override;
  void take_back(const cluster::Attempt& attempt, std::chrono::milliseconds grace) override;
  [[nodiscard]] std::vector<cluster::EngineEvent> watch() override;
  [[nodiscard]] int descriptor() const noexcept override { return machines_.news(); }
  [[nodiscard]] std::vector<Found> adopt() override;
  [[nodiscard]] std::vector<cluster::Attempt> attempts() override;
  [[nodiscard]] std::string store_stamp() override { return machines_.store_stamp(); }
  void set_store_stamp(const std::string& stamp) override { machines_.set_store_stamp(stamp); }
  [[nodiscard]] std::uint64_t highest_job() override;
  void forget(const cluster::Attempt& attempt) override;
  [[nodiscard]] std::vector<std::string> logs(const cluster::Attempt& /*attempt*/) override {
    return {};
  }

 private:
  SimulatedMachines& machines_;
  std::set<cluster::Attempt> began_;  // told
  std::set<cluster::Attempt> ended_;  // the same
};

}  // namespace commensal::simulator
