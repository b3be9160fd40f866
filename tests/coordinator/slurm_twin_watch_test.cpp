// SPDX-License-Identifier: Apache-2.0
// What is done about a twin that is lost, without Slurm.
#include "coordinator/engines/slurm/slurm_twin_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/engines/local/folder_calls.h"
#include "tests/coordinator/fake_slurm.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::slurm::slurm_twin_watch_test {
namespace {

using Kind = TwinStep::Kind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TwinSeen twin(std::uint64_t id, const std::string& state, bool wrong = false,
              const std::string& reason = "None") {
  return {{id, state, reason, "commensal:x:7:1:guaranteed"}, wrong};
}

TEST(TwinStepTest, WhereThereIsNoneOneIsAskedForAtOnceAndNotAgainAtOnce) {
  EXPECT_EQ(next_step({}, true, false).kind, Kind::kSubmit);
  const TwinStep later = next_step({}, false, false);
  EXPECT_EQ(later.kind, Kind::kNothing);
  EXPECT_THAT(later.reason, HasSubstr("soon"));
}

TEST(TwinStepTest, OneThatHasBegunIsAskedForItsDevicesBeforeAnythingElse) {
  const TwinStep step =
      next_step({twin(3, "PENDING"), twin(4, "RUNNING", true), twin(5, "RUNNING")}, true, true);
  EXPECT_EQ(step.kind, Kind::kAsk);
  EXPECT_EQ(step.twin, 5U);
}

TEST(TwinStepTest, OneThatWaitsIsWaitedForWithSlurmsReason) {
  const TwinStep step = next_step({twin(3, "PENDING", false, "Resources")}, true, false);
  EXPECT_EQ(step.kind, Kind::kNothing);
  EXPECT_EQ(step.reason, "waits for them in Slurm's queue, as job 3 (Resources)");
  EXPECT_EQ(next_step({twin(3, "CONFIGURING")}, true, false).kind, Kind::kNothing);
}

TEST(TwinStepTest, OneThatACoordinatorLeftHeldIsLetGo) {
  const TwinStep step = next_step({twin(3, "PENDING", false, "JobHeldUser")}, true, false);
  EXPECT_EQ(step.kind, Kind::kLetGo);
  EXPECT_EQ(step.twin, 3U);
}

TEST(TwinStepTest, OneThatIsEndingIsNoneThatComes) {
  EXPECT_EQ(next_step({twin(3, "COMPLETING")}, true, false).kind, Kind::kSubmit);
}

TEST(TwinStepTest, BesideThoseWithTheWrongDevicesAnotherOneIsAskedForUntilItHasBeenLong) {
  EXPECT_EQ(next_step({twin(3, "RUNNING", true)}, true, false).kind, Kind::kSubmit);
  EXPECT_EQ(next_step({twin(3, "RUNNING", true)}, true, true).kind, Kind::kGiveBack);
  std::vector<TwinSeen> many;
  for (std::uint64_t id = 1; id <= kMostTwins; ++id) many.push_back(twin(id, "RUNNING", true));
  EXPECT_EQ(next_step(many, true, false).kind, Kind::kNothing);
}

TEST(TwinNameTest, IsThatOfItsJobAndMore) {
  const Attempt attempt{JobId{"7"}, 2};
  const std::string mark = mark_of_twin("lab-1", attempt);
  EXPECT_EQ(mark, "commensal:lab-1:7:2:guaranteed");
  EXPECT_EQ(attempt_of_twin("lab-1", mark), attempt);
  for (const char* other : {"commensal:lab-1:7:2", "commensal:lab-2:7:2:guaranteed",
                            "commensal:lab-1:7:x:guaranteed", ":guaranteed", "guaranteed", ""}) {
    EXPECT_EQ(attempt_of_twin("lab-1", other), std::nullopt) << other;
  }
  EXPECT_EQ(attempt_of_mark("lab-1", mark), std::nullopt) << "else it would be the job itself";
}

TEST(TwinDevicesTest, AreThoseOfTheRanksAndHostsHaveNone) {
  local::Placed placed;
  placed.devices = {{"n1", 1}, {"n1", 0}, {"n2", 3}, {"c1", 0}};
  placed.uuids = {"1", "0", "3", "host"};
  const DevicesByNodes used = used_by(placed);
  EXPECT_EQ(used, (DevicesByNodes{{"n1", {0, 1}}, {"n2", {3}}, {"c1", {}}}));
  EXPECT_TRUE(has_all({{"n1", {0, 1}}, {"n2", {2, 3}}}, used));
  EXPECT_FALSE(has_all({{"n1", {0, 1}}, {"n2", {2}}}, used));
  EXPECT_FALSE(has_all({{"n1", {0, 1}}}, used));
}

TEST(TwinWatchTest, SaysWhatIsTheMatterUntilATwinHoldsTheDevices) {
  const Attempt attempt{JobId{"7"}, 1};
  const LocalWorld world;
  local::prepare_state(world.state());
  const local::AttemptFolder folder = world.folder(attempt);
  local::hold_in(folder, {world.script("exit 0"), std::chrono::milliseconds{0}, {}});
  local::Placed placed;
  placed.devices = {{"n1", 1}};
  placed.uuids = {"1"};
  folder.set(placed);
  FakeSlurm slurm;
  SlurmCommands commands{slurm, {}};
  Twins twins{{world.state(), "guaranteed"}, "x", commands};
  TwinWatch watch{{}, twins, commands, SteadyClock::instance()};
  /// What is told at a look: "held", "unheld" or "taken", and why.
  const auto told = [&](const TwinWatch::Jobs& jobs) -> std::string {
    std::vector<EngineEvent> news;
    watch.look(world.state(), jobs, news);
    if (news.empty()) return "";
    EXPECT_EQ(news.size(), 1U);
    EXPECT_EQ(news[0].attempt, attempt);
    const auto kind = news[0].kind;
    const std::string name = kind == EngineEvent::Kind::kHeld     ? "held"
                             : kind == EngineEvent::Kind::kUnheld ? "unheld"
                             : kind == EngineEvent::Kind::kTaken  ? "taken"
                                                                  : "something else";
    return name + ": " + news[0].reason;
  };
  watch.meet(folder);
  EXPECT_EQ(told({}), "") << "its nodes were not told";
  const TwinNotes notes{folder};
  notes.want();
  notes.tell();
  watch.meet(folder);

  slurm.starts_jobs = false;
  EXPECT_THAT(told({}), AllOf(StartsWith("unheld: "), HasSubstr("Slurm is asked for them again")));
  const auto seen = [&](const std::string& state) {
    const FakeSlurm::Job& job = slurm.jobs.at(1);
    return told({{attempt, {job.id, state, "Resources", job.options.at("job-name")}}});
  };
  EXPECT_THAT(seen("PENDING"),
              AllOf(StartsWith("unheld: "),
                    HasSubstr("waits for them in Slurm's queue, as job 1 (Resources)")));
  slurm.starts_jobs = true;
  slurm.next_devices = {"1"};
  slurm.tick();
  EXPECT_EQ(seen("RUNNING"), "held: job 1 of Slurm holds its devices");
  EXPECT_EQ(seen("RUNNING"), "") << "that was told";
  EXPECT_THAT(seen("CANCELLED"),
              AllOf(StartsWith("unheld: "), HasSubstr("which held its devices, is CANCELLED")));
  notes.drop();
  EXPECT_EQ(told({}), "") << "they are not wanted any more";
}

}  // namespace
}  // namespace commensal::cluster::slurm::slurm_twin_watch_test
