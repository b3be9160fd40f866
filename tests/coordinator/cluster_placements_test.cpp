// SPDX-License-Identifier: Apache-2.0
// Lists of placements at a node: the newest stays, and what is old or damaged changes nothing.
#include "coordinator/node/cluster_placements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "coordinator/wire/json_fields.h"

namespace commensal::node::cluster_placements_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

wire::Placement placed(const std::string& job) {
  wire::Placement placement;
  placement.id = "job-" + job + ".1";
  placement.job = job;
  placement.attempt = 1;
  return placement;
}

class ClusterPlacementsTest : public ::testing::Test {
 protected:
  /// An answer to the next heartbeat.
  json answer(std::uint64_t number, const std::string& job, const std::string& run = "r1") {
    json part = unchanged(number, run);
    part["list"] = job.empty() ? json::array() : wire::write_fields(std::vector{placed(job)});
    part["left_out"] = 0U;
    return part;
  }
  json unchanged(std::uint64_t number, const std::string& run = "r1") {
    return {{"run", run}, {"beat", placements_.tell().at("beat")}, {"number", number}};
  }
  std::string problem_with(const json& part) {
    try {
      (void)placements_.take(part);
    } catch (const std::invalid_argument& problem) {
      return problem.what();
    }
    return "none";
  }
  [[nodiscard]] std::string here() const {
    return placements_.list().empty() ? "" : placements_.list().front().job;
  }

  ClusterPlacements placements_;
};

TEST_F(ClusterPlacementsTest, TakesAListAndTellsItsNumber) {
  const json nothing = placements_.tell();
  EXPECT_EQ(nothing["number"], 0);
  EXPECT_EQ(nothing["run"], "");
  EXPECT_TRUE(placements_.take(answer(4, "7")));
  EXPECT_EQ(here(), "7");
  const json told = placements_.tell();
  EXPECT_EQ(told["number"], 4);
  EXPECT_EQ(told["run"], "r1");
  EXPECT_GT(told["beat"], nothing["beat"]);
}

TEST_F(ClusterPlacementsTest, AnUnchangedListIsNoNewOne) {
  EXPECT_TRUE(placements_.take(answer(4, "7")));
  EXPECT_FALSE(placements_.take(unchanged(4)));
  EXPECT_FALSE(placements_.take(answer(4, "8"))) << "that number is known: it is told twice";
  EXPECT_EQ(here(), "7");
  EXPECT_TRUE(placements_.take(answer(5, "")));
  EXPECT_EQ(here(), "");
}

TEST_F(ClusterPlacementsTest, WithoutAnAnswerTheListStays) {
  EXPECT_TRUE(placements_.take(answer(4, "7")));
  for (int i = 0; i < 1000; ++i) {
    (void)placements_.tell();
    EXPECT_FALSE(placements_.take(nullptr));
  }
  EXPECT_EQ(here(), "7");
}

TEST_F(ClusterPlacementsTest, AnotherStartOfTheCoordinatorBeginsAnew) {
  EXPECT_TRUE(placements_.take(answer(9, "7")));
  EXPECT_TRUE(placements_.take(answer(1, "8", "r2")));
  EXPECT_EQ(here(), "8");
  EXPECT_EQ(placements_.tell()["run"], "r2");
  EXPECT_TRUE(placements_.take(answer(1, "7", "r3"))) << "the same number, and another run";
}

TEST_F(ClusterPlacementsTest, AnAnswerThatIsOldOrSentAgainIsRefused) {
  const json first = answer(4, "7");
  const json late = answer(5, "8");
  EXPECT_TRUE(placements_.take(late));
  EXPECT_THAT(problem_with(first), HasSubstr("it is old, or sent again"));
  EXPECT_THAT(problem_with(late), HasSubstr("it is old, or sent again"));
  json future = answer(6, "9");
  future["beat"] = future["beat"].get<std::uint64_t>() + 1;
  EXPECT_THAT(problem_with(future), HasSubstr("it is old, or sent again"));
  EXPECT_THAT(problem_with(answer(4, "7")), HasSubstr("list 4 of placements is older than 5"));
  EXPECT_EQ(here(), "8");
}

TEST_F(ClusterPlacementsTest, WhatIsNoListIsRefusedAndChangesNothing) {
  EXPECT_TRUE(placements_.take(answer(4, "7")));
  const auto with = [this](const char* field, json value) {
    json part = answer(5, "8");
    part[field] = std::move(value);
    return part;
  };
  json many = json::array();
  for (std::size_t i = 0; i <= wire::kMostPlacements; ++i) {
    many.push_back(wire::write_fields(placed(std::to_string(i))));
  }
  json damaged = wire::write_fields(std::vector{placed("8")});
  damaged[0]["class"] = "king";
  for (const json& bad : {json(3), json("x"), json::array(), json::object(), with("run", 7),
                          with("run", std::string(65, 'r')), with("beat", "x"), with("number", 0U),
                          with("number", -5), with("number", nullptr), with("list", 3),
                          with("list", nullptr), with("list", {3}), with("list", many),
                          with("list", damaged), with("left_out", nullptr), with("left_out", -1)}) {
    EXPECT_NE(problem_with(bad), "none") << bad.dump().substr(0, 200);
  }
  EXPECT_THAT(problem_with(unchanged(6)), HasSubstr("list 6 of placements is named and not there"));
  EXPECT_EQ(here(), "7");
  EXPECT_EQ(placements_.number(), 4U);
  const json good = answer(5, "8");
  EXPECT_NE(problem_with(with("list", damaged)), "none");
  EXPECT_TRUE(placements_.take(good)) << "an older heartbeat that has no answer yet still counts";
}

TEST_F(ClusterPlacementsTest, SaysHowManyDidNotFit) {
  json part = answer(1, "7");
  part["left_out"] = 3U;
  EXPECT_TRUE(placements_.take(part));
  EXPECT_EQ(placements_.left_out(), 3U);
}

}  // namespace
}  // namespace commensal::node::cluster_placements_test
