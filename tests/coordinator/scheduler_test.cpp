// SPDX-License-Identifier: Apache-2.0
// What minima and maxima of share and memory make of the policy's view, and what users are told.
#include "coordinator/cluster/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/policies/registry.h"
#include "tests/coordinator/fake_engine.h"

namespace commensal::cluster::scheduler_test {
namespace {

using policies::AskedClass;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(AssumedLoadTest, IsTheUsualOneWithinWhatWasAskedFor) {
  EXPECT_EQ(assumed_load_milli(std::nullopt), 300);
  EXPECT_EQ(assumed_load_milli(ShareRange{0.1}), 300);
  EXPECT_EQ(assumed_load_milli(ShareRange{0.6}), 600);
  EXPECT_EQ(assumed_load_milli(ShareRange{0.0, 0.2}), 200);
  EXPECT_EQ(assumed_load_milli(ShareRange{0.0, 0.0}), 0);
  EXPECT_EQ(assumed_load_milli(ShareRange{1.0, 1.0}), 1000);
  EXPECT_EQ(assumed_load_milli(ShareRange{0.2, 0.9}), 300);
}

EngineNode node_with(const std::string& name, int devices, Bytes memory) {
  EngineNode node = FakeWorld::make_node(name, devices);
  node.device_memory = memory;
  return node;
}

JobSpec needs_memory(int gpus, Bytes min) {
  JobSpec spec;
  spec.gpus = gpus;
  spec.terms.memory = MemoryRange{min, {}};
  return spec;
}

TEST(LackOfMemoryTest, AMinimumAboveEveryDeviceIsNamed) {
  const std::vector<EngineNode> nodes{node_with("n1", 2, 40_GiB), node_with("n2", 1, 80_GiB)};
  EXPECT_EQ(lack_of_memory(needs_memory(1, 96_GiB), nodes),
            "the job needs at least 96 GiB of device memory, and no device has more than 80 GiB");
  EXPECT_EQ(lack_of_memory(needs_memory(2, 48_GiB), nodes),
            "the job needs at least 48 GiB of memory on each of 2 devices, and 1 have as much");
}

TEST(LackOfMemoryTest, WhatMayFitIsNotRefused) {
  const std::vector<EngineNode> nodes{node_with("n1", 2, 40_GiB), node_with("n2", 1, 80_GiB)};
  EXPECT_EQ(lack_of_memory(needs_memory(1, 80_GiB), nodes), "");
  EXPECT_EQ(lack_of_memory(needs_memory(3, 40_GiB), nodes), "");
  EXPECT_EQ(lack_of_memory(needs_memory(0, 96_GiB), nodes), "") << "it has no device";
  EXPECT_EQ(lack_of_memory(JobSpec{}, nodes), "");
}

TEST(LackOfMemoryTest, ADeviceWhoseMemoryIsNotKnownMayHaveEnough) {
  const std::vector<EngineNode> nodes{node_with("n1", 1, {}), node_with("n2", 1, 80_GiB)};
  EXPECT_EQ(lack_of_memory(needs_memory(1, 96_GiB), nodes), "");
  EXPECT_EQ(lack_of_memory(needs_memory(2, 96_GiB), nodes),
            "the job needs at least 96 GiB of memory on each of 2 devices, and 1 have as much");
}

EngineNode node_of_host(const std::string& name, int devices, std::int64_t cores,
                        std::int64_t memory_mib) {
  EngineNode node = FakeWorld::make_node(name, devices);
  node.cpu_milli = cores * 1000;
  node.memory_mib = memory_mib;
  return node;
}

JobSpec needs_host(int gpus, std::int64_t cpu_milli, std::int64_t memory_mib) {
  JobSpec spec;
  spec.gpus = gpus;
  spec.cpu_milli = cpu_milli;
  spec.host_memory_mib = memory_mib;
  return spec;
}

TEST(LackOfHostTest, WhatNoNodeHasIsNamed) {
  const std::vector<EngineNode> nodes{node_of_host("n1", 2, 4, 8192),
                                      node_of_host("n2", 1, 16, 4096)};
  EXPECT_EQ(lack_of_host(needs_host(1, 16'500, 0), nodes),
            "the job asks for 16.5 cores on each node, and no node has more than 16");
  EXPECT_EQ(lack_of_host(needs_host(1, 0, 9216), nodes),
            "the job asks for 9 GiB of host memory on each node, and no node has more than 8 GiB");
  EXPECT_EQ(lack_of_host(needs_host(1, 8'000, 8192), nodes),
            "the job asks for 1 device, and the nodes with the cores and the host memory that it "
            "asks for on each have 0");
  EXPECT_EQ(lack_of_host(needs_host(3, 8'000, 0), nodes),
            "the job asks for 3 devices, and the nodes with the cores and the host memory that it "
            "asks for on each have 1");
}

TEST(LackOfHostTest, WhatMayFitIsNotRefused) {
  const std::vector<EngineNode> nodes{node_of_host("n1", 2, 4, 8192),
                                      node_of_host("n2", 1, 16, 4096)};
  EXPECT_EQ(lack_of_host(needs_host(1, 16'000, 4096), nodes), "");
  EXPECT_EQ(lack_of_host(needs_host(3, 4'000, 4096), nodes), "");
  EXPECT_EQ(lack_of_host(needs_host(3, 0, 0), nodes), "") << "it asks for none";
}

TEST(LackOfHostTest, WhatANodeDoesNotCountMayBeEnough) {
  EXPECT_EQ(lack_of_host(needs_host(2, 99'000, 1 << 20), {node_of_host("n1", 2, 0, 0)}), "");
  EXPECT_EQ(lack_of_host(needs_host(1, 99'000, 0), {}), "") << "no node is known yet";
}

TEST(CountedTest, OneDeviceIsOne) {
  EXPECT_EQ(counted(1), "1 device");
  EXPECT_EQ(counted(0), "0 devices");
  EXPECT_EQ(counted(12), "12 devices");
}

class SchedulerTest : public ::testing::Test {
 protected:
  /// A job that waits.
  JobRecord& job(AskedClass asked, int gpus = 1) {
    JobRecord& record = records_.emplace_back();
    record.id = JobId{std::to_string(records_.size())};
    record.spec.tenant = "default";
    record.spec.asked = asked;
    record.spec.gpus = gpus;
    record.state = JobState::kQueued;
    return record;
  }
  JobRecord& beside(double min_share, Bytes min_memory = {}, int gpus = 1) {
    JobRecord& record = job(AskedClass::kOpportunistic, gpus);
    record.spec.terms.share = ShareRange{min_share};
    if (!min_memory.is_zero()) record.spec.terms.memory = MemoryRange{min_memory, {}};
    return record;
  }

  /// Makes a view of all jobs and asks; returns what starts where, "JOB NODE:DEVICE".
  std::vector<std::string> begin() {
    std::vector<const JobRecord*> all;
    for (const JobRecord& record : records_) all.push_back(&record);
    scheduler_.begin(all, nodes_, {{"default", quota_}});
    return decide();
  }
  std::vector<std::string> decide() {
    std::vector<std::string> starts;
    for (const Wanted& change : scheduler_.decide(++now_)) {
      if (!change.event || change.event->kind != EventKind::kStart) continue;
      std::string start = change.job.str();
      for (const DevicePlace& place : change.event->placement) {
        start += " " + place.node + ":" + std::to_string(place.device);
      }
      starts.push_back(std::move(start));
    }
    return starts;
  }

  std::optional<std::int32_t> quota_;
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("antman", {});
  Scheduler scheduler_{*policy_, [](const JobRecord&) { return 0.0; }};
  std::vector<EngineNode> nodes_{FakeWorld::make_node("n1", 1), FakeWorld::make_node("n2", 1)};
  std::deque<JobRecord> records_;
  double now_ = 0;
};

TEST_F(SchedulerTest, MinimumSharesAreNotPutOnOneDeviceBeyondTheWhole) {
  beside(0.6);
  beside(0.6);
  const JobRecord& third = beside(0.6);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0", "2 n2:0"));
  EXPECT_THAT(decide(), IsEmpty());
  EXPECT_EQ(
      scheduler_.why_waiting(third),
      "its minimum share of 0.6 fits beside those of others on 0 of 2 devices, it asks for 1");
  EXPECT_TRUE(scheduler_.leave(JobId{"2"}));
  EXPECT_THAT(decide(), ElementsAre("3 n2:0"));
}

class MixedClusterTest : public SchedulerTest {
 protected:
  MixedClusterTest() {
    nodes_ = {node_of_cores("c1"), FakeWorld::make_node("n1", 1), node_of_cores("c2"),
              FakeWorld::make_node("n2", 1), node_of_cores("c3")};
  }
  static EngineNode node_of_cores(const std::string& name) {
    EngineNode node = FakeWorld::make_node(name, 1);
    node.devices = {"host"};
    node.device_type = "cpu";
    return node;
  }
};

TEST_F(MixedClusterTest, AGangHasGpusWhereThereAreEnough) {
  job(AskedClass::kGuaranteed, 2);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0 n2:0"));
}

TEST_F(MixedClusterTest, OneThatNeedsMoreHasCoresAlone) {
  job(AskedClass::kGuaranteed, 3);
  EXPECT_THAT(begin(), ElementsAre("1 c1:0 c2:0 c3:0"));
}

TEST_F(MixedClusterTest, WhatNeitherKindHasEnoughOfWaits) {
  const JobRecord& gang = job(AskedClass::kGuaranteed, 4);
  EXPECT_THAT(begin(), IsEmpty());
  EXPECT_EQ(
      scheduler_.why_waiting(gang),
      "waits for devices: it asks for 4, all GPUs or none, and 5 are free of guaranteed jobs");
}

TEST_F(MixedClusterTest, AGangWaitsForGpusThatAreTakenRatherThanMixing) {
  JobRecord& first = job(AskedClass::kGuaranteed);
  first.state = JobState::kRunning;
  first.attempt = 1;
  first.job_class = JobClass::kGuaranteed;
  first.placement = {{"n1", 0}};
  job(AskedClass::kGuaranteed, 2);
  EXPECT_THAT(begin(), IsEmpty());
  EXPECT_TRUE(scheduler_.leave(JobId{"1"}));
  EXPECT_THAT(decide(), ElementsAre("2 n2:0 n1:0"));
}

TEST_F(SchedulerTest, WhatIsLeftIsFound) {
  nodes_.pop_back();
  beside(0.6);
  const JobRecord& second = beside(0.4);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0"));
  EXPECT_THAT(decide(), ElementsAre("2 n1:0")) << "one more at each decision";
  EXPECT_EQ(second.spec.terms.share->min, 0.4);
}

TEST_F(SchedulerTest, JobsThatRunCountAfterARestart) {
  nodes_.pop_back();
  JobRecord& runs = beside(0.6);
  runs.state = JobState::kRunning;
  runs.placement = {{"n1", 0}};
  const JobRecord& waits = beside(0.6);
  EXPECT_THAT(begin(), IsEmpty());
  EXPECT_EQ(
      scheduler_.why_waiting(waits),
      "its minimum share of 0.6 fits beside those of others on 0 of 1 devices, it asks for 1");
}

TEST_F(SchedulerTest, AGangNeedsItsShareOnEachDevice) {
  beside(0.5);
  const JobRecord& gang = beside(0.7, {}, 2);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0"));
  EXPECT_THAT(decide(), IsEmpty());
  EXPECT_EQ(
      scheduler_.why_waiting(gang),
      "its minimum share of 0.7 fits beside those of others on 1 of 2 devices, it asks for 2");
}

TEST_F(SchedulerTest, AGuaranteedJobsShareKeepsNobodyAway) {
  nodes_.pop_back();
  job(AskedClass::kGuaranteed).spec.terms.share = ShareRange{0.7};
  beside(0.6);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0", "2 n1:0"));
}

TEST_F(SchedulerTest, TheAssumedLoadIsWhatWasAskedFor) {
  nodes_.pop_back();
  JobRecord& runs = job(AskedClass::kGuaranteed);
  runs.state = JobState::kRunning;
  runs.job_class = JobClass::kGuaranteed;
  runs.placement = {{"n1", 0}};
  runs.spec.terms.share = ShareRange{0.8};
  const JobRecord& second = job(AskedClass::kOpportunistic);
  EXPECT_THAT(begin(), IsEmpty()) << "the policy puts nobody on a device with a load of 80 %";
  EXPECT_EQ(scheduler_.why_waiting(second),
            "waits for a device that others leave enough of: 0 of 1 have less than 80 % of their "
            "time taken");
  runs.spec.terms.share = ShareRange{0.7};
  EXPECT_THAT(begin(), ElementsAre("2 n1:0"));
}

TEST_F(SchedulerTest, MinimaOfMemoryOfBothClassesAddUp) {
  nodes_ = {node_with("n1", 1, 80_GiB)};
  job(AskedClass::kGuaranteed).spec.terms.memory = MemoryRange{48_GiB, {}};
  const JobRecord& second = beside(0, 40_GiB);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0"));
  EXPECT_THAT(decide(), IsEmpty());
  EXPECT_EQ(scheduler_.why_waiting(second),
            "its minimum of 40 GiB of device memory fits beside those of others on 0 of 1 devices, "
            "it asks for 1");
  EXPECT_TRUE(scheduler_.leave(JobId{"1"}));
  EXPECT_THAT(decide(), ElementsAre("2 n1:0"));
}

TEST_F(SchedulerTest, MemoryThatIsNotKnownKeepsNobodyAway) {
  nodes_.pop_back();
  beside(0.1, 900_GiB);
  beside(0.1, 900_GiB);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0"));
  EXPECT_THAT(decide(), ElementsAre("2 n1:0"));
}

TEST_F(SchedulerTest, EveryClassIsPutOnDevicesThatAreLargeEnough) {
  for (const AskedClass asked :
       {AskedClass::kGuaranteed, AskedClass::kOpportunistic, AskedClass::kAuto}) {
    records_.clear();
    nodes_ = {node_with("n1", 2, 40_GiB), node_with("n2", 1, 80_GiB)};
    job(asked).spec.terms.memory = MemoryRange{48_GiB, {}};
    EXPECT_THAT(begin(), ElementsAre("1 n2:0")) << to_string(asked);
  }
}

TEST_F(SchedulerTest, AJobWaitsWhileTheLargeDevicesAreAway) {
  for (const AskedClass asked :
       {AskedClass::kGuaranteed, AskedClass::kOpportunistic, AskedClass::kAuto}) {
    records_.clear();
    nodes_ = {node_with("n1", 2, 40_GiB)};
    JobRecord& waits = job(asked);
    waits.spec.terms.memory = MemoryRange{48_GiB, {}};
    EXPECT_THAT(begin(), IsEmpty()) << to_string(asked);
    EXPECT_EQ(scheduler_.why_waiting(waits),
              "waits for device memory: 0 of 2 devices have its minimum of 48 GiB, it asks for 1");
    nodes_.push_back(node_with("n2", 1, 80_GiB));
    EXPECT_THAT(begin(), ElementsAre("1 n2:0")) << to_string(asked);
  }
}

TEST_F(SchedulerTest, WhoWaitsBehindAJobOfItsTenantIsToldSo) {
  quota_ = 1;
  job(AskedClass::kGuaranteed);
  const JobRecord& head = job(AskedClass::kGuaranteed);
  nodes_.pop_back();
  JobRecord& gang = job(AskedClass::kAuto, 2);
  const JobRecord& behind = job(AskedClass::kAuto);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0"));
  const std::string full = "waits for its tenant's quota: 1 of 1 in use, it asks for ";
  EXPECT_EQ(scheduler_.why_waiting(head), full + "1");
  EXPECT_EQ(scheduler_.why_waiting(gang),
            full +
                "2, or for devices that others leave enough of: 1 of 1 have less than 80 % of "
                "their time taken");
  EXPECT_EQ(
      scheduler_.why_waiting(behind),
      full + "1, or for a device that others leave enough of; job 3 of its tenant is before it");
}

TEST_F(SchedulerTest, AnAutoJobIsToldHowManyDevicesOthersLeaveEnoughOf) {
  for (int i = 0; i < 6; ++i) job(AskedClass::kAuto);
  const JobRecord& waits = job(AskedClass::kAuto);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0", "2 n2:0", "3 n1:0", "4 n2:0"));
  EXPECT_THAT(decide(), ElementsAre("5 n1:0", "6 n2:0"));
  EXPECT_EQ(scheduler_.why_waiting(waits),
            "waits for a device that others leave enough of: 0 of 2 have less than 80 % of their "
            "time taken");
}

TEST_F(SchedulerTest, AnAutoJobBehindAnOpportunisticOneIsToldSo) {
  job(AskedClass::kOpportunistic, 3);
  const JobRecord& waits = job(AskedClass::kAuto);
  job(AskedClass::kGuaranteed, 2).id = JobId{"3"};
  EXPECT_THAT(begin(), ElementsAre("3 n1:0 n2:0"));
  EXPECT_EQ(scheduler_.why_waiting(waits),
            "waits for a device that others leave enough of; job 1 is before it");
}

TEST_F(SchedulerTest, DevicesThatAreKeptForAnotherTenantsGangAreNamed) {
  JobRecord& runs = job(AskedClass::kGuaranteed);
  runs.state = JobState::kRunning;
  runs.job_class = JobClass::kGuaranteed;
  runs.placement = {{"n1", 0}};
  runs.spec.tenant = "nlp";
  job(AskedClass::kGuaranteed, 2);
  JobRecord& other = job(AskedClass::kGuaranteed);
  other.spec.tenant = "nlp";
  std::vector<const JobRecord*> all;
  for (const JobRecord& record : records_) all.push_back(&record);
  scheduler_.begin(all, nodes_, {{"default", quota_}, {"nlp", quota_}});
  (void)decide();
  (void)decide();
  EXPECT_EQ(scheduler_.why_waiting(other),
            "waits for devices: it asks for 1, 1 is free of guaranteed jobs; 1 of them is kept for "
            "job 2");
}

TEST_F(SchedulerTest, CoresThatNoNodeHasFreeAreNamed) {
  nodes_ = {node_of_host("n1", 2, 8, 8192)};
  job(AskedClass::kGuaranteed).spec.cpu_milli = 6000;
  JobRecord& waits = job(AskedClass::kGuaranteed);
  waits.spec.cpu_milli = 4000;
  waits.spec.host_memory_mib = 1024;
  JobRecord& without_devices = job(AskedClass::kAuto, 0);
  without_devices.spec.cpu_milli = 4000;
  EXPECT_THAT(begin(), ElementsAre("1 n1:0"));
  EXPECT_EQ(scheduler_.why_waiting(waits),
            "waits for 4 cores and 1 GiB of host memory: nodes with as much free have 0 devices, "
            "it asks for 1");
  EXPECT_EQ(scheduler_.why_waiting(without_devices), "waits for 4 cores: no node has as much free");
}

TEST_F(SchedulerTest, AnAutoJobWaitsForItsQuotaOrForADevice) {
  nodes_.pop_back();
  quota_ = 1;
  JobRecord& runs = job(AskedClass::kGuaranteed);
  runs.state = JobState::kRunning;
  runs.job_class = JobClass::kGuaranteed;
  runs.placement = {{"n1", 0}};
  runs.spec.terms.share = ShareRange{0.8};
  const JobRecord& waits = job(AskedClass::kAuto);
  EXPECT_THAT(begin(), IsEmpty());
  EXPECT_EQ(scheduler_.why_waiting(waits),
            "waits for its tenant's quota: 1 of 1 in use, it asks for 1, or for a device that "
            "others leave enough of: 0 of 1 have less than 80 % of their time taken");
}

TEST_F(SchedulerTest, FreeDevicesAloneAreNoReasonToWait) {
  const JobRecord& gang = job(AskedClass::kGuaranteed, 3);
  const JobRecord& behind = job(AskedClass::kGuaranteed);
  EXPECT_THAT(begin(), IsEmpty());
  EXPECT_EQ(scheduler_.why_waiting(gang),
            "waits for devices: it asks for 3, 2 are free of guaranteed jobs");
  EXPECT_EQ(scheduler_.why_waiting(behind),
            "waits for devices: it asks for 1, 2 are free of guaranteed jobs; job 1 of its tenant "
            "is before it");
  nodes_.push_back(FakeWorld::make_node("n3", 2));
  EXPECT_THAT(begin(), ElementsAre("1 n3:0 n3:1 n1:0", "2 n2:0"));
}

TEST_F(SchedulerTest, WithoutMinimaTheReasonsAreTheUsualOnes) {
  job(AskedClass::kGuaranteed, 2);
  const JobRecord& waits = job(AskedClass::kGuaranteed);
  EXPECT_THAT(begin(), ElementsAre("1 n1:0 n2:0"));
  EXPECT_EQ(scheduler_.why_waiting(waits),
            "waits for devices: it asks for 1, 0 are free of guaranteed jobs");
}

}  // namespace
}  // namespace commensal::cluster::scheduler_test
