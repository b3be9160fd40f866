// SPDX-License-Identifier: Apache-2.0
// The fake keeps the contract of engines, and goes wrong when it is told to.
#include "tests/coordinator/fake_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/engine_contract.h"

namespace commensal::cluster::fake_engine_test {
namespace {

class FakeHarness final : public EngineHarness {
 public:
  std::unique_ptr<Engine> make() override { return std::make_unique<FakeEngine>(world_); }
  JobSpec ends_with(int exit_code) override { return job({"exit", std::to_string(exit_code)}); }
  JobSpec runs_on() override { return job({"wait"}); }
  JobSpec ignores_sigterm() override { return job({"stubborn"}); }
  int starts(const Attempt& attempt) override { return world_.starts(attempt); }
  void lose(const Attempt& attempt) override { world_.lose(attempt); }
  void wait(Engine& /*engine*/) override { world_.tick(); }

  static JobSpec job(std::vector<std::string> command) {
    JobSpec spec;
    spec.command = std::move(command);
    spec.directory = "/";
    return spec;
  }

 private:
  FakeWorld world_;
};

INSTANTIATE_TEST_SUITE_P(Fake, EngineContract,
                         ::testing::Values(EngineUnderTest{
                             "fake", [] { return std::make_unique<FakeHarness>(); }}),
                         name_of);

class FakeEngineTest : public ::testing::Test {
 protected:
  void start() {
    engine_.hold(attempt_, FakeHarness::job({"wait"}));
    engine_.place(attempt_, {{"fake-0", 1}}, JobClass::kGuaranteed);
    engine_.release(attempt_);
  }
  const Attempt attempt_{JobId{"7"}, 1};
  FakeWorld world_;
  FakeEngine engine_{world_};
};

TEST_F(FakeEngineTest, FailsBeforeOrAfterItsWork) {
  world_.fail(EngineCall::kHold);
  EXPECT_THROW(engine_.hold(attempt_, FakeHarness::job({"wait"})), EngineFailed);
  EXPECT_FALSE(world_.attempts.contains(attempt_));
  world_.fail(EngineCall::kHold, Moment::kAfter);
  EXPECT_THROW(engine_.hold(attempt_, FakeHarness::job({"wait"})), EngineFailed);
  EXPECT_TRUE(world_.attempts.contains(attempt_));
  start();
  EXPECT_TRUE(world_.runs(attempt_));
}

TEST_F(FakeEngineTest, FailsAsOftenAsItIsTold) {
  world_.fail(EngineCall::kWatch, Moment::kBefore, 2);
  EXPECT_THROW((void)engine_.watch(), EngineFailed);
  EXPECT_THROW((void)engine_.watch(), EngineFailed);
  EXPECT_NO_THROW((void)engine_.watch());
}

TEST_F(FakeEngineTest, TheCoordinatorsDeathIsNoError) {
  world_.die(EngineCall::kRelease, Moment::kAfter);
  bool died = false;
  try {
    start();
  } catch (const std::exception&) {
    FAIL() << "must not look like an error";
  } catch (const CoordinatorDied&) {
    died = true;
  }
  EXPECT_TRUE(died);
  FakeEngine next{world_};
  EXPECT_EQ(next.adopt().size(), 1U);
  next.release(attempt_);
  EXPECT_EQ(world_.starts(attempt_), 1);
}

TEST_F(FakeEngineTest, WhatIsForgottenIsNotTheHighestJobAnyMoreUnlessItHasOutput) {
  start();
  world_.end(attempt_, 0);
  EXPECT_EQ(engine_.highest_job(), 7U);
  engine_.forget(attempt_);
  EXPECT_EQ(engine_.highest_job(), 0U);
  world_.logs[{JobId{"5"}, 3}] = {"a file"};
  EXPECT_EQ(engine_.highest_job(), 5U);
  world_.fail(EngineCall::kHighestJob);
  EXPECT_THROW((void)engine_.highest_job(), EngineFailed);
}

TEST_F(FakeEngineTest, WritesCallsDownAndBeginsWhenTold) {
  world_.begin_at_release = false;
  start();
  EXPECT_THAT(engine_.watch(), ::testing::IsEmpty());
  world_.begin(attempt_);
  EXPECT_EQ(engine_.watch().size(), 1U);
  EXPECT_THAT(world_.calls,
              ::testing::ElementsAre("hold 7.1", "place 7.1", "release 7.1", "watch", "watch"));
  world_.wipe(attempt_);
  EXPECT_THAT(engine_.adopt(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace commensal::cluster::fake_engine_test
