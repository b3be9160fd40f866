// SPDX-License-Identifier: Apache-2.0
// What a node does about jobs that the cluster has placed on it: room is made before they come, and
// they run as what they were placed as.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/node_coordinator.h"

namespace commensal::node::node_placed_jobs_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using wire::Placement;

constexpr JobClass kGuaranteed = JobClass::kGuaranteed;
constexpr JobClass kOpportunistic = JobClass::kOpportunistic;

Device device(const std::string& id = kHostId) {
  Device device;
  device.id = id;
  device.kind = id == kHostId ? DeviceKind::kHost : DeviceKind::kGpu;
  device.capacity = 1000_MiB;
  device.cores = 4;
  return device;
}

Placement placed(JobClass job_class = kGuaranteed, Bytes min = 400_MiB,
                 std::vector<std::string> devices = {"host"}) {
  Placement placement;
  placement.id = "job-7.1";
  placement.job = "7";
  placement.attempt = 1;
  placement.name = "train";
  placement.job_class = job_class;
  placement.devices = std::move(devices);
  placement.memory = {min, std::nullopt};
  return placement;
}

/// A node whose processes obey at once.
class NodePlacedJobsTest : public ::testing::Test {
 protected:
  NodePlacedJobsTest() { node_.add_device(device("GPU-1"), now_); }

  wire::Register registration(const std::string& job, JobClass job_class, std::int64_t pid,
                              Bytes min = 0_B) {
    wire::Register hello;
    hello.job_id = hello.name = job;
    hello.tenant = "t";
    hello.job_class = job_class;
    hello.terms.memory.min = min;
    hello.pid = pid;
    hello.start_ticks = 1;
    hello.role = "main";
    return hello;
  }
  void join(const wire::Register& hello) {
    in_force_[hello.pid] = hello.job_class;
    ids_[hello.pid] = hello.job_id;
    node_.receive(std::to_string(hello.pid), hello, now_);
    exchange();
  }
  /// Hands out what the node says, and back what processes answer.
  void exchange() {
    for (auto out = node_.take_outgoing(); !out.empty(); out = node_.take_outgoing()) {
      for (const Outgoing& each : out) hear(each);
    }
  }
  void hear(const Outgoing& out) {
    const std::int64_t pid = std::stoll(out.peer);
    if (const auto* registered = std::get_if<wire::Registered>(&out.message)) {
      registered_[pid] = *registered;
      in_force_[pid] = registered->job_class;
    }
    const auto* change = std::get_if<wire::Change>(&out.message);
    if (change == nullptr) return;
    if (change->job_class) in_force_[pid] = *change->job_class;
    wire::Answer answer;
    answer.job_id = ids_[pid];
    answer.pid = pid;
    answer.revision = change->revision;
    answer.outcome = wire::Outcome::kApplied;
    answer.held_bytes = change->limit_bytes.value_or(0);
    answer.job_class = in_force_[pid];
    answer.device = change->device;
    node_.receive(out.peer, answer, now_);
  }
  void place(const std::vector<Placement>& list) {
    node_.take_placements(list, now_);
    exchange();
  }
  void pass(Duration time) {
    now_ += time;
    node_.tick(now_);
    exchange();
  }
  Bytes limit(const std::string& job, const std::string& on = kHostId) {
    for (const auto& each : node_.devices()) {
      const Job* const found = std::as_const(*each).table().find(JobId{job});
      if (each->device().id != on || found == nullptr) continue;
      Bytes sum;
      for (const Member& member : found->members) {
        sum += each->ledger().limit(found->key(member));
      }
      return sum;
    }
    return Bytes{};
  }
  json job(const std::string& id) {
    const json status = node_.status(id, now_);
    return status["jobs"].empty() ? json() : status["jobs"][0]["job"];
  }
  json expected() { return node_.status("", now_)["expected"]; }

  TimePoint now_{1h};
  NodeCoordinator node_{CoordinatorConfig{}, device(), 77, 5, now_};
  std::map<std::int64_t, wire::Registered> registered_;
  std::map<std::int64_t, JobClass> in_force_;
  std::map<std::int64_t, std::string> ids_;
};

// --- room is made ahead -------------------------------------------------------------------------

TEST_F(NodePlacedJobsTest, AnOpportunisticJobMakesRoomBeforeTheGuaranteedOneComes) {
  join(registration("o", kOpportunistic, 11));
  ASSERT_EQ(limit("o"), 1000_MiB);
  place({placed()});
  EXPECT_EQ(limit("o"), 600_MiB);
  ASSERT_EQ(expected().size(), 1U);
  EXPECT_EQ(expected()[0]["claimed"], true);
  EXPECT_EQ(node_.status("", now_)["devices"][0]["claimed_bytes"], (400_MiB).count());
  EXPECT_THAT(node_.status("o", now_)["jobs"][0]["lease"]["reason"].get<std::string>(),
              HasSubstr("a guaranteed job that is to come"));
  join(registration("job-7.1", kGuaranteed, 12, 400_MiB));
  EXPECT_EQ(limit("job-7.1"), 400_MiB) << "at once: nobody has to give back anything";
  EXPECT_EQ(limit("o"), 600_MiB);
  EXPECT_THAT(expected(), IsEmpty());
  EXPECT_EQ(node_.status("", now_)["devices"][0]["claimed_bytes"], 0) << "its floor counts now";
}

TEST_F(NodePlacedJobsTest, WithoutAClaimItWouldHaveToWait) {
  join(registration("o", kOpportunistic, 11));
  node_.receive("12", registration("job-7.1", kGuaranteed, 12, 400_MiB), now_);
  EXPECT_EQ(limit("job-7.1"), 0_B) << "until the other one has given it back";
}

TEST_F(NodePlacedJobsTest, RoomIsGivenBackWhenItDoesNotCome) {
  join(registration("o", kOpportunistic, 11));
  place({placed()});
  pass(kClaimed - 1s);
  EXPECT_EQ(limit("o"), 600_MiB);
  pass(1s);
  EXPECT_EQ(limit("o"), 1000_MiB);
  EXPECT_EQ(expected().size(), 1U) << "it may come still";
  EXPECT_THAT(node_.take_news(), Contains(HasSubstr("has not come")));
}

TEST_F(NodePlacedJobsTest, RoomIsGivenBackWhenTheClusterTakesItAway) {
  join(registration("o", kOpportunistic, 11));
  place({placed()});
  EXPECT_EQ(limit("o"), 600_MiB);
  place({});
  EXPECT_EQ(limit("o"), 1000_MiB);
}

TEST_F(NodePlacedJobsTest, NobodyGoesBelowItsMinimumForWhoIsToCome) {
  join(registration("o", kOpportunistic, 11, 700_MiB));
  place({placed()});
  EXPECT_EQ(limit("o"), 700_MiB);
  EXPECT_EQ(node_.status("o", now_)["jobs"][0]["lease"]["stage"], "none") << "nor is it parked";
}

TEST_F(NodePlacedJobsTest, AGuaranteedJobKeepsWhatItHas) {
  join(registration("g", kGuaranteed, 11, 800_MiB));
  const Bytes before = limit("g");
  ASSERT_GE(before, 800_MiB);
  place({placed()});
  EXPECT_GE(limit("g"), 800_MiB) << "its floor was promised";
}

TEST_F(NodePlacedJobsTest, OnlyTheDeviceThatWasNamedMakesRoom) {
  wire::Register there = registration("o", kOpportunistic, 11);
  there.devices.front().device = "GPU-1";
  join(there);
  join(registration("p", kOpportunistic, 13));
  place({placed(kGuaranteed, 400_MiB, {"GPU-1"})});
  EXPECT_EQ(limit("o", "GPU-1"), 600_MiB);
  EXPECT_EQ(limit("p"), 1000_MiB);
  // One that has not used its device yet is on the host: the room stays until it has.
  wire::Register hello = registration("job-7.1", kGuaranteed, 12, 400_MiB);
  hello.devices.front().device = "";
  join(hello);
  EXPECT_THAT(expected(), IsEmpty());
  EXPECT_EQ(limit("o", "GPU-1"), 600_MiB);
  hello.devices.front().device = "GPU-1";
  join(hello);
  EXPECT_EQ(limit("job-7.1", "GPU-1"), 400_MiB);
  EXPECT_EQ(limit("o", "GPU-1"), 600_MiB);
}

TEST_F(NodePlacedJobsTest, ADeviceThatNobodyHasHeardOfIsNoHarm) {
  join(registration("o", kOpportunistic, 11));
  place({placed(kGuaranteed, 400_MiB, {"n1:gpu:0"})});
  EXPECT_EQ(limit("o"), 1000_MiB);
  EXPECT_EQ(expected().size(), 1U);
}

TEST_F(NodePlacedJobsTest, AClaimAboveTheDeviceIsNoMoreThanTheDevice) {
  join(registration("o", kOpportunistic, 11, 100_MiB));
  Placement huge = placed(kGuaranteed, Bytes{UINT64_MAX});
  Placement other = huge;
  other.id = "job-8.1";
  place({huge, other});
  EXPECT_EQ(limit("o"), 100_MiB);
  EXPECT_EQ(node_.status("", now_)["devices"][0]["claimed_bytes"], (1000_MiB).count());
}

TEST_F(NodePlacedJobsTest, WhoEndsSoonLeavesNoClaimBehind) {
  join(registration("o", kOpportunistic, 11));
  place({placed()});
  join(registration("job-7.1", kGuaranteed, 12, 400_MiB));
  node_.member_gone(JobId{"job-7.1"}, 12, Departure::kExited, now_);
  pass(200ms);
  EXPECT_EQ(limit("o"), 1000_MiB) << "though the cluster has not heard of it yet";
  EXPECT_THAT(expected(), IsEmpty());
}

// --- as what it runs ----------------------------------------------------------------------------

TEST_F(NodePlacedJobsTest, AJobRunsAsWhatTheClusterPlacedIt) {
  place({placed()});
  join(registration("job-7.1", kOpportunistic, 12));
  EXPECT_EQ(job("job-7.1")["class"], "guaranteed");
  EXPECT_EQ(limit("job-7.1") >= 400_MiB, true);
  const std::string why =
      "the cluster placed it with guaranteed, memory 400 MiB:; it asked for opportunistic, memory "
      "0 B:";
  EXPECT_EQ(job("job-7.1")["reason"], why);
  EXPECT_EQ(registered_[12].reason, why) << "the log and the process are told, too";
  EXPECT_EQ(in_force_[12], kGuaranteed);
}

TEST_F(NodePlacedJobsTest, AJobCannotBeMoreThanWhatItWasPlacedAs) {
  join(registration("g", kGuaranteed, 11, 300_MiB));
  place({placed(kOpportunistic, 0_B)});
  join(registration("job-7.1", kGuaranteed, 12, 400_MiB));
  EXPECT_EQ(job("job-7.1")["class"], "opportunistic");
  EXPECT_EQ(in_force_[12], kOpportunistic);
  EXPECT_THAT(job("job-7.1")["reason"].get<std::string>(), HasSubstr("it asked for guaranteed"));
}

TEST_F(NodePlacedJobsTest, JobsThatTheClusterDidNotPlaceAreLeftAlone) {
  place({placed()});
  join(registration("job-7.2", kOpportunistic, 12));
  EXPECT_EQ(job("job-7.2")["class"], "opportunistic") << "another attempt";
  join(registration("train", kOpportunistic, 13));
  EXPECT_EQ(job("train")["class"], "opportunistic") << "a name is no id";
  EXPECT_THAT(job("train").value("reason", ""), ::testing::Not(HasSubstr("the cluster")));
  EXPECT_EQ(expected().size(), 1U);
}

TEST_F(NodePlacedJobsTest, AClassThatWasChangedSinceIsNotUndoneByAnOldList) {
  place({placed(kOpportunistic, 0_B)});
  join(registration("job-7.1", kOpportunistic, 12));
  wire::SetRequest upgrade;
  upgrade.job = "job-7.1";
  upgrade.job_class = kGuaranteed;
  node_.receive("12", upgrade, now_);
  exchange();
  ASSERT_EQ(job("job-7.1")["class"], "guaranteed");
  place({placed(kOpportunistic, 0_B)});  // the cluster has not heard of it
  wire::Register second = registration("job-7.1", kOpportunistic, 14);
  second.role = "rank";
  join(second);
  EXPECT_EQ(job("job-7.1")["class"], "guaranteed");
  EXPECT_EQ(in_force_[14], kGuaranteed);
}

TEST_F(NodePlacedJobsTest, AListThatComesLateChangesNothingOfWhatRuns) {
  join(registration("job-7.1", kOpportunistic, 12));
  place({placed()});
  EXPECT_EQ(job("job-7.1")["class"], "opportunistic") << "changes of classes come as orders";
  EXPECT_THAT(expected(), IsEmpty());
}

TEST_F(NodePlacedJobsTest, AFloorThatDoesNotFitIsNotPromised) {
  join(registration("g", kGuaranteed, 11, 800_MiB));
  place({placed()});
  join(registration("job-7.1", kOpportunistic, 12));
  EXPECT_EQ(job("job-7.1")["class"], "opportunistic");
  EXPECT_THAT(job("job-7.1")["reason"].get<std::string>(),
              ::testing::AllOf(HasSubstr("the cluster placed it with guaranteed"),
                               HasSubstr("floor does not fit")));
}

}  // namespace
}  // namespace commensal::node::node_placed_jobs_test
