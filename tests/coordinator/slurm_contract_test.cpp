// SPDX-License-Identifier: Apache-2.0
// The engine for Slurm keeps the contract of engines: with a Slurm that is made up, and with the
// one that SLURM_CONF names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>

#include "coordinator/engines/slurm/slurm_engine.h"
#include "tests/coordinator/engine_contract.h"
#include "tests/coordinator/fake_slurm.h"
#include "tests/coordinator/local_world.h"
#include "tests/coordinator/slurm_cluster.h"

namespace commensal::cluster::slurm_contract_test {
namespace {

class SlurmHarness : public EngineHarness {
 public:
  explicit SlurmHarness(slurm::CommandRunner& runner, std::size_t width = 1)
      : runner_(runner), width_(width) {}
  [[nodiscard]] std::size_t width() const override { return width_; }
  std::unique_ptr<Engine> make() override {
    SlurmEngine::Options options;
    options.instance = "contract";
    options.state = world_.state();
    options.keeper = COMMENSAL_KEEPER;
    options.patience = std::chrono::milliseconds{0};
    options.commands.programs = programs_;
    return std::make_unique<SlurmEngine>(options, runner_);
  }
  JobSpec ends_with(int exit_code) override {
    return world_.script("exit " + std::to_string(exit_code));
  }
  JobSpec runs_on() override { return world_.script("exec sleep 1000"); }
  JobSpec ignores_sigterm() override {
    return world_.job({"/bin/sh", "-c",
                       "trap '' TERM; echo started >> "
                       "$COMMENSAL_CLUSTER_JOB-$COMMENSAL_CLUSTER_ATTEMPT.starts; "
                       "while :; do sleep 1000; done"});
  }
  int starts(const Attempt& attempt) override { return world_.starts(attempt, width_); }
  void lose(const Attempt& attempt) override { world_.kill_keeper(attempt); }
  void wait(Engine& /*engine*/) override { ::poll(nullptr, 0, 5); }

 protected:
  slurm::CommandRunner& runner_;
  std::size_t width_;
  std::filesystem::path programs_;  // the PATH's, if it is empty
  LocalWorld world_;
};

class FakeSlurmHarness final : private FakeSlurm, public SlurmHarness {
 public:
  explicit FakeSlurmHarness(std::size_t width = 1)
      : SlurmHarness(static_cast<FakeSlurm&>(*this), width) {
    programs_ = COMMENSAL_FAKE_SLURM;
  }
  explicit FakeSlurmHarness(std::string lines) : FakeSlurmHarness(1) { nodes = std::move(lines); }
};

/// Commands of a real Slurm whose daemons run in a folder of their own.
class RealSlurmHarness final : private slurm::ProcessRunner, public SlurmHarness {
 public:
  RealSlurmHarness() : SlurmHarness(static_cast<slurm::ProcessRunner&>(*this)) {
    slurm_cluster().use();
  }
};

constexpr const char* kNewerNodes =
    "g1|idle~|4|4000|gpu:a100:2(S:0-1),seat:2(S:0-1)|127.0.0.1|none\n"
    "g2|planned|4|4000|gpu:a100:1(S:0),gpu:h100:1(S:1),seat:2|127.0.0.1|none\n"
    "g2|planned|4|4000|gpu:a100:1(S:0),gpu:h100:1(S:1),seat:2|127.0.0.1|none\n";

INSTANTIATE_TEST_SUITE_P(
    FakeSlurm, EngineContract,
    ::testing::Values(
        EngineUnderTest{"slurm_22_05", [] { return std::make_unique<FakeSlurmHarness>(); }},
        EngineUnderTest{"slurm_gang", [] { return std::make_unique<FakeSlurmHarness>(2); }},
        EngineUnderTest{"slurm_newer",
                        [] { return std::make_unique<FakeSlurmHarness>(kNewerNodes); }}),
    name_of);

INSTANTIATE_TEST_SUITE_P(RealSlurm, EngineContract,
                         ::testing::Values(EngineUnderTest{
                             "slurm", [] { return std::make_unique<RealSlurmHarness>(); },
                             [] { return slurm_cluster().lacks(); }}),
                         name_of);

}  // namespace
}  // namespace commensal::cluster::slurm_contract_test
