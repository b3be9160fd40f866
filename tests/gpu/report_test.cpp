// SPDX-License-Identifier: Apache-2.0
// What the probes write: JSON that reads back, and spreads that are right.
#include "tests/gpu/probes/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/gpu/probes/timeline.h"

namespace probes::report_test {
namespace {

using nlohmann::json;

TEST(ProbeReport, TextsComeBackAsTheyWere) {
  const std::string text = "a \"quote\", a \\ and\ta tab\nand \x01 and µs";
  EXPECT_EQ(json::parse(json_text(text)).get<std::string>(), text);
}

TEST(ProbeReport, NumbersComeBackAsTheyWere) {
  for (const double number : {0.0, -3.0, 0.125, 1.5e-9, 143771.0 * 1048576.0}) {
    EXPECT_DOUBLE_EQ(json::parse(json_number(number)).get<double>(), number);
  }
  EXPECT_TRUE(json::parse(json_number(std::nan(""))).is_null());
  EXPECT_TRUE(json::parse(json_number(std::numeric_limits<double>::infinity())).is_null());
}

TEST(ProbeReport, ObjectsKeepTheirOrder) {
  JsonObject object;
  EXPECT_TRUE(object.empty());
  object.text("second", "b");
  object.boolean("first", true);
  object.raw("inner", "{}");
  EXPECT_EQ(object.json(), R"({"second": "b", "first": true, "inner": {}})");
}

TEST(ProbeReport, QuantilesLieBetweenNeighbours) {
  const std::vector<double> sorted{1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(quantile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(sorted, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(sorted, 1), 4);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

TEST(ProbeReport, SpreadsAreSortedFirst) {
  const json spread_of = json::parse(spread("us", {9, 1, 5}).json());
  EXPECT_EQ(spread_of["unit"], "us");
  EXPECT_EQ(spread_of["n"], 3);
  EXPECT_EQ(spread_of["min"], 1);
  EXPECT_EQ(spread_of["median"], 5);
  EXPECT_EQ(spread_of["max"], 9);
  EXPECT_EQ(json::parse(spread("us", {}).json()), (json{{"unit", "us"}, {"n", 0}}));
}

TEST(ProbeReport, AMedianNeedsNoOrder) {
  EXPECT_DOUBLE_EQ(median_of({9, 1, 5}), 5);
  EXPECT_TRUE(std::isnan(median_of({})));
}

TEST(ProbeReport, OfWhatOverlapsTheLongestCounts) {
  const std::vector<Stretch> trips{{0, 2'000}, {3'000, 9'000}, {9'000, 10'000}, {20'000, 50'000}};
  EXPECT_EQ(longest_during({{1'000, 4'000}}, trips), std::vector<double>{6});
  EXPECT_EQ(longest_during({{8'000, 30'000}}, trips), std::vector<double>{30});
  EXPECT_EQ(longest_during({{2'000, 3'000}, {10'000, 20'000}}, trips), std::vector<double>{});
  EXPECT_EQ(lengths(trips), (std::vector<double>{2, 6, 1, 30}));
}

TEST(ProbeReport, AnswersHoldFiguresAndFacts) {
  Answer answer;
  answer.figure("drain", "us", {2.0});
  answer.fact("allowed", true);
  answer.fact("why", "no driver");
  answer.fact("bytes", 4096);
  EXPECT_EQ(json::parse(answer.figures().json())["drain"]["median"], 2);
  EXPECT_EQ(json::parse(answer.facts().json()),
            (json{{"allowed", true}, {"why", "no driver"}, {"bytes", 4096}}));
}

}  // namespace
}  // namespace probes::report_test
