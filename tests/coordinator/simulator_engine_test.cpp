// SPDX-License-Identifier: Apache-2.0
// The simulator's engine keeps the contract of engines, and simulated time passes as it should.
#include "coordinator/engines/simulator/simulator_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/coordinator/engine_contract.h"
#include "tests/coordinator/simulated_time.h"

namespace commensal::simulator::simulator_engine_test {
namespace {

using namespace std::chrono_literals;
using cluster::Attempt;
using cluster::DevicePlace;
using cluster::EngineEvent;
using cluster::EngineUnderTest;
using cluster::JobSpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Kind = EngineEvent::Kind;

JobSpec job(std::string word, std::string value = "") {
  JobSpec spec;
  spec.command = {std::move(word), std::move(value)};
  spec.directory = "/";
  return spec;
}

/// Jobs say in their command what they do.
SimulatedRun run_of(const Attempt& /*attempt*/, const JobSpec& spec) {
  SimulatedRun run;
  if (spec.command.front() == "exit") {
    run.work = 1s;
    run.exit_code = std::stoi(spec.command.at(1));
  }
  if (spec.command.front() == "stubborn") run.after_sigterm.reset();
  if (spec.command.front() == "slow") run.after_sigterm = 3s;
  return run;
}

class SimulatorHarness final : public cluster::EngineHarness {
 public:
  std::unique_ptr<cluster::Engine> make() override {
    return std::make_unique<SimulatorEngine>(machines_);
  }
  JobSpec ends_with(int exit_code) override { return job("exit", std::to_string(exit_code)); }
  JobSpec runs_on() override { return job("wait"); }
  JobSpec ignores_sigterm() override { return job("stubborn"); }
  int starts(const Attempt& attempt) override { return machines_.starts(attempt); }
  void lose(const Attempt& attempt) override { machines_.lose(attempt); }
  void wait(cluster::Engine& /*engine*/) override { clock_.pass(1s); }

 private:
  SimulatedTime clock_;
  SimulatedMachines machines_{clock_,
                              {.nodes = simulated_nodes(2, 2), .run_of = run_of, .sharing = {}}};
};

}  // namespace
}  // namespace commensal::simulator::simulator_engine_test

namespace commensal::cluster {

INSTANTIATE_TEST_SUITE_P(
    Simulator, EngineContract,
    ::testing::Values(EngineUnderTest{
        "simulator",
        [] { return std::make_unique<simulator::simulator_engine_test::SimulatorHarness>(); }}),
    name_of);

}  // namespace commensal::cluster

namespace commensal::simulator::simulator_engine_test {
namespace {

class SimulatorEngineTest : public ::testing::Test {
 protected:
  void start(const Attempt& attempt, const JobSpec& spec, std::vector<DevicePlace> placement,
             JobClass job_class = JobClass::kGuaranteed) {
    engine_.hold(attempt, spec);
    engine_.place(attempt, placement, job_class);
    engine_.release(attempt);
  }
  static JobSpec lasts(std::chrono::seconds time) {
    JobSpec spec = job("train");
    spec.time_limit = time;
    return spec;
  }
  static Attempt attempt(const std::string& id) { return {JobId{id}, 1}; }
  /// Goes to the next thing that happens by itself; seconds since the begin.
  double next() {
    const TimePoint at = machines_.next_change();
    EXPECT_NE(at, TimePoint::max()) << "nothing happens any more";
    if (at != TimePoint::max()) clock_.set(at);
    return std::chrono::duration<double>(clock_.now() - begin_).count();
  }
  std::vector<std::string> ends() {
    std::vector<std::string> all;
    for (const EngineEvent& event : engine_.watch()) {
      if (event.kind != Kind::kBegan) all.push_back(event.attempt.job.str());
    }
    return all;
  }

  SimulatedTime clock_;
  const TimePoint begin_ = clock_.now();
  SimulatedMachines machines_{clock_, {.nodes = simulated_nodes(2, 2), .sharing = {}}};
  SimulatorEngine engine_{machines_};
};

TEST_F(SimulatorEngineTest, AJobEndsWhenItsDeclaredTimeIsOver) {
  start(attempt("a"), lasts(100s), {{"n0", 0}});
  clock_.pass(99s);
  EXPECT_THAT(ends(), IsEmpty());
  EXPECT_EQ(next(), 100);
  EXPECT_THAT(ends(), ElementsAre("a"));
}

TEST_F(SimulatorEngineTest, OneWithoutADeclaredTimeRunsUntilItIsTakenBack) {
  start(attempt("a"), job("train"), {{"n0", 0}});
  EXPECT_EQ(machines_.next_change(), TimePoint::max());
  clock_.pass(24h * 365);
  EXPECT_THAT(ends(), IsEmpty());
  engine_.take_back(attempt("a"), 10s);
  EXPECT_THAT(ends(), ElementsAre("a"));
}

TEST_F(SimulatorEngineTest, EndsAreToldInTheirOrderHoweverLateItIsAsked) {
  start(attempt("late"), lasts(30s), {{"n0", 0}});
  start(attempt("a-later"), lasts(40s), {{"n0", 1}});
  start(attempt("soon"), lasts(20s), {{"n1", 0}});
  clock_.pass(1h);
  EXPECT_THAT(ends(), ElementsAre("soon", "late", "a-later"));
}

TEST_F(SimulatorEngineTest, WhoSharesADeviceIsSlowerAsTheModelSays) {
  const SharingModel model;
  const SharingSpeeds beside = speeds_on_gpu(model, model.busy, std::vector{model.busy});
  start(attempt("first"), lasts(100s), {{"n0", 0}});
  start(attempt("beside"), lasts(100s), {{"n0", 0}}, JobClass::kOpportunistic);
  start(attempt("alone"), lasts(100s), {{"n0", 1}}, JobClass::kOpportunistic);
  EXPECT_NEAR(next(), 100, 1e-6);
  EXPECT_THAT(ends(), ElementsAre("alone"));
  const double first = 100 / beside.guaranteed;
  EXPECT_NEAR(next(), first, 1e-6);
  EXPECT_THAT(ends(), ElementsAre("first"));
  // What is left then runs as alone.
  EXPECT_NEAR(next(), first + 100 - first * beside.opportunistic, 1e-6);
  EXPECT_THAT(ends(), ElementsAre("beside"));
}

TEST_F(SimulatorEngineTest, AGangIsAsFastAsOnItsSlowestDevice) {
  const SharingModel model;
  const double speed = speeds_on_gpu(model, model.busy, std::vector{model.busy}).opportunistic;
  start(attempt("gang"), lasts(100s), {{"n0", 0}, {"n0", 1}}, JobClass::kOpportunistic);
  start(attempt("other"), job("train"), {{"n0", 1}});
  EXPECT_NEAR(next(), 100 / speed, 1e-6);
  EXPECT_THAT(ends(), ElementsAre("gang"));
}

TEST_F(SimulatorEngineTest, AnUpgradeChangesTheSpeedFromThenOn) {
  const SharingModel model;
  const SharingSpeeds alike = speeds_on_gpu(model, 0, std::vector{model.busy, model.busy});
  const SharingSpeeds gate = speeds_on_gpu(model, model.busy, std::vector{model.busy});
  start(attempt("a"), lasts(100s), {{"n0", 0}}, JobClass::kOpportunistic);
  start(attempt("b"), lasts(1000s), {{"n0", 0}}, JobClass::kOpportunistic);
  clock_.pass(10s);
  EXPECT_TRUE(machines_.set_class(attempt("a"), JobClass::kGuaranteed));
  EXPECT_NEAR(next(), 10 + (100 - 10 * alike.opportunistic) / gate.guaranteed, 1e-6);
  EXPECT_THAT(ends(), ElementsAre("a"));
  EXPECT_FALSE(machines_.set_class(attempt("a"), JobClass::kOpportunistic)) << "it has ended";
}

TEST_F(SimulatorEngineTest, ClassesAreChangedOnce) {
  start(attempt("a"), job("train"), {{"n0", 0}}, JobClass::kOpportunistic);
  SimulatedClasses classes{machines_};
  cluster::JobRecord record;
  record.id = JobId{"a"};
  record.attempt = 1;
  classes.change(record, JobClass::kGuaranteed);
  record.attempt = 2;
  classes.change(record, JobClass::kGuaranteed);
  const auto outcomes = classes.outcomes();
  ASSERT_EQ(outcomes.size(), 2U);
  EXPECT_TRUE(outcomes[0].changed);
  EXPECT_FALSE(outcomes[1].changed) << "there is no such attempt";
  EXPECT_THAT(outcomes[1].reason, HasSubstr("does not run"));
  EXPECT_THAT(classes.outcomes(), IsEmpty());
  EXPECT_EQ(engine_.adopt().at(0).job_class, JobClass::kGuaranteed);
}

TEST_F(SimulatorEngineTest, ANodeThatGoesDownTakesItsJobsWithIt) {
  start(attempt("a"), job("train"), {{"n0", 0}});
  start(attempt("gang"), job("train"), {{"n0", 1}, {"n1", 1}});
  start(attempt("b"), job("train"), {{"n1", 0}});
  (void)engine_.watch();
  machines_.take_down("n0", "power");
  EXPECT_FALSE(engine_.nodes()[0].up);
  EXPECT_EQ(engine_.nodes()[0].reason, "power");
  const auto events = engine_.watch();
  ASSERT_EQ(events.size(), 2U);
  for (const EngineEvent& event : events) {
    EXPECT_EQ(event.kind, Kind::kVanished);
    EXPECT_THAT(event.reason, HasSubstr("n0 went down: power"));
  }
  start(attempt("c"), job("train"), {{"n0", 0}});
  EXPECT_EQ(machines_.starts(attempt("c")), 0) << "nothing runs there";
  EXPECT_THAT(ends(), ElementsAre("c"));
  machines_.bring_up("n0");
  EXPECT_TRUE(engine_.nodes()[0].up);
  start(attempt("d"), job("train"), {{"n0", 0}});
  EXPECT_EQ(machines_.starts(attempt("d")), 1);
  EXPECT_THAT(ends(), IsEmpty());
}

TEST_F(SimulatorEngineTest, SigtermTakesItsTimeAndTheGraceIsALimit) {
  SimulatedMachines machines{clock_,
                             {.nodes = simulated_nodes(1, 2), .run_of = run_of, .sharing = {}}};
  SimulatorEngine engine{machines};
  for (const char* id : {"quick", "cut"}) {
    engine.hold(attempt(id), job("slow"));
    engine.place(attempt(id), {{"n0", 0}}, JobClass::kGuaranteed);
    engine.release(attempt(id));
  }
  engine.take_back(attempt("quick"), 10s);
  engine.take_back(attempt("cut"), 2s);
  engine.take_back(attempt("cut"), 10s);  // a later word does not lengthen it
  (void)engine.watch();
  clock_.pass(2s);
  auto events = engine.watch();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].attempt, attempt("cut"));
  EXPECT_EQ(events[0].exit_code, 137);
  clock_.pass(1s);
  events = engine.watch();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].attempt, attempt("quick"));
  EXPECT_EQ(events[0].exit_code, 143);
}

TEST_F(SimulatorEngineTest, TimePassesWithoutAnEngineToo) {
  start(attempt("a"), lasts(50s), {{"n0", 0}});
  (void)engine_.watch();
  clock_.pass(20s);
  SimulatorEngine next{machines_};
  ASSERT_EQ(next.adopt().size(), 1U);
  clock_.pass(30s);
  const auto events = next.watch();
  ASSERT_EQ(events.size(), 2U) << "its begin is told again";
  EXPECT_EQ(events[1].exit_code, 0);
}

TEST_F(SimulatorEngineTest, TheDescriptorTellsOfNews) {
  const auto readable = [this] {
    pollfd wait{engine_.descriptor(), POLLIN, 0};
    return ::poll(&wait, 1, 0) == 1;
  };
  (void)engine_.watch();
  EXPECT_FALSE(readable());
  start(attempt("a"), job("train"), {{"n0", 0}});
  EXPECT_TRUE(readable());
  (void)engine_.watch();
  EXPECT_FALSE(readable());
  machines_.lose(attempt("a"));
  EXPECT_TRUE(readable());
}

TEST_F(SimulatorEngineTest, WrongPlacesAreNamed) {
  engine_.hold(attempt("a"), job("train"));
  EXPECT_THAT(
      [&] {
        engine_.place(attempt("a"), {{"n7", 0}}, JobClass::kGuaranteed);
      },
      ThrowsMessage<cluster::EngineFailed>(HasSubstr("\"n7\"")));
  EXPECT_THAT(
      [&] {
        engine_.place(attempt("a"), {{"n1", 2}}, JobClass::kGuaranteed);
      },
      ThrowsMessage<cluster::EngineFailed>(HasSubstr("no number 2")));
  EXPECT_THAT([&] { machines_.take_down("n7", ""); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("\"n7\"")));
}

TEST_F(SimulatorEngineTest, MachinesThatCannotBeAreRefused) {
  auto twice = simulated_nodes(1, 1);
  twice.push_back(twice.front());
  EXPECT_THAT([&] { SimulatedMachines(clock_, {.nodes = twice, .sharing = {}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("\"n0\"")));
  SharingModel pairs;
  pairs.sharing = Sharing::kPairs;
  EXPECT_THROW(SimulatedMachines(clock_, {.nodes = {}, .sharing = pairs}), std::invalid_argument);
}

TEST_F(SimulatorEngineTest, AJobThatStandsStillEndsWhenItsNeighbourHas) {
  SharingModel strict;
  strict.efficiency = 0;  // nothing is left beside a guaranteed job
  SimulatedMachines machines{clock_, {.nodes = simulated_nodes(1, 1), .sharing = strict}};
  SimulatorEngine engine{machines};
  const auto begin = [&](const Attempt& one, const JobSpec& spec, JobClass job_class) {
    engine.hold(one, spec);
    engine.place(one, {{"n0", 0}}, job_class);
    engine.release(one);
  };
  begin(attempt("waits"), lasts(10s), JobClass::kOpportunistic);
  begin(attempt("runs"), job("train"), JobClass::kGuaranteed);
  EXPECT_EQ(machines.next_change(), TimePoint::max());
  clock_.pass(1h);
  engine.take_back(attempt("runs"), 0s);
  EXPECT_EQ(machines.next_change(), clock_.now() + 10s);
}

}  // namespace
}  // namespace commensal::simulator::simulator_engine_test
