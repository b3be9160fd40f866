// SPDX-License-Identifier: Apache-2.0
// The state machine of a job: which events lead where, and that none does harm twice.
#include "coordinator/cluster/job_life.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

namespace commensal::cluster::job_life_test {
namespace {

using ::testing::HasSubstr;
using enum JobState;

constexpr WallTime kBegin{std::chrono::milliseconds{1'000}};
constexpr WallTime kLater{std::chrono::milliseconds{2'000}};

const std::vector<JobState> kStates{kSubmitted, kQueued,   kReserved, kStarting,  kRunning, kParked,
                                    kUpgrading, kFinished, kFailed,   kCancelled, kLost};
const std::vector<EventKind> kKinds{
    EventKind::kAccept,     EventKind::kReserve,   EventKind::kUnreserve, EventKind::kStart,
    EventKind::kBegan,      EventKind::kUpgrade,   EventKind::kUpgraded,  EventKind::kUpgradeFailed,
    EventKind::kUnheld,     EventKind::kHeld,      EventKind::kLower,     EventKind::kLowered,
    EventKind::kExited,     EventKind::kTakenBack, EventKind::kVanished,  EventKind::kEndByRule,
    EventKind::kParkByRule, EventKind::kResume,    EventKind::kRetry,     EventKind::kCancel};

JobRecord job_in(JobState state) {
  JobRecord job;
  job.id = JobId{"7"};
  job.state = state;
  job.reason = "as the test has it";
  job.attempt = waits(state) ? 1 : 2;
  job.submitted = job.changed = kBegin;
  if (is_placed(state) || state == kReserved) job.placement = {{"n1", 0}};
  return job;
}

JobEvent event_for(const JobRecord& job, EventKind kind) {
  JobEvent event{.kind = kind, .attempt = job.attempt, .reason = "because"};
  if (kind == EventKind::kStart) {
    event.attempt = job.attempt + 1;
    event.placement = {{"n2", 1}};
  }
  if (kind == EventKind::kReserve) event.placement = {{"n2", 0}, {"n2", 1}};
  if (kind == EventKind::kExited) event.exit_code = 0;
  return event;
}

JobState after(JobState before, EventKind kind) {
  const JobRecord job = job_in(before);
  return apply(job, event_for(job, kind), kLater).after.state;
}

struct Edge {
  JobState from;
  EventKind kind;
  JobState to;
};

TEST(JobLifeTest, LeadsFromSubmissionToItsEnd) {
  const std::vector<Edge> edges{{kSubmitted, EventKind::kAccept, kQueued},
                                {kQueued, EventKind::kReserve, kReserved},
                                {kReserved, EventKind::kReserve, kReserved},
                                {kReserved, EventKind::kUnreserve, kQueued},
                                {kQueued, EventKind::kStart, kStarting},
                                {kReserved, EventKind::kStart, kStarting},
                                {kStarting, EventKind::kBegan, kRunning},
                                {kParked, EventKind::kResume, kQueued},
                                {kRunning, EventKind::kUpgrade, kUpgrading},
                                {kUpgrading, EventKind::kUpgraded, kRunning},
                                {kUpgrading, EventKind::kUpgradeFailed, kRunning},
                                {kFailed, EventKind::kRetry, kQueued},
                                {kLost, EventKind::kRetry, kQueued}};
  for (const Edge& edge : edges) {
    EXPECT_EQ(after(edge.from, edge.kind), edge.to)
        << to_string(edge.from) << " and " << to_string(edge.kind);
  }
}

TEST(JobLifeTest, EveryPlacedStateCanEnd) {
  for (const JobState state : {kStarting, kRunning, kUpgrading}) {
    EXPECT_EQ(after(state, EventKind::kExited), kFinished) << to_string(state);
    EXPECT_EQ(after(state, EventKind::kTakenBack), kQueued) << to_string(state);
    EXPECT_EQ(after(state, EventKind::kVanished), kLost) << to_string(state);
  }
}

TEST(JobLifeTest, AnExitThatIsNotZeroIsAFailure) {
  const JobRecord job = job_in(kRunning);
  JobEvent event = event_for(job, EventKind::kExited);
  event.exit_code = 137;
  const Step step = apply(job, event, kLater);
  EXPECT_EQ(step.after.state, kFailed);
  EXPECT_EQ(step.after.exit_code, 137);
  EXPECT_EQ(step.after.reason, "because");
  EXPECT_EQ(step.after.changed, kLater);
  EXPECT_EQ(step.after.submitted, kBegin);
}

TEST(JobLifeTest, WhatNoEdgeNamesIsRefusedWithBothNames) {
  const JobRecord job = job_in(kQueued);
  const Step step = apply(job, event_for(job, EventKind::kUpgraded), kLater);
  EXPECT_EQ(step.applied, Applied::kStale);  // the attempt of a job that waits is over
  const JobRecord starting = job_in(kStarting);
  const Step refused = apply(starting, event_for(starting, EventKind::kUpgrade), kLater);
  EXPECT_EQ(refused.applied, Applied::kRefused);
  EXPECT_THAT(refused.reason, HasSubstr("upgrade"));
  EXPECT_THAT(refused.reason, HasSubstr("starting"));
  EXPECT_EQ(refused.after, starting);
}

TEST(JobLifeTest, AStartBeginsTheNextAttemptWithItsPlace) {
  JobRecord job = job_in(kQueued);
  job.exit_code = 1;
  JobEvent event = event_for(job, EventKind::kStart);
  event.job_class = JobClass::kGuaranteed;
  const Step step = apply(job, event, kLater);
  EXPECT_EQ(step.after.attempt, 2U);
  EXPECT_EQ(step.after.job_class, JobClass::kGuaranteed);
  EXPECT_EQ(step.after.placement, event.placement);
  EXPECT_FALSE(step.after.exit_code) << "that was the attempt before";
}

TEST(JobLifeTest, AStartOfAnyOtherAttemptChangesNothing) {
  const JobRecord job = job_in(kQueued);
  for (const std::uint32_t attempt : {0U, 1U, 3U}) {
    JobEvent event = event_for(job, EventKind::kStart);
    event.attempt = attempt;
    const Step step = apply(job, event, kLater);
    EXPECT_NE(step.applied, Applied::kChanged) << attempt;
    EXPECT_EQ(step.after, job) << attempt;
  }
}

TEST(JobLifeTest, WhatWasTakenBackHoldsNoDevices) {
  const JobRecord job = job_in(kRunning);
  EXPECT_TRUE(apply(job, event_for(job, EventKind::kTakenBack), kLater).after.placement.empty());
  const JobRecord reserved = job_in(kReserved);
  EXPECT_TRUE(
      apply(reserved, event_for(reserved, EventKind::kUnreserve), kLater).after.placement.empty());
}

TEST(JobLifeTest, AnUpgradeChangesTheClassOnlyOnceItIsDone) {
  const JobRecord job = job_in(kRunning);
  const JobRecord upgrading = apply(job, event_for(job, EventKind::kUpgrade), kLater).after;
  EXPECT_EQ(upgrading.job_class, JobClass::kOpportunistic);
  const auto done = [&](EventKind kind) {
    return apply(upgrading, event_for(upgrading, kind), kLater).after.job_class;
  };
  EXPECT_EQ(done(EventKind::kUpgraded), JobClass::kGuaranteed);
  EXPECT_EQ(done(EventKind::kUpgradeFailed), JobClass::kOpportunistic);
}

TEST(JobLifeTest, WhoIsGuaranteedIsNotUpgraded) {
  JobRecord job = job_in(kRunning);
  job.job_class = JobClass::kGuaranteed;
  EXPECT_EQ(apply(job, event_for(job, EventKind::kUpgrade), kLater).applied, Applied::kAlready);
}

TEST(JobLifeTest, CancellingWhatWaitsOrIsParkedEndsIt) {
  for (const JobState state : {kSubmitted, kQueued, kReserved, kParked}) {
    EXPECT_EQ(after(state, EventKind::kCancel), kCancelled) << to_string(state);
  }
}

TEST(JobLifeTest, CancellingWhatRunsMakesItsNextEndACancellation) {
  for (const JobState state : {kStarting, kRunning, kUpgrading}) {
    const JobRecord job = job_in(state);
    JobEvent event = event_for(job, EventKind::kCancel);
    event.reason = "cancelled by its user";
    const Step asked = apply(job, event, kLater);
    EXPECT_EQ(asked.applied, Applied::kChanged);
    EXPECT_EQ(asked.after.state, state) << "it runs until the engine has ended it";
    for (const EventKind end : {EventKind::kExited, EventKind::kTakenBack, EventKind::kVanished}) {
      const JobRecord ended = apply(asked.after, event_for(asked.after, end), kLater).after;
      EXPECT_EQ(ended.state, kCancelled) << to_string(state) << " and " << to_string(end);
      EXPECT_EQ(ended.reason, "cancelled by its user") << "not how the engine ended it";
    }
  }
}

TEST(JobLifeTest, AJobThatItsOwnRuleEndsHasFinishedHoweverItEnds) {
  for (const JobState state : {kStarting, kRunning, kUpgrading}) {
    const JobRecord job = job_in(state);
    JobEvent event = event_for(job, EventKind::kEndByRule);
    event.reason = "flat";
    const Step asked = apply(job, event, kLater);
    EXPECT_EQ(asked.after.state, state) << "it runs until the engine has ended it";
    for (const EventKind end : {EventKind::kExited, EventKind::kTakenBack, EventKind::kVanished}) {
      JobEvent ends = event_for(asked.after, end);
      if (end == EventKind::kExited) ends.exit_code = 143;
      const JobRecord after = apply(asked.after, ends, kLater).after;
      EXPECT_EQ(after.state, kFinished) << to_string(state) << " and " << to_string(end);
      EXPECT_EQ(after.reason, "flat");
      const Step cancelled = apply(asked.after, event_for(asked.after, EventKind::kCancel), kLater);
      EXPECT_EQ(apply(cancelled.after, ends, kLater).after.state, kCancelled)
          << "its user has the last word";
    }
  }
}

TEST(JobLifeTest, NoRuleEndsWhatIsBeingCancelledOrDoesNotRun) {
  JobRecord job = job_in(kRunning);
  job.cancel_asked = true;
  EXPECT_EQ(apply(job, event_for(job, EventKind::kEndByRule), kLater).applied, Applied::kAlready);
  for (const JobState state : {kQueued, kFinished, kFailed}) {
    EXPECT_EQ(after(state, EventKind::kEndByRule), state);
  }
}

/// A job that its own rule parks, for the reason "flat"; its engine has not ended it yet.
JobRecord to_be_parked(JobState state) {
  const JobRecord job = job_in(state);
  JobEvent event = event_for(job, EventKind::kParkByRule);
  event.reason = "flat";
  return apply(job, event, kLater).after;
}

TEST(JobLifeTest, AJobThatItsOwnRuleParksIsParkedOnceItHasStopped) {
  for (const JobState state : {kStarting, kRunning, kUpgrading}) {
    const JobRecord asked = to_be_parked(state);
    EXPECT_EQ(asked.state, state) << "it runs until the engine has ended it";
    EXPECT_TRUE(is_being_ended(asked));
    for (const EventKind end : {EventKind::kExited, EventKind::kTakenBack, EventKind::kVanished}) {
      JobEvent ends = event_for(asked, end);
      if (end == EventKind::kExited) ends.exit_code = 143;
      const JobRecord after = apply(asked, ends, kLater).after;
      EXPECT_EQ(after.state, kParked) << to_string(state) << " and " << to_string(end);
      EXPECT_EQ(after.reason, "flat");
      EXPECT_TRUE(after.placement.empty()) << "its devices are others'";
      EXPECT_FALSE(is_being_ended(after));
      const JobRecord cancelled = apply(asked, event_for(asked, EventKind::kCancel), kLater).after;
      EXPECT_EQ(apply(cancelled, ends, kLater).after.state, kCancelled)
          << "its user has the last word";
    }
  }
}

TEST(JobLifeTest, AJobThatEndsWellBeforeItIsParkedHasFinished) {
  const JobRecord asked = to_be_parked(kRunning);
  const JobRecord after = apply(asked, event_for(asked, EventKind::kExited), kLater).after;
  EXPECT_EQ(after.state, kFinished);
  EXPECT_EQ(after.reason, "because");
  EXPECT_FALSE(after.park_asked);
}

TEST(JobLifeTest, AResumedJobWaitsForItsNextAttempt) {
  JobRecord job = to_be_parked(kRunning);
  job = apply(job, event_for(job, EventKind::kTakenBack), kLater).after;
  const JobRecord resumed = apply(job, event_for(job, EventKind::kResume), kLater).after;
  EXPECT_EQ(resumed.state, kQueued);
  EXPECT_EQ(resumed.retries, 0U) << "nothing has failed";
  const JobRecord next = apply(resumed, event_for(resumed, EventKind::kStart), kLater).after;
  EXPECT_EQ(next.attempt, job.attempt + 1);
  EXPECT_FALSE(is_being_ended(next));
  const JobRecord ended = apply(next, event_for(next, EventKind::kTakenBack), kLater).after;
  EXPECT_EQ(ended.state, kQueued) << "the rule has not spoken in this attempt";
}

TEST(JobLifeTest, OnlyWhatIsParkedIsResumed) {
  for (const JobState state : kStates) {
    if (state == kParked || state == kQueued) continue;
    const JobRecord job = job_in(state);
    const Step step = apply(job, event_for(job, EventKind::kResume), kLater);
    EXPECT_EQ(step.applied, Applied::kRefused) << to_string(state);
    EXPECT_THAT(step.reason, HasSubstr(std::string{to_string(state)}));
  }
}

TEST(JobLifeTest, NoRuleParksWhatIsBeingEnded) {
  for (const auto asked : {&JobRecord::cancel_asked, &JobRecord::finish_asked}) {
    JobRecord job = job_in(kRunning);
    job.*asked = true;
    EXPECT_EQ(apply(job, event_for(job, EventKind::kParkByRule), kLater).applied,
              Applied::kAlready);
  }
}

JobRecord upgraded() {
  JobRecord job = job_in(kRunning);
  job.job_class = JobClass::kGuaranteed;
  return job;
}

TEST(JobLifeTest, AGuaranteedJobWhoseDevicesNobodyHoldsSaysSoUntilTheyAreHeldAgain) {
  const JobRecord job = upgraded();
  const Step lost = apply(job, event_for(job, EventKind::kUnheld), kLater);
  EXPECT_EQ(lost.applied, Applied::kChanged);
  EXPECT_EQ(lost.after.state, kRunning);
  EXPECT_EQ(lost.after.job_class, JobClass::kGuaranteed);
  EXPECT_TRUE(lost.after.unheld);
  EXPECT_EQ(lost.after.reason, "because");
  EXPECT_EQ(lost.after.changed, job.changed) << "it has run since then";
  JobEvent other = event_for(job, EventKind::kUnheld);
  other.reason = "for another reason";
  EXPECT_EQ(apply(lost.after, other, kLater).after.reason, "for another reason");
  const Step held = apply(lost.after, event_for(job, EventKind::kHeld), kLater);
  EXPECT_EQ(held.applied, Applied::kChanged);
  EXPECT_FALSE(held.after.unheld);
  EXPECT_EQ(apply(job, event_for(job, EventKind::kHeld), kLater).applied, Applied::kAlready)
      << "nothing was the matter";
}

TEST(JobLifeTest, AGuaranteedJobWhoseDevicesAreAnothersIsOpportunisticAndItsNodesAreToBeTold) {
  JobRecord job = upgraded();
  job.unheld = true;
  const JobRecord lower = apply(job, event_for(job, EventKind::kLower), kLater).after;
  EXPECT_EQ(lower.state, kRunning);
  EXPECT_EQ(lower.job_class, JobClass::kOpportunistic);
  EXPECT_TRUE(lower.lowering);
  EXPECT_FALSE(lower.unheld);
  EXPECT_EQ(lower.attempt, job.attempt);
  EXPECT_EQ(lower.placement, job.placement);
  const Step early = apply(lower, event_for(lower, EventKind::kUpgrade), kLater);
  EXPECT_EQ(early.applied, Applied::kRefused);
  EXPECT_THAT(early.reason, HasSubstr("told first"));
  const JobRecord told = apply(lower, event_for(lower, EventKind::kLowered), kLater).after;
  EXPECT_FALSE(told.lowering);
  EXPECT_EQ(apply(told, event_for(told, EventKind::kUpgrade), kLater).after.state, kUpgrading)
      << "as any other";
}

TEST(JobLifeTest, OfDevicesOnlyARunningGuaranteedJobIsTold) {
  for (const EventKind kind : {EventKind::kUnheld, EventKind::kHeld, EventKind::kLower}) {
    for (const JobState state : {kStarting, kRunning, kUpgrading}) {
      JobRecord job = job_in(state);
      EXPECT_EQ(apply(job, event_for(job, kind), kLater).applied, Applied::kAlready)
          << to_string(kind) << " for " << to_string(state);
      job.job_class = JobClass::kGuaranteed;
      job.cancel_asked = true;
      EXPECT_EQ(apply(job, event_for(job, kind), kLater).applied, Applied::kAlready)
          << to_string(kind) << " for one that is being ended";
    }
  }
}

TEST(JobLifeTest, WhatIsOverHasNothingToBeToldOfItsDevices) {
  for (const EventKind end : {EventKind::kExited, EventKind::kTakenBack, EventKind::kVanished}) {
    JobRecord job = upgraded();
    job.unheld = job.lowering = true;
    const JobRecord after = apply(job, event_for(job, end), kLater).after;
    EXPECT_FALSE(after.unheld) << to_string(end);
    EXPECT_FALSE(after.lowering) << to_string(end);
  }
}

TEST(JobLifeTest, WhatHasEndedCannotBeCancelled) {
  const JobRecord job = job_in(kFinished);
  const Step step = apply(job, event_for(job, EventKind::kCancel), kLater);
  EXPECT_EQ(step.applied, Applied::kRefused);
  EXPECT_THAT(step.reason, HasSubstr("finished"));
}

TEST(JobLifeTest, ARetryIsCounted) {
  const JobRecord job = job_in(kLost);
  const Step step = apply(job, event_for(job, EventKind::kRetry), kLater);
  EXPECT_EQ(step.after.retries, job.retries + 1);
  EXPECT_EQ(step.after.attempt, job.attempt) << "the next start begins the next attempt";
}

TEST(JobLifeTest, AnEventNeedsAReasonAndAnExitACode) {
  const JobRecord job = job_in(kRunning);
  JobEvent event = event_for(job, EventKind::kUpgrade);
  event.reason.clear();
  EXPECT_EQ(apply(job, event, kLater).applied, Applied::kRefused);
  event = event_for(job, EventKind::kExited);
  event.exit_code.reset();
  EXPECT_EQ(apply(job, event, kLater).applied, Applied::kRefused);
}

TEST(JobLifeTest, EventsOfAnOlderAttemptAreStale) {
  for (const EventKind kind : {EventKind::kBegan, EventKind::kExited, EventKind::kTakenBack,
                               EventKind::kVanished, EventKind::kUpgraded}) {
    for (const JobState state : kStates) {
      const JobRecord job = job_in(state);
      JobEvent event = event_for(job, kind);
      event.attempt = job.attempt - 1;
      const Step step = apply(job, event, kLater);
      EXPECT_EQ(step.applied, Applied::kStale) << to_string(kind) << " for " << to_string(state);
      EXPECT_EQ(step.after, job);
    }
  }
}

TEST(JobLifeTest, EventsOfAnAttemptThatHasNotBegunAreRefused) {
  const JobRecord job = job_in(kRunning);
  JobEvent event = event_for(job, EventKind::kExited);
  event.attempt = job.attempt + 1;
  EXPECT_EQ(apply(job, event, kLater).applied, Applied::kRefused);
}

TEST(JobLifeTest, EveryEventDoesNothingTheSecondTime) {
  for (const JobState state : kStates) {
    for (const EventKind kind : kKinds) {
      const JobRecord job = job_in(state);
      const JobEvent event = event_for(job, kind);
      const Step once = apply(job, event, kLater);
      const Step twice = apply(once.after, event, kLater);
      EXPECT_NE(twice.applied, Applied::kChanged) << to_string(kind) << " for " << to_string(state);
      EXPECT_EQ(twice.after, once.after) << to_string(kind) << " for " << to_string(state);
    }
  }
}

TEST(JobLifeTest, WhatChangesNothingSaysWhyAndLeavesTheRecord) {
  for (const JobState state : kStates) {
    for (const EventKind kind : kKinds) {
      const JobRecord job = job_in(state);
      const Step step = apply(job, event_for(job, kind), kLater);
      if (step.applied == Applied::kChanged) continue;
      EXPECT_EQ(step.after, job) << to_string(kind) << " for " << to_string(state);
      EXPECT_FALSE(step.reason.empty()) << to_string(kind) << " for " << to_string(state);
    }
  }
}

// Whatever comes, in whatever order: an end stays an end (but for a retry), attempts never go back,
// and only what is placed or reserved holds devices.
TEST(JobLifeTest, AnyOrderOfEventsKeepsTheRules) {
  std::mt19937 random{7};  // NOLINT(cert-msc51-cpp,cert-msc32-c): the same sequence each time
  const auto draw = [&](std::size_t size) { return random() % size; };
  for (int life = 0; life < 2'000; ++life) {
    JobRecord job = job_in(kSubmitted);
    job.attempt = 0;
    for (int i = 0; i < 60; ++i) {
      JobEvent event = event_for(job, kKinds[draw(kKinds.size())]);
      if (draw(4) == 0) event.attempt += static_cast<std::uint32_t>(draw(3)) - 1;
      const JobRecord before = job;
      job = apply(job, event, kLater).after;
      ASSERT_GE(job.attempt, before.attempt);
      ASSERT_LE(job.attempt, before.attempt + 1);
      if (is_end(before.state) && event.kind != EventKind::kRetry) {
        ASSERT_EQ(job, before);
      }
      if (!is_end(job.state) && !is_placed(job.state) && job.state != kReserved) {
        ASSERT_TRUE(job.placement.empty()) << to_string(job.state);
      }
      if (is_placed(job.state)) {
        ASSERT_FALSE(job.placement.empty());
      }
    }
  }
}

TEST(JobStateTest, NamesAreReadAsTheyAreWritten) {
  for (const JobState state : kStates) EXPECT_EQ(value_of<JobState>(to_string(state)), state);
  EXPECT_FALSE(value_of<JobState>("gone"));
}

}  // namespace
}  // namespace commensal::cluster::job_life_test
