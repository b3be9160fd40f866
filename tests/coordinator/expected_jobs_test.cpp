// SPDX-License-Identifier: Apache-2.0
// Jobs that are to come: who is expected, what is kept free, as what they run.
#include "coordinator/node/expected_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

namespace commensal::node::expected_jobs_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using wire::Placement;
using wire::PlacementState;

constexpr JobClass kGuaranteed = JobClass::kGuaranteed;
constexpr JobClass kOpportunistic = JobClass::kOpportunistic;

Placement placed(const std::string& job = "7", Bytes min = 400_MiB) {
  Placement placement;
  placement.id = "job-" + job + ".1";
  placement.job = job;
  placement.attempt = 1;
  placement.name = "train";
  placement.tenant = "vision";
  placement.job_class = kGuaranteed;
  placement.state = PlacementState::kStarting;
  placement.devices = {"host"};
  placement.memory = {min, std::nullopt};
  return placement;
}

wire::Register registration(JobClass job_class, Bytes min = 400_MiB) {
  wire::Register hello;
  hello.job_id = "job-7.1";
  hello.job_class = job_class;
  hello.terms.memory.min = min;
  return hello;
}

// --- as what a job runs -------------------------------------------------------------------------

TEST(HoldToTest, WhoSaysWhatItWasPlacedAsIsLeftAlone) {
  const Held held = hold_to(placed(), registration(kGuaranteed));
  EXPECT_EQ(held.reason, "");
  EXPECT_EQ(held.message.job_class, kGuaranteed);
}

TEST(HoldToTest, AnotherClassIsNotTaken) {
  wire::Register hello = registration(kOpportunistic);
  hello.terms.law = "gap";
  Held held = hold_to(placed(), hello);
  EXPECT_EQ(held.message.job_class, kGuaranteed);
  EXPECT_EQ(held.message.terms.law, "") << "it is one of the other class";
  EXPECT_EQ(held.reason, "the cluster placed it with guaranteed; it asked for opportunistic");
  Placement lower = placed();
  lower.job_class = kOpportunistic;
  hello = registration(kGuaranteed);
  hello.terms.slo = 0.02;
  held = hold_to(lower, hello);
  EXPECT_EQ(held.message.job_class, kOpportunistic);
  EXPECT_FALSE(held.message.terms.slo.has_value());
}

TEST(HoldToTest, BoundsAreTheClusters) {
  Placement placement = placed();
  placement.memory = {400_MiB, 800_MiB};
  placement.share = {0.2, 0.5};
  wire::Register hello = registration(kGuaranteed, 900_MiB);
  hello.terms.share = {0.9, 1.0};
  const Held held = hold_to(placement, hello);
  EXPECT_EQ(held.message.terms.memory.min, 400_MiB);
  EXPECT_EQ(held.message.terms.memory.max, 800_MiB);
  EXPECT_EQ(held.message.terms.share.min, 0.2);
  EXPECT_EQ(held.message.terms.share.max, 0.5);
  EXPECT_THAT(held.reason, AllOf(HasSubstr("placed it with memory 400"), HasSubstr("share 0.2:0.5"),
                                 HasSubstr("asked for memory 900"), HasSubstr("share 0.9:1")));
  EXPECT_EQ(hold_to(placement, held.message).reason, "") << "then it is as it should be";
}

TEST(HoldToTest, WhatTheClusterHasNotDecidedIsTheJobs) {
  Placement placement = placed();
  placement.memory.reset();
  wire::Register hello = registration(kGuaranteed, 900_MiB);
  hello.terms.share = {0.3, 1.0};
  const Held held = hold_to(placement, hello);
  EXPECT_EQ(held.reason, "");
  EXPECT_EQ(held.message.terms.memory.min, 900_MiB);
  EXPECT_EQ(held.message.terms.share.min, 0.3);
}

TEST(HoldToTest, NothingIsHeldOfAReservationAndNoClassWhileItChanges) {
  Placement placement = placed();
  placement.state = PlacementState::kReserved;
  EXPECT_EQ(hold_to(placement, registration(kOpportunistic, 1_MiB)).reason, "");
  placement.state = PlacementState::kUpgrading;
  placement.job_class = kOpportunistic;
  const Held held = hold_to(placement, registration(kGuaranteed, 1_MiB));
  EXPECT_EQ(held.message.job_class, kGuaranteed);
  EXPECT_EQ(held.message.terms.memory.min, 400_MiB);
}

TEST(HoldToTest, AShareThatWasRoundedIsTheSame) {
  Placement placement = placed();
  placement.share = {0.1 + 0.2, 1.0};
  wire::Register hello = registration(kGuaranteed);
  hello.terms.share = {0.3, 1.0};
  EXPECT_EQ(hold_to(placement, hello).reason, "");
}

// --- what is expected ---------------------------------------------------------------------------

TEST(ExpectTest, AGuaranteedJobWithAMinimumClaimsItForAWhile) {
  const auto at = [](Duration age) { return expect(placed(), Presence::kNotYet, age, 0s); };
  EXPECT_TRUE(at(0s).expected);
  EXPECT_TRUE(at(0s).claims);
  EXPECT_TRUE(at(kClaimed - 1ns).claims);
  EXPECT_FALSE(at(kClaimed).claims);
  EXPECT_TRUE(at(kClaimed).expected);
  EXPECT_TRUE(at(kExpected - 1ns).expected);
  EXPECT_FALSE(at(kExpected).expected);
  EXPECT_THAT(at(kExpected).reason, HasSubstr("within 600 s"));
}

TEST(ExpectTest, OthersClaimNothing) {
  const auto claims = [](const Placement& placement) {
    const Expectation found = expect(placement, Presence::kNotYet, 0s, 0s);
    EXPECT_TRUE(found.expected);
    return found.claims;
  };
  EXPECT_TRUE(claims(placed()));
  Placement placement = placed();
  placement.job_class = kOpportunistic;
  EXPECT_FALSE(claims(placement));
  placement = placed();
  placement.memory.reset();
  EXPECT_FALSE(claims(placement));
  EXPECT_FALSE(claims(placed("7", 0_B)));
  placement = placed();
  placement.devices.clear();
  EXPECT_FALSE(claims(placement));
  placement = placed();
  placement.state = PlacementState::kReserved;
  EXPECT_FALSE(claims(placement)) << "its devices are lent to others until it starts";
}

TEST(ExpectTest, WhoIsHereOrWasIsNotExpected) {
  const Expectation here = expect(placed(), Presence::kHere, 1s, 0s);
  EXPECT_FALSE(here.expected);
  EXPECT_TRUE(here.claims) << "its processes may be elsewhere yet than on their device";
  EXPECT_FALSE(expect(placed(), Presence::kHere, kClaimed, 0s).claims);
  const Expectation gone = expect(placed(), Presence::kGone, 1s, 0s);
  EXPECT_FALSE(gone.expected);
  EXPECT_FALSE(gone.claims);
}

TEST(ExpectTest, AReservationLastsWhileTheCoordinatorIsHeard) {
  Placement placement = placed();
  placement.state = PlacementState::kReserved;
  EXPECT_TRUE(expect(placement, Presence::kNotYet, 100h, 1s).expected);
  const Expectation silent = expect(placement, Presence::kNotYet, 1s, kExpected);
  EXPECT_FALSE(silent.expected);
  EXPECT_THAT(silent.reason, HasSubstr("silent for 600 s"));
}

// --- the list -----------------------------------------------------------------------------------

class ExpectedJobsTest : public ::testing::Test {
 protected:
  void take(const std::vector<Placement>& list) {
    jobs_.take(list, now_);
    update();
  }
  void update(Duration later = 0s) {
    now_ += later;
    jobs_.update([this](const JobId& job) { return here_.contains(job.str()); }, now_);
  }
  std::vector<std::string> expected() {
    std::vector<std::string> ids;
    for (const json& one : jobs_.status("", now_)) ids.push_back(one["job"]["id"]);
    return ids;
  }
  Bytes claimed(const std::string& device = "host") {
    Bytes sum;
    for (const auto& [job, bytes] : jobs_.claims_on(device)) sum += bytes;
    return sum;
  }

  TimePoint now_{1h};
  std::set<std::string> here_;
  ExpectedJobs jobs_;
};

TEST_F(ExpectedJobsTest, ShowsWhoIsToComeWithClassDevicesAndMemory) {
  take({placed()});
  const json shown = jobs_.status("", now_ + 2s);
  ASSERT_EQ(shown.size(), 1U);
  EXPECT_EQ(
      shown[0]["job"],
      (json{{"id", "job-7.1"}, {"name", "train"}, {"tenant", "vision"}, {"class", "guaranteed"}}));
  EXPECT_EQ(shown[0]["state"], "starting");
  EXPECT_EQ(shown[0]["devices"], json::array({"host"}));
  EXPECT_EQ(shown[0]["memory"]["min_bytes"], (400_MiB).count());
  EXPECT_EQ(shown[0]["told_seconds_ago"], 2.0);
  EXPECT_EQ(shown[0]["claimed"], true);
  EXPECT_EQ(jobs_.status("train", now_).size(), 1U);
  EXPECT_EQ(jobs_.status("job-7.1", now_).size(), 1U);
  EXPECT_EQ(jobs_.status("other", now_).size(), 0U);
  ASSERT_NE(jobs_.find(JobId{"job-7.1"}), nullptr);
  EXPECT_EQ(jobs_.find(JobId{"job-7.2"}), nullptr) << "another attempt is another job here";
}

TEST_F(ExpectedJobsTest, WhoHasComeIsNotExpectedAgain) {
  take({placed("7"), placed("8")});
  EXPECT_THAT(jobs_.take_news(), SizeIs(2));
  here_ = {"job-7.1"};
  update();
  EXPECT_THAT(expected(), ElementsAre("job-8.1"));
  here_.clear();
  update();
  EXPECT_THAT(expected(), ElementsAre("job-8.1")) << "it has ended";
  take({placed("7"), placed("8")});
  EXPECT_THAT(expected(), ElementsAre("job-8.1")) << "the cluster has not heard of it yet";
  EXPECT_EQ(claimed(), 400_MiB);
  EXPECT_THAT(jobs_.take_news(), IsEmpty()) << "all as it should be";
}

TEST_F(ExpectedJobsTest, WhoNeverComesIsDroppedWithALine) {
  take({placed()});
  EXPECT_THAT(jobs_.take_news(), ElementsAre(AllOf(HasSubstr("job-7.1"), HasSubstr("400"))));
  EXPECT_EQ(claimed(), 400_MiB);
  EXPECT_EQ(claimed("GPU-1"), 0_B);
  update(kClaimed);
  EXPECT_EQ(claimed(), 0_B);
  EXPECT_THAT(jobs_.take_news(), ElementsAre(HasSubstr("has not come: no memory is kept free")));
  EXPECT_THAT(expected(), ElementsAre("job-7.1"));
  update(kExpected);
  EXPECT_THAT(expected(), IsEmpty());
  EXPECT_THAT(jobs_.take_news(), ElementsAre(HasSubstr("is not expected any more: it did not")));
  EXPECT_NE(jobs_.find(JobId{"job-7.1"}), nullptr)
      << "if it does come, it is held to its placement";
  update(1h);
  EXPECT_THAT(jobs_.take_news(), IsEmpty());
}

TEST_F(ExpectedJobsTest, ANewListDoesNotBeginItsTimeAnew) {
  take({placed()});
  now_ += kClaimed - 1s;
  Placement running = placed();
  running.state = PlacementState::kRunning;
  take({running, placed("8")});
  EXPECT_EQ(claimed(), 800_MiB);
  update(1s);
  EXPECT_EQ(claimed(), 400_MiB) << "that of job 8";
}

TEST_F(ExpectedJobsTest, TimeBeginsWhenAReservedJobStarts) {
  Placement reserved = placed();
  reserved.state = PlacementState::kReserved;
  take({reserved});
  EXPECT_THAT(expected(), ElementsAre("job-7.1"));
  for (int i = 0; i < 100; ++i) {
    now_ += 1min;
    jobs_.heard(now_);
    update();
  }
  EXPECT_THAT(expected(), ElementsAre("job-7.1"));
  EXPECT_EQ(claimed(), 0_B);
  take({placed()});
  EXPECT_EQ(claimed(), 400_MiB);
}

TEST_F(ExpectedJobsTest, WhatTheClusterTakesAwayIsGone) {
  take({placed()});
  (void)jobs_.take_news();
  take({});
  EXPECT_THAT(expected(), IsEmpty());
  EXPECT_EQ(claimed(), 0_B);
  EXPECT_EQ(jobs_.find(JobId{"job-7.1"}), nullptr);
  EXPECT_THAT(jobs_.take_news(), ::testing::Contains(HasSubstr("the cluster has taken it away")));
}

TEST_F(ExpectedJobsTest, ASilentCoordinatorChangesNothingButThatTimePasses) {
  Placement reserved = placed("8");
  reserved.state = PlacementState::kReserved;
  take({placed(), reserved});
  here_ = {"job-7.1"};
  update(kExpected - 1s);
  EXPECT_THAT(expected(), ElementsAre("job-8.1"));
  EXPECT_NE(jobs_.find(JobId{"job-7.1"}), nullptr);
  update(1s);
  EXPECT_THAT(expected(), IsEmpty()) << "nobody says any more that devices are kept for it";
  jobs_.heard(now_);
  update();
  EXPECT_THAT(expected(), ElementsAre("job-8.1")) << "it is heard again: the list is what it was";
}

}  // namespace
}  // namespace commensal::node::expected_jobs_test
