// SPDX-License-Identifier: Apache-2.0
// The last minutes: bounded, and differences that add up.
#include "coordinator/node/job_history.h"

#include <gtest/gtest.h>

namespace commensal::node::job_history_test {
namespace {

using namespace std::chrono_literals;

const TimePoint kStart{1h};

JobSample sample(Duration after, double closed = 0.0) {
  JobSample sample;
  sample.at = kStart + after;
  sample.closed_seconds = closed;
  return sample;
}

TEST(JobHistory, KeepsOneSampleASecondForTwentyMinutes) {
  JobHistory history;
  for (int i = 0; i < 5 * 60 * 60; ++i) history.note(sample(i * 200ms));
  EXPECT_NEAR(static_cast<double>(history.samples().size()), 1201, 2);
  EXPECT_GE(history.samples().front().at, history.samples().back().at - kKept);
}

TEST(JobHistory, TheLastSampleOfAJobIsTakenWheneverItEnds) {
  JobHistory history;
  history.note(sample(0s));
  history.note(sample(100ms, 1.0));
  EXPECT_EQ(history.samples().size(), 1U);
  history.finish(sample(100ms, 1.0));
  ASSERT_EQ(history.samples().size(), 2U);
  EXPECT_EQ(history.samples().back().closed_seconds, 1.0);
  history.finish(sample(50ms, 9.0));
  EXPECT_EQ(history.samples().size(), 2U) << "time does not go back";
}

TEST(JobHistory, FindsTheSampleOfATime) {
  JobHistory history;
  EXPECT_EQ(history.at(kStart), nullptr);
  for (int i = 0; i < 10; ++i) history.note(sample(i * 1s, i));
  EXPECT_EQ(history.at(kStart + 4500ms)->closed_seconds, 4.0);
  EXPECT_EQ(history.at(kStart + 1h)->closed_seconds, 9.0);
  EXPECT_EQ(history.at(kStart - 1h)->closed_seconds, 0.0) << "the oldest there is";
}

TEST(JobHistory, TellsWhatGrewByReason) {
  JobSample from = sample(0s);
  from.closed_by = {{"guaranteed job busy", 5.0}, {"resting", 2.0}};
  JobSample to = sample(10s);
  to.closed_by = {{"guaranteed job busy", 6.0}, {"resting", 2.0}, {"share is 0", 3.0}};
  const std::vector<std::pair<std::string, double>> expected{{"share is 0", 3.0},
                                                             {"guaranteed job busy", 1.0}};
  EXPECT_EQ(closed_between(from, to), expected);
  EXPECT_TRUE(closed_between(to, to).empty());
}

TEST(DecisionLog, ForgetsTheOldestByTimeAndByNumber) {
  DecisionLog log;
  log.note({kStart, JobId{"a"}, "share", "old"});
  log.note({kStart + kKept + 1s, JobId{"a"}, "share", "new"});
  ASSERT_EQ(log.all().size(), 1U);
  EXPECT_EQ(log.all()[0].text, "new");
  for (std::size_t i = 0; i < DecisionLog::kMost + 10; ++i) {
    log.note({kStart + kKept + 1s, JobId{"a"}, "share", std::to_string(i)});
  }
  EXPECT_EQ(log.all().size(), DecisionLog::kMost);
  EXPECT_EQ(log.all().front().text, "10");
}

TEST(OracleShare, IsWhatTimeSlicingCanGiveAway) {
  EXPECT_NEAR(oracle_share(0.3, 0.01), 0.703, 1e-3);
  EXPECT_NEAR(oracle_share(0.99, 0.01), 0.0198, 1e-3);
  EXPECT_EQ(oracle_share(1.0, 0.0), 0.0);
  EXPECT_EQ(oracle_share(1.5, 0.0), 0.0);
  EXPECT_EQ(oracle_share(0.0, -0.5), 1.0);
}

}  // namespace
}  // namespace commensal::node::job_history_test
