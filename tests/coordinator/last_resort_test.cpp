// SPDX-License-Identifier: Apache-2.0
// The order in which a guaranteed job's minimum is got together.
#include "coordinator/node/last_resort.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace commensal::node::last_resort_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

Debtor stuck(Duration owed_for = 0s) {
  return {.id = JobId{"o"},
          .name = "o",
          .owed = 500_MiB,
          .charged = 800_MiB,
          .owed_for = owed_for,
          .settled = true,
          .stopped = false,
          .ending = false,
          .reachable = true};
}

ResortConfig ending() {
  ResortConfig config;
  config.may_end = true;
  return config;
}

TEST(LastResort, NothingIsDoneWhereNothingLacks) {
  const ResortDecision decision = next_resort({0_MiB, 900_MiB, {stuck()}}, {});
  EXPECT_EQ(decision.resort, Resort::kNone);
  EXPECT_EQ(decision.reason, "");
}

TEST(LastResort, TheStepsComeInOneOrder) {
  // Each view lacks what served the one before.
  ResortView view{500_MiB, 200_MiB, {stuck(1h)}};
  EXPECT_EQ(next_resort(view, ending()).resort, Resort::kBeyondBudget);
  view.physical = 0_MiB;
  EXPECT_EQ(next_resort(view, ending()).resort, Resort::kStop);
  view.debtors[0].stopped = true;
  EXPECT_EQ(next_resort(view, ending()).resort, Resort::kEnd);
  view.debtors[0].stopped = false;
  view.debtors[0].ending = true;
  EXPECT_EQ(next_resort(view, ending()).resort, Resort::kEnd) << "it is not stopped again";
  EXPECT_EQ(next_resort(view, {}).resort, Resort::kNone)
      << "nobody is ended unless that is allowed";
}

TEST(LastResort, WhoGivesBackInTimeIsWaitedFor) {
  Debtor slow = stuck();
  slow.settled = false;
  ResortView view{500_MiB, 900_MiB, {slow}};
  const ResortDecision waits = next_resort(view, {});
  EXPECT_EQ(waits.resort, Resort::kWait);
  EXPECT_THAT(waits.reason, HasSubstr("'o' holds 800 MiB, 500 MiB above its limit"));
  view.debtors[0].owed_for = ResortConfig{}.deadline;
  EXPECT_EQ(next_resort(view, {}).resort, Resort::kBeyondBudget);
}

TEST(LastResort, AStoppedOrSettledJobIsNotWaitedFor) {
  for (const bool stopped : {false, true}) {
    Debtor debtor = stuck();
    debtor.settled = !stopped;
    debtor.stopped = stopped;
    const ResortDecision decision = next_resort({500_MiB, 900_MiB, {debtor}}, {});
    EXPECT_EQ(decision.resort, Resort::kBeyondBudget);
    EXPECT_THAT(decision.reason,
                AllOf(HasSubstr("900 MiB are physically free"), HasSubstr("other means")));
  }
}

TEST(LastResort, ItStopsAndEndsWhoOwesMostAndLongEnough) {
  Debtor small = stuck(25s);
  small.name = "small";
  small.owed = 10_MiB;
  Debtor young = stuck(5s);
  young.owed = 900_MiB;
  const ResortView view{500_MiB, 0_MiB, {small, stuck(25s), young}};
  const ResortDecision stops = next_resort(view, {});
  EXPECT_EQ(stops.resort, Resort::kStop);
  EXPECT_EQ(stops.debtor, 1U);
  EXPECT_THAT(stops.reason, HasSubstr("'o' is stopped after 20 s"));
}

TEST(LastResort, WhomNoSignalReachesIsLeftAlone) {
  Debtor far = stuck(1h);
  far.reachable = false;
  const ResortDecision decision = next_resort({500_MiB, 0_MiB, {far}}, ending());
  EXPECT_EQ(decision.resort, Resort::kNone);
  EXPECT_THAT(decision.reason, HasSubstr("no memory is physically free"));
}

/// Rules over random views: a later step is never taken while an earlier one would serve.
TEST(LastResort, NoStepIsTakenBeforeItsTurn) {
  std::mt19937 random{20260101};
  for (int i = 0; i < 20000; ++i) {
    ResortView view{Bytes{random() % 3}, Bytes{random() % 2}, {}};
    for (auto left = random() % 4; left > 0; --left) {
      view.debtors.push_back({.id = JobId{"d"},
                              .name = "d",
                              .owed = Bytes{random() % 9 + 1},
                              .charged = 10_MiB,
                              .owed_for = std::chrono::seconds{random() % 60},
                              .settled = random() % 2 == 0,
                              .stopped = random() % 2 == 0,
                              .ending = random() % 2 == 0,
                              .reachable = random() % 2 == 0});
    }
    ResortConfig config;
    config.may_end = random() % 2 == 0;
    const ResortDecision decision = next_resort(view, config);
    EXPECT_EQ(decision.reason.empty(), view.lacking.is_zero());
    EXPECT_TRUE(decision.resort <= Resort::kBeyondBudget || view.physical.is_zero());
    if (decision.resort == Resort::kEnd) {
      EXPECT_TRUE(config.may_end);
      EXPECT_TRUE(std::none_of(view.debtors.begin(), view.debtors.end(), [&](const Debtor& d) {
        return !d.stopped && !d.ending && d.reachable && d.owed_for >= config.stop_after;
      })) << "somebody can still be stopped";
    }
    if (decision.resort == Resort::kStop || decision.resort == Resort::kEnd) {
      ASSERT_TRUE(decision.debtor);
      EXPECT_TRUE(view.debtors[*decision.debtor].reachable);
    }
  }
}

}  // namespace
}  // namespace commensal::node::last_resort_test
