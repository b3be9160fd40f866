// SPDX-License-Identifier: Apache-2.0
// Lists of placements: what is written is read, and nothing else is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/wire/heartbeat_parts.h"
#include "coordinator/wire/json_fields.h"

namespace commensal::wire::wire_placements_test {
namespace {

using namespace commensal::literals;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Placement full() {
  Placement placement;
  placement.id = "job-7.2";
  placement.job = "7";
  placement.attempt = 2;
  placement.name = "train";
  placement.tenant = "vision";
  placement.job_class = JobClass::kGuaranteed;
  placement.state = PlacementState::kRunning;
  placement.devices = {"GPU-1", "GPU-2"};
  placement.cpu_milli = 4000;
  placement.memory = {400_MiB, 800_MiB};
  placement.share = {0.25, 0.5};
  return placement;
}

Placement bare() {
  Placement placement;
  placement.id = "job-8.1";
  placement.job = "8";
  placement.attempt = 1;
  return placement;
}

json written(std::vector<Placement> placements) {
  for (Placement& placement : placements) cut_to_bounds(placement);
  return write_fields(placements);
}

std::vector<Placement> read_placements(const json& list) {
  PlacementList part;
  read_field({{"beat", 1}, {"run", "r"}, {"number", 1}, {"list", list}, {"left_out", 0}},
             "placements", part);
  return part.list.value();
}

std::string problem_with(const json& list) {
  try {
    (void)read_placements(list);
  } catch (const std::invalid_argument& problem) {
    return problem.what();
  }
  return "none";
}

/// A list of one that differs from a good one in a field.
json with(const std::string& field, json value) {
  json list = written({full()});
  list[0][field] = std::move(value);
  return list;
}

TEST(WirePlacementsTest, WhatIsWrittenIsRead) {
  std::vector<Placement> all{full(), bare()};
  all[1].memory = {1_MiB, std::nullopt};
  EXPECT_EQ(read_placements(written(all)), all);
  EXPECT_EQ(read_placements(json::parse(written(all).dump())), all) << "as text, too";
  EXPECT_TRUE(read_placements(json::array()).empty());
}

TEST(WirePlacementsTest, EachStateAndClassHasItsName) {
  for (const PlacementState state : {PlacementState::kReserved, PlacementState::kStarting,
                                     PlacementState::kRunning, PlacementState::kUpgrading}) {
    for (const JobClass job_class : {JobClass::kGuaranteed, JobClass::kOpportunistic}) {
      Placement placement = full();
      placement.state = state;
      placement.job_class = job_class;
      EXPECT_EQ(read_placements(written({placement})), std::vector{placement});
    }
  }
  EXPECT_EQ(to_string(PlacementState::kReserved), "reserved");
  EXPECT_EQ(to_string(PlacementState::kUpgrading), "upgrading");
}

TEST(WirePlacementsTest, AWrongFieldIsNamedWithItsValue) {
  EXPECT_THAT(problem_with(with("id", "")),
              HasSubstr("'placements.list[0].id' must be a text of 1 to 128 bytes: \"\""));
  EXPECT_THAT(problem_with(with("id", std::string(129, 'x'))), HasSubstr("xxx..."));
  EXPECT_THAT(problem_with(with("job", 7)), HasSubstr("list[0].job' must be a text: 7"));
  EXPECT_THAT(problem_with(with("attempt", -1)), HasSubstr("attempt' must be a whole number"));
  EXPECT_THAT(problem_with(with("attempt", std::uint64_t{1} << 33U)), HasSubstr("8589934592"));
  EXPECT_THAT(problem_with(with("name", nullptr)), HasSubstr("name' is missing"));
  EXPECT_THAT(problem_with(with("tenant", json::array())), HasSubstr("tenant' must be a text: []"));
  EXPECT_THAT(problem_with(with("class", "king")),
              HasSubstr("class' must be \"guaranteed\" or \"opportunistic\": \"king\""));
  EXPECT_THAT(problem_with(with("state", "asleep")), HasSubstr("\"upgrading\": \"asleep\""));
  EXPECT_THAT(problem_with(with("devices", "GPU-1")), HasSubstr("devices' must be a list"));
  EXPECT_THAT(problem_with(with("devices", std::vector<std::string>(33, "d"))),
              HasSubstr("devices' must be a list of at most 32: "));
  EXPECT_THAT(problem_with(with("devices", {"d", std::string(129, 'x')})),
              HasSubstr("devices[1]' must be a text of at most 128 bytes"));
  EXPECT_THAT(problem_with(with("devices", {1})), HasSubstr("devices[0]' must be a text: 1"));
  EXPECT_THAT(problem_with(with("cpu_milli", 0.5)), HasSubstr("cpu_milli' must be a whole number"));
  EXPECT_THAT(problem_with(with("cpu_milli", -1)), HasSubstr("cpu_milli' must be at least 0: -1"));
  EXPECT_THAT(problem_with(with("memory", 5)), HasSubstr("memory' must be an object: 5"));
  EXPECT_THAT(problem_with(with("memory", {{"min_bytes", 5}, {"max_bytes", 4}})),
              HasSubstr("memory.max_bytes' must be at least min_bytes: 4"));
  EXPECT_THAT(problem_with(with("share", {{"max", 0.5}})), HasSubstr("share.min' is missing"));
  EXPECT_THAT(problem_with(with("share", {{"min", 0.5}, {"max", 0.4}})),
              HasSubstr("share.max' must be at least min: 0.4"));
  EXPECT_THAT(problem_with(with("share", {{"min", 0.5}, {"max", 1.5}})),
              HasSubstr("share.max' must be from 0 to 1: 1.5"));
}

TEST(WirePlacementsTest, AWrongListIsRefused) {
  EXPECT_THAT(problem_with({{"a", 1}}), HasSubstr("'placements.list' must be a list: "));
  EXPECT_THAT(problem_with({3}), HasSubstr("'placements.list[0]' must be an object: 3"));
  EXPECT_THAT(problem_with(written({full(), full()})), HasSubstr("two placements have the id"));
  std::vector<Placement> many;
  for (std::size_t i = 0; i <= kMostPlacements; ++i) {
    many.push_back(bare());
    many.back().id += std::to_string(i);
  }
  EXPECT_THAT(problem_with(written(many)), HasSubstr("at most 128"));
  many.pop_back();
  EXPECT_THAT(read_placements(written(many)), SizeIs(kMostPlacements));
}

TEST(WirePlacementsTest, LongTextsAndListsOfDevicesAreCut) {
  Placement placement = full();
  placement.name = std::string(1000, 'n');
  placement.devices.assign(100, std::string(1000, 'd'));
  const std::vector<Placement> read = read_placements(written({placement}));
  EXPECT_EQ(read[0].name.size(), kLongestPlacedText);
  ASSERT_EQ(read[0].devices.size(), kMostPlacedDevices);
  EXPECT_EQ(read[0].devices[0].size(), kLongestPlacedText);
}

TEST(WirePlacementsTest, NoCharacterIsCutInTwo) {
  Placement placement = full();
  for (const std::string letter : {"\u00e4", "\u20ac", "\U0001F600"}) {
    placement.name.clear();
    while (placement.name.size() < 255 - letter.size()) placement.name += letter;
    for (const std::string& name : {placement.name, "x" + placement.name, "xy" + placement.name}) {
      placement.name = name;
      const std::string frame =
          written({placement}).dump(-1, ' ', false, json::error_handler_t::replace);
      const std::string read = read_placements(json::parse(frame))[0].name;
      EXPECT_EQ(read, name.substr(0, read.size()));
      EXPECT_GT(read.size() + letter.size(), kLongestPlacedText);
    }
  }
}

// Whatever a field is replaced by: it is read as something within the bounds, or refused.
TEST(WirePlacementsTest, DamagedListsNeverGetThrough) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random{kSeed};
  const std::vector<json> odd{nullptr,
                              -1,
                              1.5,
                              "x",
                              json::array(),
                              json::object(),
                              UINT64_MAX,
                              true,
                              std::string(200, 'y'),
                              json{{"min", 1e308}, {"max", -1}},
                              "reserved",
                              "guaranteed"};
  const json good = written({full()});
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    json list = good;
    auto at = list[0].begin();
    std::advance(at, random() % list[0].size());
    *at = odd[random() % odd.size()];
    try {
      for (const Placement& read : read_placements(list)) {
        EXPECT_FALSE(read.id.empty()) << "seed " << kSeed << ", round " << round;
        EXPECT_LE(read.id.size(), kLongestPlacedText);
        EXPECT_LE(read.share.value_or(ShareRange{}).min, 1.0);
      }
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace commensal::wire::wire_placements_test
