// SPDX-License-Identifier: Apache-2.0
// Which ranks are gated together, and what ends that.
#include "coordinator/node/gang_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace commensal::node::gang_keeper_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class GangKeeperTest : public ::testing::Test {
 protected:
  GangKeeperTest() {
    view_.now = TimePoint{1h};
    view_.world_size = 2;
    view_.ranks = {rank(100, 0), rank(101, 1)};
  }
  [[nodiscard]] GangRank rank(std::int64_t pid, int number) const {
    GangRank result;
    result.pid = pid;
    result.rank = number;
    result.seen = true;
    result.heartbeat = view_.now;
    result.begun = result.ended = 5;
    return result;
  }
  /// Passes time in looks of 20 ms. @return what was said last.
  std::string look(Duration time = 20ms) {
    std::string said;
    for (Duration passed{}; passed < time; passed += 20ms) {
      view_.now += 20ms;
      for (std::size_t i = 0; i < view_.ranks.size(); ++i) {
        if (i != silent_) view_.ranks[i].heartbeat = view_.now;
      }
      if (std::string line = keeper_.update(view_); !line.empty()) said = std::move(line);
    }
    return said;
  }
  /// Both ranks act on the epoch, and stand if they are told to.
  void act(std::uint64_t first, std::uint64_t second) {
    view_.ranks[0].begun = view_.ranks[0].ended = first;
    view_.ranks[1].begun = view_.ranks[1].ended = second;
    for (GangRank& rank : view_.ranks) {
      rank.epoch = keeper_.page_epoch();
      rank.stand = view_.closed ? rank.begun + 1 : 0;
    }
  }

  GangView view_;
  GangKeeper keeper_;
  std::size_t silent_ = 99;
};

TEST_F(GangKeeperTest, TwoRanksThatBeganCollectivesAreAGang) {
  EXPECT_EQ(look(), "2 ranks are gated together");
  EXPECT_EQ(keeper_.page_epoch(), 1U);
  EXPECT_EQ(look(1s), "") << "said once";
  EXPECT_EQ(keeper_.page_epoch(), 1U) << "nothing changed";
}

TEST_F(GangKeeperTest, OneProcessIsNone) {
  view_.ranks.pop_back();
  view_.world_size = 1;
  EXPECT_EQ(look(), "");
  EXPECT_FALSE(keeper_.several());
  EXPECT_EQ(keeper_.page_epoch(), 0U);
  EXPECT_TRUE(keeper_.status().is_null());
}

TEST_F(GangKeeperTest, ProcessesThatTrainEachForItselfAreNone) {
  view_.world_size = 1;
  EXPECT_EQ(look(), "");
  EXPECT_EQ(keeper_.reason(), "2 processes train, each for itself");
}

TEST_F(GangKeeperTest, ItIsSaidWhyThereIsNone) {
  view_.world_size = 4;
  look();
  EXPECT_EQ(keeper_.reason(), "2 of its 4 ranks are here");
  view_.world_size = 2;
  view_.ranks[1].seen = false;
  look();
  EXPECT_EQ(keeper_.reason(), "rank 1 shows no page here");
  view_.ranks[1].seen = true;
  view_.ranks[0].begun = view_.ranks[1].begun = 0;
  view_.ranks[0].ended = view_.ranks[1].ended = 0;
  look();
  EXPECT_EQ(keeper_.reason(), "no collective has begun yet");
  EXPECT_EQ(keeper_.page_epoch(), 0U);
  EXPECT_EQ(keeper_.status()["reason"], keeper_.reason());
  view_.ranks[0].begun = 1;  // the other one is waited for already
  EXPECT_EQ(look(), "2 ranks are gated together");
}

TEST_F(GangKeeperTest, EverySwitchHasANumberOfItsOwn) {
  look();
  view_.closed = true;
  look();
  EXPECT_EQ(keeper_.page_epoch(), 2U);
  view_.closed = false;
  look();
  EXPECT_EQ(keeper_.page_epoch(), 3U);
  EXPECT_EQ(keeper_.closes(), 1U);
}

TEST_F(GangKeeperTest, StandingBetweenTheSameTwoCollectivesIsTogether) {
  look();
  view_.closed = true;
  look();
  act(8, 8);
  look();
  EXPECT_EQ(keeper_.reason(), "closed together after collective 8");
  view_.closed = false;
  look();
  EXPECT_EQ(keeper_.closes_together(), 1U);
}

TEST_F(GangKeeperTest, StandingAtDifferentOnesIsNot) {
  look();
  view_.closed = true;
  look();
  act(8, 7);
  look();
  EXPECT_EQ(keeper_.reason(), "closes: rank 1 has begun 7 collectives, rank 0 8");
  act(8, 8);
  view_.ranks[1].epoch = 1;  // what it shows is of the time before
  look();
  EXPECT_EQ(keeper_.reason(), "closes");
  view_.closed = false;
  look();
  EXPECT_EQ(keeper_.closes(), 1U);
  EXPECT_EQ(keeper_.closes_together(), 0U);
}

TEST_F(GangKeeperTest, ARankThatLeavesFreesTheOthersAtOnce) {
  look();
  view_.ranks.pop_back();
  EXPECT_EQ(look(), "no gang any more: 1 of its 2 ranks are here");
  EXPECT_EQ(keeper_.page_epoch(), 0U);
}

TEST_F(GangKeeperTest, OfThreeTheOthersAreFreedToo) {
  view_.ranks.push_back(rank(102, 2));
  view_.world_size = 3;
  EXPECT_EQ(look(), "3 ranks are gated together");
  view_.ranks.erase(view_.ranks.begin());
  EXPECT_EQ(look(), "no gang any more: 2 of its 3 ranks are here");
}

TEST_F(GangKeeperTest, ASilentRankFreesTheOthersWithinItsLease) {
  look();
  silent_ = 1;
  look(GangKeeper::kSilence);
  EXPECT_NE(keeper_.page_epoch(), 0U);
  EXPECT_THAT(look(100ms),
              HasSubstr("no gang any more: rank 1 has shown no sign of life for 2.0 s"));
  EXPECT_EQ(keeper_.page_epoch(), 0U);
  silent_ = 99;  // it was stopped, and goes on
  EXPECT_EQ(look(), "2 ranks are gated together");
  EXPECT_EQ(keeper_.page_epoch(), 2U) << "an epoch of its own";
}

TEST_F(GangKeeperTest, AnotherProcessInARanksPlaceIsAnotherEpoch) {
  look();
  view_.ranks[1].pid = 300;
  look();
  EXPECT_EQ(keeper_.page_epoch(), 2U);
}

TEST_F(GangKeeperTest, RanksThatBeginDifferentCollectivesAreFreed) {
  look();
  std::string said;
  for (int i = 0; i < 100 && said.empty(); ++i) {
    ++view_.ranks[0].begun;
    ++view_.ranks[0].ended;
    view_.ranks[1].begun = view_.ranks[1].ended = view_.ranks[0].begun - 3;
    said = look();
  }
  EXPECT_THAT(said, HasSubstr("no gang any more: rank 1 has begun"));
  EXPECT_THAT(said, HasSubstr("their counts do not correspond"));
  look(5s);
  EXPECT_EQ(keeper_.page_epoch(), 0U);
  EXPECT_THAT(keeper_.reason(), HasSubstr("tried again in"));
  view_.ranks[1].begun = view_.ranks[1].ended = view_.ranks[0].begun;
  EXPECT_EQ(look(GangKeeper::kFirstRetry), "2 ranks are gated together");
}

TEST_F(GangKeeperTest, ARankThatIsSlowIsNotTakenForOneThatCountsOtherwise) {
  look();
  view_.ranks[0].begun = 9;  // waits in it
  EXPECT_EQ(look(10s), "") << "rank 1 is at 5, and stays there";
  // Seen in passing, between two reads of pages that are not of one moment.
  for (int i = 0; i < 500; ++i) {
    const std::uint64_t done = 10 + static_cast<std::uint64_t>(i);
    view_.ranks[0].begun = view_.ranks[0].ended = done;
    view_.ranks[1].begun = view_.ranks[1].ended = i % 5 == 0 ? done : done - 1;
    EXPECT_EQ(look(), "");
  }
}

TEST_F(GangKeeperTest, AStatusSaysHowItStands) {
  look();
  const nlohmann::json status = keeper_.status();
  EXPECT_EQ(status["gated"], true);
  EXPECT_EQ(status["epoch"], 1);
  EXPECT_EQ(status["ranks"], 2);
  EXPECT_EQ(status["closed"], false);
  EXPECT_EQ(status["reason"], "open together");
  EXPECT_EQ(status["collectives"][1]["begun"], 5);
  EXPECT_EQ(status["closes_total"], 0);
  EXPECT_EQ(status["closes_together_total"], 0);
}

}  // namespace
}  // namespace commensal::node::gang_keeper_test
