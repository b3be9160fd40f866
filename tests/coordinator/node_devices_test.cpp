// SPDX-License-Identifier: Apache-2.0
// A node with GPUs: which process is on which device, and what concerns several of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/node/node_coordinator.h"

namespace commensal::node::node_devices_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Device host() {
  Device device;
  device.capacity = 1000_MiB;
  device.cores = 4;
  return device;
}

Device gpu(const std::string& id, Bytes capacity = 2000_MiB) {
  Device device;
  device.id = id;
  device.kind = DeviceKind::kGpu;
  device.name = "Simulated";
  device.capacity = capacity;
  return device;
}

class NodeDevicesTest : public ::testing::Test {
 protected:
  static wire::Register hello(const std::string& job, JobClass job_class, std::int64_t pid,
                              std::string device, int rank = 0, int world_size = 1) {
    wire::Register message;
    message.job_id = message.name = job;
    message.job_class = job_class;
    message.pid = pid;
    message.start_ticks = 1;
    message.role = world_size > 1 ? "rank" : "main";
    message.rank = rank;
    message.world_size = world_size;
    message.devices.front().device = std::move(device);
    return message;
  }
  template <typename T>
  std::vector<T> send(const wire::Message& message, const std::string& peer = "peer") {
    node_.receive(peer, message, now_);
    std::vector<T> wanted;
    for (const Outgoing& out : node_.take_outgoing()) {
      if (const auto* fits = std::get_if<T>(&out.message)) wanted.push_back(*fits);
    }
    return wanted;
  }
  wire::Registered join(const wire::Register& message) {
    const auto replies = send<wire::Registered>(message, message.job_id);
    EXPECT_EQ(replies.size(), 1U) << message.job_id;
    return replies.empty() ? wire::Registered{} : replies.front();
  }
  void pass(Duration time) {
    now_ += time;
    node_.sample(now_);
    node_.tick(now_);
    (void)node_.take_outgoing();
  }
  const DeviceCoordinator& on(const std::string& id) {
    for (const auto& device : node_.devices()) {
      if (device->device().id == id) return *device;
    }
    ADD_FAILURE() << "no device " << id;
    return node_.host();
  }
  std::vector<std::string> jobs_on(const std::string& id) {
    std::vector<std::string> names;
    for (const Job& job : on(id).table().jobs()) names.push_back(job.id.str());
    return names;
  }
  PageEntry entry(const std::string& device, const std::string& job) {
    for (const PageEntry& entry : on(device).page_entries(now_)) {
      if (entry.job_id == job) return entry;
    }
    ADD_FAILURE() << "no entry of " << job << " on " << device;
    return {};
  }
  json status_of(const std::string& job) {
    const json jobs = node_.status(job, now_)["jobs"];
    EXPECT_FALSE(jobs.empty()) << job;
    return jobs.empty() ? json() : jobs[0];
  }

  TimePoint now_{1h};
  NodeCoordinator node_{
      CoordinatorConfig{}, host(), 77, 5, now_, {}, [](const std::string& id) -> FoundDevice {
        if (id == "GPU-a" || id == "GPU-b") return {gpu(id), ""};
        return {std::nullopt, "there are GPU-a, GPU-b"};
      }};
};

TEST_F(NodeDevicesTest, AProcessIsOnTheDeviceThatItNames) {
  const auto reply = join(hello("j", JobClass::kOpportunistic, 10, "GPU-a"));
  EXPECT_EQ(reply.device, "GPU-a");
  EXPECT_EQ(reply.capacity_bytes, (2000_MiB).count());
  EXPECT_EQ(reply.limit_bytes, (2000_MiB).count());
  EXPECT_EQ(on("GPU-a").ledger().total_charged(), 2000_MiB);
  EXPECT_EQ(node_.host().ledger().total_charged(), 0_B);
  EXPECT_THAT(node_.devices_of(JobId{"j"}, 10), ElementsAre(&on("GPU-a")));
  EXPECT_THAT(node_.devices_of(JobId{"j"}, 11), IsEmpty());
}

TEST_F(NodeDevicesTest, OneThatNamesNoneIsOnTheHost) {
  const auto reply = join(hello("j", JobClass::kOpportunistic, 10, "host"));
  EXPECT_EQ(reply.device, "host");
  EXPECT_EQ(reply.limit_bytes, (1000_MiB).count());
}

TEST_F(NodeDevicesTest, ADeviceThatIsNotThereIsNamed) {
  const auto errors = send<wire::Error>(hello("j", JobClass::kOpportunistic, 10, "GPU-c"));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].code, "no_device");
  EXPECT_EQ(errors[0].what, "no device 'GPU-c': there are GPU-a, GPU-b");
  EXPECT_FALSE(node_.has_jobs());
  EXPECT_EQ(join(hello("j", JobClass::kOpportunistic, 10, "GPU-a")).device, "GPU-a");
}

TEST_F(NodeDevicesTest, WithoutSomebodyWhoFindsThemThereIsTheHostAlone) {
  node_ = NodeCoordinator{CoordinatorConfig{}, host(), 77, 5, now_};
  const auto errors = send<wire::Error>(hello("j", JobClass::kOpportunistic, 10, "GPU-a"));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].what, "no device 'GPU-a': GPUs are not managed here");
}

TEST_F(NodeDevicesTest, BeforeItHasUsedItsGpuAJobIsListedAndTakesNoMemory) {
  join(hello("other", JobClass::kOpportunistic, 9, "host"));
  auto waits = hello("j", JobClass::kGuaranteed, 10, "");
  waits.terms.memory.min = 1500_MiB;  // more than the host has: it is about the GPU
  const auto reply = join(waits);
  EXPECT_EQ(reply.limit_bytes, 0U);
  EXPECT_EQ(reply.job_class, JobClass::kGuaranteed);
  EXPECT_EQ(reply.device, "host");
  EXPECT_THAT(reply.reason, HasSubstr("not used its device yet"));
  pass(1s);
  EXPECT_EQ(node_.host().ledger().limit({JobId{"other"}, 9}), 1000_MiB) << "nobody gave it any";
  EXPECT_EQ(status_of("j")["devices"], json({"host"}));
}

TEST_F(NodeDevicesTest, AJobGoesOnWhereItsMemoryIs) {
  join(hello("j", JobClass::kOpportunistic, 10, ""));
  wire::SetRequest pause;
  pause.job = "j";
  pause.paused = true;
  EXPECT_EQ(send<wire::SetReply>(pause).at(0).outcome, wire::Outcome::kApplied);
  pass(2s);
  const auto reply = join(hello("j", JobClass::kOpportunistic, 10, "GPU-a"));
  EXPECT_EQ(reply.limit_bytes, (2000_MiB).count());
  EXPECT_THAT(jobs_on("host"), IsEmpty());
  EXPECT_THAT(jobs_on("GPU-a"), ElementsAre("j"));
  EXPECT_TRUE(entry("GPU-a", "j").paused) << "what its user had said still holds";
  const json status = node_.status("", now_);
  ASSERT_EQ(status["jobs"].size(), 1U) << "it has not ended anywhere";
  EXPECT_EQ(status["jobs"][0]["devices"], json({"GPU-a"}));
  EXPECT_GE(status["jobs"][0]["started_seconds_ago"], 2.0);
}

TEST_F(NodeDevicesTest, WhatWasAlreadyThereIsNoMove) {
  join(hello("j", JobClass::kOpportunistic, 10, "GPU-a"));
  const auto again = join(hello("j", JobClass::kOpportunistic, 10, "GPU-a"));
  EXPECT_EQ(again.limit_bytes, (2000_MiB).count());
  EXPECT_EQ(on("GPU-a").table().jobs().at(0).members.size(), 1U);
}

TEST_F(NodeDevicesTest, JobsOnOtherDevicesAreNoNeighbours) {
  auto owner = hello("g", JobClass::kGuaranteed, 1, "GPU-a");
  owner.terms.memory = {1800_MiB, 1800_MiB};
  join(owner);
  const auto reply = join(hello("o", JobClass::kOpportunistic, 2, "GPU-b"));
  EXPECT_EQ(reply.limit_bytes, (2000_MiB).count());
  pass(1s);
  EXPECT_FALSE(node_.wants_sampling());
  EXPECT_EQ(on("GPU-b").page_entries(now_).size(), 1U);
  EXPECT_EQ(on("GPU-a").page_entries(now_).size(), 1U);
  join(hello("near", JobClass::kOpportunistic, 3, "GPU-a"));
  pass(1s);
  EXPECT_TRUE(node_.wants_sampling());
  EXPECT_LE(on("GPU-a").ledger().limit({JobId{"near"}, 3}), 200_MiB);
  EXPECT_EQ(on("GPU-b").ledger().limit({JobId{"o"}, 2}), 2000_MiB);
}

TEST_F(NodeDevicesTest, C1_WorkInTheQueuesOfAGpuIsBounded) {
  for (const std::string device : {"host", "GPU-a"}) {
    (void)join(hello("g@" + device, JobClass::kGuaranteed, 1, device));
    (void)join(hello("o@" + device, JobClass::kOpportunistic, 2, device));
  }
  pass(1s);
  EXPECT_EQ(entry("GPU-a", "o@GPU-a").gap_rules.in_flight, 500us);
  EXPECT_EQ(entry("host", "o@host").gap_rules.in_flight, 0us) << "an op that returned is done";
}

TEST_F(NodeDevicesTest, JobsOnAGpuHaveItsQueuesTogether) {
  (void)join(hello("g", JobClass::kGuaranteed, 1, "GPU-a"));
  (void)join(hello("o", JobClass::kOpportunistic, 2, "GPU-a"));
  (void)join(hello("p", JobClass::kOpportunistic, 3, "GPU-a"));
  pass(1s);
  EXPECT_EQ(entry("GPU-a", "o").gap_rules.in_flight, 250us);
  EXPECT_EQ(entry("GPU-a", "p").gap_rules.in_flight, 250us);
  wire::SetRequest pause;
  pause.job = "p";
  pause.paused = true;
  EXPECT_EQ(send<wire::SetReply>(pause).at(0).outcome, wire::Outcome::kApplied);
  pass(1s);
  EXPECT_EQ(entry("GPU-a", "o").gap_rules.in_flight, 500us) << "who is paused has nothing queued";
}

TEST_F(NodeDevicesTest, WhoHasATurnOnAGpuLeavesNoMoreThanTheBoundToTheNext) {
  for (const std::string device : {"host", "GPU-a"}) {
    for (const int pid : {1, 2}) {
      auto message =
          hello(std::to_string(pid) + "@" + device, JobClass::kOpportunistic, pid, device);
      message.terms.law = "token_window";
      (void)join(message);
    }
  }
  pass(1s);
  EXPECT_EQ(entry("GPU-a", "1@GPU-a").gap_rules.in_flight, 500us) << "one at a time has it all";
  EXPECT_EQ(entry("GPU-a", "2@GPU-a").gap_rules.in_flight, 500us);
  EXPECT_EQ(entry("host", "1@host").gap_rules.in_flight, 0us) << "an op that returned is done";
}

TEST_F(NodeDevicesTest, RanksOnSeveralDevicesAreOneJob) {
  join(hello("o", JobClass::kOpportunistic, 1, ""));  // torchrun itself
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a", 0, 2));
  join(hello("o", JobClass::kOpportunistic, 11, "GPU-b", 1, 2));
  const json status = node_.status("", now_);
  ASSERT_EQ(status["jobs"].size(), 1U);
  const json& job = status["jobs"][0];
  EXPECT_EQ(job["devices"], json({"GPU-a", "host", "GPU-b"}));
  EXPECT_EQ(job["members"].size(), 3U);
  EXPECT_EQ(job["job"]["rank"], 0);
  EXPECT_EQ(job["job"]["role"], "rank");
  EXPECT_EQ(job["lease"]["granted_bytes"], (4000_MiB).count());
  std::vector<std::string> devices;
  for (const json& device : status["devices"]) devices.push_back(device["id"]);
  EXPECT_THAT(devices, ElementsAre("host", "GPU-a", "GPU-b"));
  EXPECT_EQ(status["devices"][1]["kind"], "gpu");
  EXPECT_TRUE(status["devices"][1]["cores"].is_null());
  EXPECT_EQ(status["devices"][1]["covers"], "all") << "contexts take memory of a GPU too";
}

TEST_F(NodeDevicesTest, ARankThatComesLaterIsPausedAsTheOthers) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a", 0, 2));
  wire::SetRequest pause;
  pause.job = "o";
  pause.paused = true;
  EXPECT_EQ(send<wire::SetReply>(pause).at(0).outcome, wire::Outcome::kApplied);
  join(hello("o", JobClass::kOpportunistic, 11, "GPU-b", 1, 2));
  EXPECT_TRUE(entry("GPU-b", "o").paused);
}

TEST_F(NodeDevicesTest, AGangOnSeveralDevicesHasOneEpoch) {
  PageReading page;
  page.collectives_begun = page.collectives_ended = 3;
  join(hello("o", JobClass::kOpportunistic, 1, ""));
  for (const auto& [pid, device] : {std::pair{10, "GPU-a"}, std::pair{11, "GPU-b"}}) {
    join(hello("o", JobClass::kOpportunistic, pid, device, pid - 10, 2));
    page.heartbeat = now_;
    node_.observe_page(JobId{"o"}, pid, page, now_);
  }
  pass(20ms);
  const std::uint64_t open = entry("GPU-a", "o").gang_epoch;
  EXPECT_NE(open, 0U) << status_of("o")["gang"];
  EXPECT_EQ(entry("GPU-b", "o").gang_epoch, open);
  // A guaranteed job on one of the devices is looked at alone: both ranks are ordered to close.
  join(hello("g", JobClass::kGuaranteed, 20, "GPU-a"));
  PageReading steps;
  bool closed = false;
  for (int i = 0; i < 400 && !closed; ++i) {
    steps.heartbeat = page.heartbeat = now_;
    steps.step_number = static_cast<std::uint64_t>(i);
    steps.step_last = 20ms;
    steps.step_end = now_;
    node_.observe_page(JobId{"g"}, 20, steps, now_);
    for (const int pid : {10, 11}) node_.observe_page(JobId{"o"}, pid, page, now_);
    pass(20ms);
    closed = on("GPU-a").compute().window_closed();
  }
  ASSERT_TRUE(closed);
  EXPECT_GT(entry("GPU-a", "o").gang_epoch, open);
  EXPECT_EQ(entry("GPU-b", "o").gang_epoch, entry("GPU-a", "o").gang_epoch);
}

TEST_F(NodeDevicesTest, AJobIsChangedOnAllItsDevicesOrOnNone) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a", 0, 2));
  join(hello("o", JobClass::kOpportunistic, 11, "GPU-b", 1, 2));
  auto owner = hello("x", JobClass::kOpportunistic, 20, "GPU-b");
  owner.terms.share.min = 0.7;
  join(owner);
  wire::SetRequest request;
  request.job = "o";
  request.terms.share = ShareRange{0.5, 1.0};
  const auto refused = send<wire::SetReply>(request).at(0);
  EXPECT_EQ(refused.outcome, wire::Outcome::kRefused);
  EXPECT_THAT(refused.reason, HasSubstr("minimum shares add up to more than the device"));
  EXPECT_EQ(on("GPU-a").table().jobs().at(0).terms.share.min, 0.0);
  request.terms.share = ShareRange{0.2, 0.6};
  const auto applied = send<wire::SetReply>(request).at(0);
  EXPECT_EQ(applied.outcome, wire::Outcome::kApplied);
  EXPECT_THAT(applied.reason, HasSubstr("GPU-a: share 0.2:0.6; GPU-b: share 0.2:0.6"));
  EXPECT_EQ(on("GPU-a").table().jobs().at(0).terms.share.max, 0.6);
  EXPECT_EQ(on("GPU-b").table().jobs().at(0).terms.share.max, 0.6);
}

TEST_F(NodeDevicesTest, APlainNameIsFoundOnAnyDevice) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a", 0, 2));
  join(hello("o", JobClass::kOpportunistic, 11, "GPU-b", 1, 2));
  const auto reply = send<wire::ExplainReply>(wire::ExplainRequest{"o", 60, false});
  ASSERT_EQ(reply.size(), 1U);
  EXPECT_EQ(reply[0].explanation["job"]["id"], "o");
  const auto errors = send<wire::Error>(wire::ExplainRequest{"p", 60, false});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].what, "no job 'p' of the last ten minutes; known: o (o)");
}

TEST_F(NodeDevicesTest, TheMemoryMapIsAskedOfTheProcessThatIsMeant) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a", 0, 2));
  node_.receive("second", hello("o", JobClass::kOpportunistic, 11, "GPU-b", 1, 2), now_);
  (void)node_.take_outgoing();
  wire::MapRequest request;
  request.job = "o";
  node_.receive("cli", request, now_);
  EXPECT_EQ(node_.take_outgoing().at(0).peer, "o");
  request.pid = 11;
  node_.receive("cli", request, now_);
  EXPECT_EQ(node_.take_outgoing().at(0).peer, "second");
  request.pid = 12;
  EXPECT_EQ(send<wire::Error>(request).at(0).what, "job o has no process 12");
}

TEST_F(NodeDevicesTest, AJobEndsWhereItsLastProcessEnds) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a", 0, 2));
  join(hello("o", JobClass::kOpportunistic, 11, "GPU-b", 1, 2));
  node_.member_gone(JobId{"o"}, 11, Departure::kExited, now_);
  EXPECT_EQ(on("GPU-b").ledger().total_charged(), 0_B);
  EXPECT_TRUE(node_.has_job(JobId{"o"}));
  EXPECT_EQ(status_of("o")["devices"], json({"GPU-a"}));
  pass(1s);
  node_.member_gone(JobId{"o"}, 10, Departure::kExited, now_);
  EXPECT_FALSE(node_.has_jobs());
  EXPECT_EQ(node_.idle_since(), now_);
}

TEST_F(NodeDevicesTest, WhatTheDriverShowsBesideCountsOnItsDevice) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a"));
  send<wire::Error>(
      wire::Stats{"o", 10, {{"memory", {{"device_bytes", (100_MiB).count()}}}}, false});
  JobUse use;
  use.resident[10] = 612_MiB;  // a context of half a GiB beside
  use.by = "nvml";
  for (int i = 0; i < 20; ++i) {
    node_.observe_use(DeviceId{"GPU-a"}, JobId{"o"}, use, now_);
    pass(1s);
  }
  EXPECT_EQ(on("GPU-a").ledger().unmanaged(JobId{"o"}), 512_MiB);
  EXPECT_EQ(node_.host().ledger().total_unmanaged(), 0_B);
  EXPECT_EQ(status_of("o")["lease"]["measured_by"], "nvml");
  EXPECT_LE(on("GPU-a").ledger().limit({JobId{"o"}, 10}), 1488_MiB);
}

// What a job took a moment ago, and its context, are no others' memory: its report comes later.
TEST_F(NodeDevicesTest, WhatPyTorchsAllocatorHoldsIsChargedOnce) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a"));
  const auto report = [&](const json& memory) {
    send<wire::Error>(wire::Stats{"o", 10, {{"memory", memory}}, false});
    JobUse use;
    use.resident[10] = 612_MiB;  // a context of half a GiB beside
    use.by = "nvml";
    for (int i = 0; i < 20; ++i) {
      node_.observe_use(DeviceId{"GPU-a"}, JobId{"o"}, use, now_);
      pass(1s);
    }
  };
  report({{"device_bytes", (60_MiB).count()}, {"delegated_bytes", (40_MiB).count()}});
  EXPECT_EQ(on("GPU-a").ledger().unmanaged(JobId{"o"}), 512_MiB) << "the limit is for both";
  EXPECT_EQ(status_of("o")["memory"]["delegated_bytes"], (40_MiB).count());
  // The twin: who does not tell of it has it beside his limit.
  report({{"device_bytes", (60_MiB).count()}});
  EXPECT_GT(on("GPU-a").ledger().unmanaged(JobId{"o"}), 512_MiB);
}

TEST_F(NodeDevicesTest, WhatIsFreeIsComparedWithWhatProcessesHeldAtThatMoment) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a"));
  for (int i = 0; i < 20; ++i) {
    node_.observe_available(DeviceId{"GPU-a"}, 400_MiB, now_, {{10, 1600_MiB}, {99, 300_MiB}});
    pass(100ms);
    EXPECT_EQ(on("GPU-a").ledger().outside(), 0_B) << i;
  }
  for (int i = 0; i < 20; ++i) {
    node_.observe_available(DeviceId{"GPU-a"}, 100_MiB, now_, {{10, 1600_MiB}, {99, 300_MiB}});
    pass(200ms);
  }
  EXPECT_GE(on("GPU-a").ledger().outside(), 300_MiB) << "that of 99, nobody's here";
}

TEST_F(NodeDevicesTest, WhatOthersHoldOfAGpuIsNotDivided) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a"));
  for (int i = 0; i < 20; ++i) {
    node_.observe_available(DeviceId{"GPU-a"}, 800_MiB, now_);
    pass(1s);
  }
  EXPECT_GE(on("GPU-a").ledger().outside(), 1200_MiB);
  EXPECT_LE(on("GPU-a").ledger().limit({JobId{"o"}, 10}), 800_MiB);
  EXPECT_EQ(node_.host().ledger().outside(), 0_B);
}

/// A process that uses GPU-a, and GPU-b besides.
class SeveralDevicesTest : public NodeDevicesTest {
 protected:
  static wire::Register on_both(const std::string& job, JobClass job_class, std::int64_t pid) {
    wire::Register message = hello(job, job_class, pid, "GPU-a");
    message.devices.push_back({"GPU-b"});
    return message;
  }
  /// Reports what it holds of each.
  void report(const std::string& job, std::int64_t pid, Bytes first, Bytes second) {
    const json more{{"device", "GPU-b"}, {"device_bytes", second.count()}};
    const json memory{{"device_bytes", first.count()}, {"devices", json::array({more})}};
    node_.receive(job, wire::Stats{job, pid, {{"memory", memory}}, false}, now_);
  }
  static wire::Register guaranteed(const std::string& job, std::int64_t pid,
                                   const std::string& device, Bytes bytes) {
    wire::Register message = hello(job, JobClass::kGuaranteed, pid, device);
    message.terms.memory = {bytes, bytes};
    return message;
  }
  Bytes limit(const std::string& device, const std::string& job, std::int64_t pid) {
    return on(device).ledger().limit({JobId{job}, pid});
  }
};

TEST_F(SeveralDevicesTest, EachHasALimitOfItsOwn) {
  const auto replies = send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  ASSERT_EQ(replies.size(), 2U);
  for (const wire::Registered& reply : replies) {
    EXPECT_EQ(reply.limit_bytes, (2000_MiB).count()) << reply.device;
  }
  EXPECT_EQ(replies[0].device, "GPU-a");
  EXPECT_EQ(replies[1].device, "GPU-b");
  EXPECT_THAT(node_.devices_of(JobId{"o"}, 10), ElementsAre(&on("GPU-a"), &on("GPU-b")));
}

TEST_F(SeveralDevicesTest, OneThatIsUsedLaterIsRegisteredThen) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a"));
  pass(2s);
  EXPECT_EQ(node_.devices().size(), 2U) << "GPU-b is not known yet";
  const auto replies = send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  EXPECT_EQ(replies.size(), 2U);
  EXPECT_EQ(on("GPU-a").table().jobs().at(0).members.size(), 1U);
  EXPECT_THAT(jobs_on("GPU-b"), ElementsAre("o"));
  EXPECT_GE(on("GPU-b").table().jobs().at(0).started, TimePoint{1h});
  EXPECT_LT(on("GPU-b").table().jobs().at(0).started, now_) << "the job began before";
}

TEST_F(SeveralDevicesTest, TheFirstIsTheOneThatItUsedFirstInWhateverOrderTheyAreKnown) {
  join(hello("other", JobClass::kOpportunistic, 9, "GPU-b"));
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  EXPECT_THAT(node_.devices_of(JobId{"o"}, 10), ElementsAre(&on("GPU-a"), &on("GPU-b")));
  EXPECT_EQ(status_of("o")["devices"], json({"GPU-a", "GPU-b"}));
}

TEST_F(SeveralDevicesTest, AShrinkIsOfOneDeviceAndSaysOfWhich) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  report("o", 10, 1800_MiB, 1700_MiB);
  node_.receive("g", guaranteed("g", 20, "GPU-b", 1500_MiB), now_);
  std::vector<wire::Change> told;
  for (const Outgoing& out : node_.take_outgoing()) {
    const auto* change = std::get_if<wire::Change>(&out.message);
    if (change != nullptr && out.peer == "o") told.push_back(*change);
  }
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].device, "GPU-b");
  EXPECT_LE(*told[0].limit_bytes, (500_MiB).count());
  EXPECT_EQ(limit("GPU-a", "o", 10), 2000_MiB);
  EXPECT_EQ(on("GPU-b").ledger().charged({JobId{"o"}, 10}), 2000_MiB) << "until it has answered";
  // An answer for the first device is none for this one.
  wire::Answer answer{"o", 10, told[0].revision,  wire::Outcome::kApplied,
                      0,   0,  (400_MiB).count(), ""};
  node_.receive("o", answer, now_);
  EXPECT_EQ(on("GPU-b").ledger().charged({JobId{"o"}, 10}), 2000_MiB);
  answer.device = "GPU-b";
  node_.observe_held(JobId{"o"}, 10, 400_MiB, answer.device);
  node_.receive("o", answer, now_);
  EXPECT_LE(on("GPU-b").ledger().charged({JobId{"o"}, 10}), 500_MiB);
  EXPECT_EQ(limit("GPU-b", "g", 20), 1500_MiB);
}

TEST_F(SeveralDevicesTest, WhatItAsksForIsAnsweredWhereItIsMeant) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  join(guaranteed("g", 20, "GPU-b", 1500_MiB));
  report("o", 10, 100_MiB, 400_MiB);
  pass(1s);
  wire::AskMemory ask{"o", 10, (800_MiB).count(), (400_MiB).count()};
  ask.device = "GPU-b";
  const auto errors = send<wire::Error>(ask, "o");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].code, "no_memory");
  EXPECT_EQ(errors[0].device, "GPU-b");
  ask.device = "host";  // where it is first
  const auto grants = send<wire::Change>(ask, "o");
  ASSERT_EQ(grants.size(), 1U) << "the first device has it";
  EXPECT_EQ(grants[0].device, "GPU-a");
}

TEST_F(SeveralDevicesTest, OneReportTellsOfAllDevices) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  report("o", 10, 300_MiB, 700_MiB);
  EXPECT_EQ(on("GPU-a").table().jobs().at(0).members.at(0).held, 300_MiB);
  EXPECT_EQ(on("GPU-b").table().jobs().at(0).members.at(0).held, 700_MiB);
  // What is no report of that device changes nothing there, and harms nobody.
  for (const json& nonsense : {json(3), json::array({1}), json{{"memory", 7}},
                               json{{"memory", {{"devices", {{{"device", 3}}}}}}}}) {
    node_.receive("o", wire::Stats{"o", 10, nonsense, false}, now_);
  }
  EXPECT_EQ(on("GPU-b").table().jobs().at(0).members.at(0).held, 700_MiB);
  JobUse use;
  use.resident[10] = 900_MiB;  // with a context
  use.by = "nvml";
  report("o", 10, 300_MiB, 700_MiB);
  for (int i = 0; i < 20; ++i) {
    node_.observe_use(DeviceId{"GPU-b"}, JobId{"o"}, use, now_);
    pass(1s);
  }
  EXPECT_GE(on("GPU-b").ledger().unmanaged(JobId{"o"}), 190_MiB);
  EXPECT_EQ(on("GPU-a").ledger().unmanaged(JobId{"o"}), 0_B);
}

TEST_F(SeveralDevicesTest, ItsStatusShowsAllOfThem) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  report("o", 10, 300_MiB, 700_MiB);
  const json job = status_of("o");
  EXPECT_EQ(job["devices"], json({"GPU-a", "GPU-b"}));
  ASSERT_EQ(job["members"].size(), 1U) << job["members"];
  EXPECT_EQ(job["memory"]["device_bytes"], (1000_MiB).count());
  EXPECT_EQ(job["lease"]["granted_bytes"], (4000_MiB).count());
  ASSERT_EQ(job["leases"].size(), 2U);
  EXPECT_EQ(job["leases"][0]["device"], "GPU-a");
  EXPECT_EQ(job["leases"][1]["device"], "GPU-b");
  EXPECT_EQ(job["leases"][1]["granted_bytes"], (2000_MiB).count());
  EXPECT_EQ(job["leases"][1]["held_bytes"], (700_MiB).count());
}

TEST_F(SeveralDevicesTest, ItsEndFreesAllOfThemAndIsOneEnd) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  report("o", 10, 300_MiB, 700_MiB);
  pass(1s);
  node_.member_gone(JobId{"o"}, 10, Departure::kExited, now_);
  EXPECT_FALSE(node_.has_jobs());
  EXPECT_EQ(on("GPU-a").ledger().total_charged(), 0_B);
  EXPECT_EQ(on("GPU-b").ledger().total_charged(), 0_B);
  const json jobs = node_.status("", now_)["jobs"];
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0]["devices"], json({"GPU-a", "GPU-b"}));
  EXPECT_EQ(jobs[0]["leases"].size(), 2U);
}

TEST_F(SeveralDevicesTest, OneThatIsNotThereIsNamedAndTheOthersStay) {
  auto message = hello("o", JobClass::kOpportunistic, 10, "GPU-a");
  message.devices = {{"GPU-a"}, {"GPU-c"}, {"GPU-b"}};
  const auto errors = send<wire::Error>(message, "o");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].code, "no_device");
  EXPECT_EQ(errors[0].what, "no device 'GPU-c': there are GPU-a, GPU-b");
  EXPECT_EQ(errors[0].device, "GPU-c");
  EXPECT_THAT(node_.devices_of(JobId{"o"}, 10), ElementsAre(&on("GPU-a"), &on("GPU-b")));
}

TEST_F(SeveralDevicesTest, OneThatIsNamedNoMoreIsGivenBack) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  join(hello("o", JobClass::kOpportunistic, 10, ""));  // became another program
  EXPECT_EQ(on("GPU-a").ledger().total_charged(), 0_B);
  EXPECT_EQ(on("GPU-b").ledger().total_charged(), 0_B);
  EXPECT_EQ(status_of("o")["devices"], json({"host"}));
}

TEST_F(SeveralDevicesTest, AfterARestartItSaysWhatItHoldsOfEach) {
  auto message = on_both("o", JobClass::kOpportunistic, 10);
  message.devices = {{"GPU-a", (300_MiB).count(), 0, (600_MiB).count()},
                     {"GPU-b", (700_MiB).count(), 9, (900_MiB).count()}};
  CoordinatorConfig config;
  config.recovery = 1s;
  node_ = NodeCoordinator{config,
                          host(),
                          77,
                          5,
                          now_,
                          {},
                          [](const std::string& id) {
                            return FoundDevice{gpu(id), ""}; }};
  (void)send<wire::Registered>(message, "o");
  EXPECT_EQ(on("GPU-a").ledger().charged({JobId{"o"}, 10}), 600_MiB);
  EXPECT_EQ(on("GPU-b").ledger().charged({JobId{"o"}, 10}), 900_MiB);
  EXPECT_GE(on("GPU-b").table().jobs().at(0).revision, 9U);
}

TEST_F(SeveralDevicesTest, WhatIsSaidOfADeviceWhereItIsNotIsAnswered) {
  join(hello("o", JobClass::kOpportunistic, 10, "GPU-a"));
  for (const char* device : {"GPU-b", "GPU-none"}) {
    wire::AskMemory ask{"o", 10, 1, 0};
    ask.device = device;
    const auto errors = send<wire::Error>(ask, "o");
    ASSERT_EQ(errors.size(), 1U) << device;
    EXPECT_EQ(errors[0].code, "unknown_job");
    join(hello("other", JobClass::kOpportunistic, 11, "GPU-b"));  // so that it is known
  }
}

TEST_F(SeveralDevicesTest, AUsersPauseHoldsOnAllOfThem) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  wire::SetRequest pause;
  pause.job = "o";
  pause.paused = true;
  node_.receive("cli", pause, now_);
  std::vector<std::string> told;
  for (const Outgoing& out : node_.take_outgoing()) {
    const auto* change = std::get_if<wire::Change>(&out.message);
    if (change != nullptr && change->paused == true) told.push_back(change->device);
  }
  EXPECT_THAT(told, ElementsAre("GPU-a", "GPU-b"));
  EXPECT_TRUE(entry("GPU-a", "o").paused);
  EXPECT_TRUE(entry("GPU-b", "o").paused);
}

// Its gate is one for all: what the guaranteed job of one device asks for closes it.
TEST_F(SeveralDevicesTest, AGuaranteedJobOnAnyOfThemIsItsNeighbour) {
  (void)send<wire::Registered>(on_both("o", JobClass::kOpportunistic, 10), "o");
  join(hello("g", JobClass::kGuaranteed, 20, "GPU-b"));
  PageReading steps;
  bool closed = false;
  for (int i = 0; i < 400 && !closed; ++i) {
    steps.heartbeat = now_;
    steps.step_number = static_cast<std::uint64_t>(i);
    steps.step_last = 20ms;
    steps.step_end = now_;
    node_.observe_page(JobId{"g"}, 20, steps, now_);
    pass(20ms);
    closed = on("GPU-b").compute().window_closed();
  }
  ASSERT_TRUE(closed) << "it is looked at alone now and then";
  EXPECT_EQ(entry("GPU-b", "o").share_max, 0.0);
  EXPECT_EQ(entry("GPU-a", "o").share_max, 1.0) << "there is nobody";
}

TEST_F(SeveralDevicesTest, ARankOfAGangIsInItOnce) {
  PageReading page;
  page.heartbeat = now_;
  page.collectives_begun = page.collectives_ended = 3;
  for (const int rank : {0, 1}) {
    auto message = on_both("o", JobClass::kOpportunistic, 10 + rank);
    message.role = "rank";
    message.rank = rank;
    message.world_size = 2;
    if (rank == 1) message.devices.pop_back();
    (void)send<wire::Registered>(message, "o");
    node_.observe_page(JobId{"o"}, 10 + rank, page, now_);
  }
  pass(20ms);
  EXPECT_NE(entry("GPU-a", "o").gang_epoch, 0U) << status_of("o")["gang"];
  EXPECT_EQ(entry("GPU-b", "o").gang_epoch, entry("GPU-a", "o").gang_epoch);
}

/// A guaranteed job that has its GPU for 15 of 20 ms, beside one whose gate lets 4 of 20 ms
/// through.
class GpuTimeTest : public NodeDevicesTest {
 protected:
  void run(Duration time, const std::string& gate = "open") {
    const TimePoint until = now_ + time;
    while (now_ < until) {
      now_ += 20ms;
      waited_ += 5ms;
      metered_ += 4ms;
      PageReading page;
      page.heartbeat = now_;
      page.step_number = ++steps_;
      page.step_last = 20ms;
      page.waits_shown.ended = waited_;
      if (shows_pages_) node_.observe_page(JobId{"g"}, 10, page, now_);
      const double metered = std::chrono::duration<double>(metered_).count();
      const json stats{{"gate", {{"busy_seconds_total", metered}, {"state", gate}}}};
      node_.receive("o", wire::Stats{"o", 20, stats, false}, now_);
      pass(0ms);
    }
  }
  json use() { return node_.status("", now_)["devices"][1]["use"]; }

  Duration waited_{};
  Duration metered_{};
  std::uint64_t steps_ = 0;
  bool shows_pages_ = true;
};

TEST_F(GpuTimeTest, IsToldByWaitsAndByWhatWasMetered) {
  (void)join(hello("g", JobClass::kGuaranteed, 10, "GPU-a"));
  (void)join(hello("o", JobClass::kOpportunistic, 20, "GPU-a"));
  EXPECT_TRUE(use()["guaranteed_share"].is_null());
  run(30s);
  const json told = use();
  EXPECT_EQ(told["kind"], "gpu");
  EXPECT_NEAR(told["seconds"].get<double>(), 10.0, 1.1);
  EXPECT_NEAR(told["guaranteed_share"].get<double>(), 0.75, 0.01);
  EXPECT_NEAR(told["opportunistic_share"].get<double>(), 0.2, 0.01);
  EXPECT_NEAR(told["oracle_share"].get<double>(), 1 - 0.75 / 1.01, 0.02);
  EXPECT_NEAR(told["efficiency"].get<double>(), 0.2 / (1 - 0.75 / 1.01), 0.1);
  EXPECT_TRUE(told["driver_busy_share"].is_null());
}

TEST_F(GpuTimeTest, IsNotGuessedWhereAJobShowsNone) {
  (void)join(hello("g", JobClass::kGuaranteed, 10, "GPU-a"));
  (void)join(hello("o", JobClass::kOpportunistic, 20, "GPU-a"));
  shows_pages_ = false;
  run(5s);
  EXPECT_TRUE(use()["guaranteed_share"].is_null()) << "no page of a guaranteed job";
  shows_pages_ = true;
  run(1s);
  EXPECT_TRUE(use()["guaranteed_share"].is_number());
  run(1s, "off");
  EXPECT_TRUE(use()["opportunistic_share"].is_null()) << "ops pass a gate that is off unseen";
}

TEST_F(GpuTimeTest, OfWhoIsAloneTheDriverTells) {
  (void)join(hello("o", JobClass::kOpportunistic, 20, "GPU-a"));
  run(3s, "off");
  EXPECT_TRUE(use()["opportunistic_share"].is_null());
  node_.observe_busy(DeviceId{"GPU-a"}, 0.9, now_);
  node_.observe_busy(DeviceId{"GPU-none"}, 0.1, now_);
  const json told = use();
  EXPECT_EQ(told["opportunistic_share"], 0.9);
  EXPECT_EQ(told["guaranteed_share"], 0.0);
  EXPECT_EQ(told["driver_busy_share"], 0.9);
  EXPECT_TRUE(told["oracle_share"].is_null());
  run(11s, "off");
  EXPECT_TRUE(use()["opportunistic_share"].is_null()) << "it has stopped to tell";
}

TEST_F(GpuTimeTest, TwoThatHaveWorkAtOnceHaveNoMoreThanAll) {
  (void)join(hello("g", JobClass::kGuaranteed, 10, "GPU-a"));
  (void)join(hello("h", JobClass::kGuaranteed, 11, "GPU-a"));
  for (int step = 0; step < 100; ++step) {
    now_ += 100ms;
    for (const auto& [job, pid] : {std::pair{"g", 10}, std::pair{"h", 11}}) {
      PageReading page;
      page.heartbeat = now_;
      node_.observe_page(JobId{job}, pid, page, now_);
    }
    pass(0ms);
  }
  EXPECT_EQ(use()["guaranteed_share"], 1.0);
  EXPECT_TRUE(use()["efficiency"].is_null());
}

}  // namespace
}  // namespace commensal::node::node_devices_test
