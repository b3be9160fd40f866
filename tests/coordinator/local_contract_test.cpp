// SPDX-License-Identifier: Apache-2.0
// The local engine keeps the contract of engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/engine_contract.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::local_contract_test {
namespace {

class LocalHarness final : public EngineHarness {
 public:
  explicit LocalHarness(std::size_t width = 1) : width_(width) {}
  [[nodiscard]] std::size_t width() const override { return width_; }
  std::unique_ptr<Engine> make() override { return world_.make(); }
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
  void wait(Engine& engine) override { wait_for_news(engine); }

 private:
  std::size_t width_;
  LocalWorld world_;
};

INSTANTIATE_TEST_SUITE_P(
    Local, EngineContract,
    ::testing::Values(EngineUnderTest{"local", [] { return std::make_unique<LocalHarness>(); }},
                      EngineUnderTest{"local_gang",
                                      [] { return std::make_unique<LocalHarness>(2); }}),
    name_of);

}  // namespace
}  // namespace commensal::cluster::local_contract_test
