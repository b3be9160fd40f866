// SPDX-License-Identifier: Apache-2.0
// Jobs as JSON: what is written is read back, and everything else is refused by name and value.
#include "coordinator/cluster/job_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace commensal::cluster::job_json_test {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

JobSpec full_spec() {
  JobSpec spec;
  spec.name = "résumé";
  spec.tenant = "vision";
  spec.asked = policies::AskedClass::kGuaranteed;
  spec.gpus = 4;
  spec.cpu_milli = 8500;
  spec.host_memory_mib = 64'000;
  spec.terms.memory = MemoryRange{4_GiB, 8_GiB};
  spec.terms.share = ShareRange{0.25, 0.5};
  spec.time_limit = 2h;
  spec.end_when_flat = FlatRule{30min, 0.005};
  spec.pre_run = 90s;
  spec.environment = {{"EMPTY", ""}, {"LANG", "de_DE.UTF-8"}, {"quote\"", "a\nb"}};
  spec.after = JobId{"17"};
  spec.command = {"python", "train.py", "", "--text=\"ü\""};
  spec.directory = "/home/ann/work";
  return spec;
}

JobRecord full_record() {
  JobRecord record;
  record.id = JobId{"42"};
  record.spec = full_spec();
  record.state = JobState::kUpgrading;
  record.reason = "quota is free";
  record.attempt = 3;
  record.retries = 2;
  record.job_class = JobClass::kGuaranteed;
  record.placement = {{"node-a", 0}, {"node-a", 1}, {"node-b", 7}};
  record.cancel_asked = true;
  record.finish_asked = true;
  record.park_asked = true;
  record.unheld = true;
  record.lowering = true;
  record.exit_code = 137;
  record.submitted = WallTime{1'790'000'000'123ms};
  record.changed = WallTime{1'790'000'000'456ms};
  return record;
}

/// The message of the refusal; empty if there is none.
template <typename Call>
std::string refusal(Call call) {
  try {
    (void)call();
    return "";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

std::string spec_refusal(const std::string& field, const json& value) {
  json spec = to_json(full_spec());
  spec[json::json_pointer("/" + field)] = value;
  return refusal([&] { return spec_from_json(spec); });
}

std::string record_refusal(const std::string& field, const json& value) {
  json record = to_json(full_record());
  record[json::json_pointer("/" + field)] = value;
  return refusal([&] { return record_from_json(record); });
}

TEST(JobJson, NamesUnitsInItsFields) {
  const json expected = json::parse(R"({
    "name": "résumé", "tenant": "vision", "class": "guaranteed", "gpus": 4, "cpu_milli": 8500,
    "host_memory_mib": 64000, "memory": {"min_bytes": 4294967296, "max_bytes": 8589934592},
    "share": {"min": 0.25, "max": 0.5}, "time_limit_ms": 7200000,
    "end_when_flat": {"window_ms": 1800000, "change": 0.005}, "pre_run_ms": 90000,
    "environment": {"EMPTY": "", "LANG": "de_DE.UTF-8", "quote\"": "a\nb"}, "after": "17",
    "command": ["python", "train.py", "", "--text=\"ü\""], "directory": "/home/ann/work"})");
  EXPECT_EQ(to_json(full_spec()), expected);
}

TEST(JobJson, ARecordHoldsItsSpecAndItsTimes) {
  const json expected = json::parse(R"({
    "id": "42", "state": "upgrading", "reason": "quota is free", "attempt": 3, "retries": 2,
    "class": "guaranteed", "placement": [{"node": "node-a", "device": 0},
    {"node": "node-a", "device": 1}, {"node": "node-b", "device": 7}], "cancel_asked": true, "finish_asked": true, "park_asked": true,
    "unheld": true, "lowering": true,
    "exit_code": 137, "submitted_ms": 1790000000123, "changed_ms": 1790000000456})");
  json found = to_json(full_record());
  EXPECT_EQ(found["spec"], to_json(full_spec()));
  found.erase("spec");
  EXPECT_EQ(found, expected);
}

TEST(JobJson, ReadsWhatItWrote) {
  EXPECT_EQ(spec_from_json(json::parse(to_json(full_spec()).dump())), full_spec());
  EXPECT_EQ(record_from_json(json::parse(to_json(full_record()).dump())), full_record());
  EXPECT_EQ(spec_from_json(to_json(JobSpec{})), JobSpec{});
}

TEST(JobJson, ReadsWhatItWroteForRandomJobs) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random{seed};
    const auto below = [&](unsigned limit) { return static_cast<std::int32_t>(random() % limit); };
    JobRecord record = full_record();
    record.state = static_cast<JobState>(below(11));
    record.job_class = static_cast<JobClass>(below(2));
    record.attempt = static_cast<std::uint32_t>(random());
    record.exit_code = below(2) == 0 ? std::nullopt : std::optional{below(512) - 255};
    record.changed = WallTime{std::chrono::milliseconds{below(2'000'000'000)} - 1'000'000'000ms};
    record.placement.resize(static_cast<std::size_t>(below(4)));
    record.spec.asked = static_cast<policies::AskedClass>(below(3));
    if (below(2) == 0) record.spec.terms.memory.reset();
    if (below(2) == 0) record.spec.terms.share = ShareRange{below(1000) / 1000.0, 1.0};
    if (below(2) == 0) record.spec.time_limit = std::chrono::seconds{below(1'000'000)};
    if (below(2) == 0) record.spec.after.reset();
    if (below(2) == 0)
      record.spec.terms.memory = MemoryRange{Bytes{~std::uint64_t{0}}, std::nullopt};
    record.spec.command.assign(static_cast<std::size_t>(below(5)), std::string(1, '\0') + "x");
    EXPECT_EQ(record_from_json(json::parse(to_json(record).dump())), record);
  }
}

TEST(JobJson, OptionalFieldsMayBeAbsentOrNull) {
  json spec = to_json(full_spec());
  JobSpec expected = full_spec();
  spec["memory"] = nullptr;
  spec.erase("share");
  spec.erase("time_limit_ms");
  spec["after"] = nullptr;
  expected.terms.memory.reset();
  expected.terms.share.reset();
  expected.time_limit.reset();
  expected.after.reset();
  EXPECT_EQ(spec_from_json(spec), expected);
}

TEST(JobJson, EveryOtherFieldIsNeeded) {
  for (const char* field : {"name", "tenant", "class", "gpus", "cpu_milli", "host_memory_mib",
                            "environment", "command", "directory"}) {
    json spec = to_json(full_spec());
    spec.erase(field);
    EXPECT_EQ(refusal([&] { return spec_from_json(spec); }),
              std::string{"field '"} + field + "' is missing");
  }
  for (const char* field : {"id", "spec", "state", "reason", "attempt", "retries", "class",
                            "placement", "cancel_asked", "submitted_ms", "changed_ms"}) {
    json record = to_json(full_record());
    record.erase(field);
    EXPECT_EQ(refusal([&] { return record_from_json(record); }),
              std::string{"field '"} + field + "' is missing");
  }
}

TEST(JobJson, RefusesUnknownFieldsWhereverTheyAre) {
  EXPECT_EQ(spec_refusal("gpu", 1), "field 'gpu' is not known: 1");
  EXPECT_EQ(spec_refusal("memory/least_bytes", "x"),
            "field 'memory.least_bytes' is not known: \"x\"");
  EXPECT_EQ(record_refusal("spec/colour", nullptr), "field 'spec.colour' is not known: null");
  EXPECT_EQ(record_refusal("placement/1/gpu", 0), "field 'placement[1].gpu' is not known: 0");
}

TEST(JobJson, NamesFieldAndValueOfAWrongType) {
  EXPECT_EQ(spec_refusal("name", 7), "field 'name' must be a text: 7");
  EXPECT_EQ(spec_refusal("gpus", "4"),
            "field 'gpus' must be a whole number from -2147483648 to 2147483647: \"4\"");
  EXPECT_EQ(spec_refusal("gpus", 1.5),
            "field 'gpus' must be a whole number from -2147483648 to 2147483647: 1.5");
  EXPECT_EQ(spec_refusal("gpus", 4'000'000'000),
            "field 'gpus' must be a whole number from -2147483648 to 2147483647: 4000000000");
  EXPECT_EQ(spec_refusal("class", "best"),
            "field 'class' must be \"guaranteed\", \"opportunistic\" or \"auto\": \"best\"");
  EXPECT_EQ(spec_refusal("memory", 5), "field 'memory' must be an object: 5");
  EXPECT_EQ(spec_refusal("share/min", "half"), "field 'share.min' must be a number: \"half\"");
  EXPECT_EQ(spec_refusal("environment/LANG", 1), "field 'environment.LANG' must be a text: 1");
  EXPECT_EQ(spec_refusal("environment", json::array()),
            "field 'environment' must be an object: []");
  EXPECT_EQ(spec_refusal("command/1", false), "field 'command[1]' must be a text: false");
  EXPECT_EQ(spec_refusal("command", "python"), "field 'command' must be a list: \"python\"");
  EXPECT_EQ(spec_refusal("after", ""), "field 'after' must be an id: \"\"");
  EXPECT_EQ(
      record_refusal("state", "running?"),
      "field 'state' must be \"submitted\", \"queued\", \"reserved\", \"starting\", \"running\", "
      "\"parked\", \"upgrading\", \"finished\", \"failed\", \"cancelled\" or \"lost\": "
      "\"running?\"");
  EXPECT_EQ(record_refusal("class", "auto"),
            "field 'class' must be \"guaranteed\" or \"opportunistic\": \"auto\"");
  EXPECT_EQ(record_refusal("cancel_asked", 1), "field 'cancel_asked' must be true or false: 1");
  EXPECT_EQ(record_refusal("attempt", -1),
            "field 'attempt' must be a whole number from 0 to 4294967295: -1");
}

TEST(JobJson, NamesFieldAndValueOutOfRange) {
  EXPECT_EQ(spec_refusal("gpus", -1), "field 'gpus' must be at least 0: -1");
  EXPECT_EQ(spec_refusal("cpu_milli", -5), "field 'cpu_milli' must be at least 0: -5");
  EXPECT_EQ(spec_refusal("host_memory_mib", -5), "field 'host_memory_mib' must be at least 0: -5");
  EXPECT_EQ(spec_refusal("memory/max_bytes", 1),
            "field 'memory.max_bytes' must be at least min_bytes: 1");
  EXPECT_EQ(spec_refusal("share/min", -0.5), "field 'share.min' must be from 0 to 1: -0.5");
  EXPECT_EQ(spec_refusal("share/max", 1.5), "field 'share.max' must be from 0 to 1: 1.5");
  EXPECT_EQ(spec_refusal("share/max", 0.125), "field 'share.max' must be at least min: 0.125");
  EXPECT_EQ(spec_refusal("time_limit_ms", 1500),
            "field 'time_limit_ms' must be whole seconds in milliseconds: 1500");
  EXPECT_EQ(spec_refusal("time_limit_ms", -1000),
            "field 'time_limit_ms' must be whole seconds in milliseconds: -1000");
  EXPECT_EQ(record_refusal("placement/0/device", -2),
            "field 'placement[0].device' must be at least -1: -2");
}

TEST(JobJson, RefusesWhatIsNoObject) {
  EXPECT_EQ(refusal([] { return spec_from_json(json::array()); }),
            "what a job asks for must be an object: []");
  EXPECT_EQ(refusal([] { return record_from_json(nullptr); }), "a job must be an object: null");
  EXPECT_EQ(refusal([] { return placement_from_json(3); }), "field 'placement' must be a list: 3");
}

TEST(JobJson, RefusesTextsThatAreNotUtf8) {
  JobSpec spec = full_spec();
  spec.command[1] = "\xff";
  EXPECT_THAT(refusal([&] { return to_json(spec); }),
              ::testing::StartsWith("field 'command[1]' must be UTF-8"));
  spec = full_spec();
  spec.environment["A"] = "x\xc3";
  EXPECT_THAT(refusal([&] { return to_json(spec); }),
              ::testing::StartsWith("field 'environment.A' must be UTF-8"));
  JobRecord record = full_record();
  record.placement[2].node = "\x80";
  EXPECT_THAT(refusal([&] { return to_json(record); }),
              ::testing::StartsWith("field 'placement[2].node' must be UTF-8"));
}

TEST(JobJson, ARuleThatParksIsReadAsOneThatEnds) {
  JobSpec spec = full_spec();
  std::swap(spec.end_when_flat, spec.park_when_flat);
  EXPECT_EQ(spec_from_json(json::parse(to_json(spec).dump())), spec);
  EXPECT_EQ(flat_rule(spec), flat_rule(full_spec()));
  EXPECT_EQ(flat_rule(JobSpec{}), std::nullopt);
  EXPECT_EQ(spec_refusal("park_when_flat", {{"window_ms", 60'000}, {"change", 0.01}}),
            "field 'park_when_flat' must be absent where end_when_flat is given: 60000");
}

TEST(JobJson, CutsLongValuesInItsMessages) {
  EXPECT_LT(spec_refusal("gpus", std::string(100'000, 'x')).size(), 200U);
}

TEST(JobNames, EveryStateAndClassIsReadBack) {
  for (int i = 0; i <= static_cast<int>(JobState::kLost); ++i) {
    const auto state = static_cast<JobState>(i);
    EXPECT_NE(to_string(state), "unknown");
    EXPECT_EQ(value_of<JobState>(to_string(state)), state);
    const int kinds = int{is_end(state)} + int{is_placed(state)} + int{waits(state)};
    EXPECT_EQ(kinds, state == JobState::kParked ? 0 : 1) << to_string(state);
  }
  for (int i = 0; i <= static_cast<int>(policies::AskedClass::kAuto); ++i) {
    const auto asked = static_cast<policies::AskedClass>(i);
    EXPECT_EQ(value_of<policies::AskedClass>(to_string(asked)), asked);
  }
  EXPECT_FALSE(value_of<JobState>("Running"));
  EXPECT_FALSE(value_of<policies::AskedClass>(""));
}

TEST(JobNames, KnowWhichStatesEndAndWhichAreOnDevices) {
  std::vector<std::string_view> ended;
  std::vector<std::string_view> placed;
  for (int i = 0; i <= static_cast<int>(JobState::kLost); ++i) {
    const auto state = static_cast<JobState>(i);
    if (is_end(state)) ended.push_back(to_string(state));
    if (is_placed(state)) placed.push_back(to_string(state));
  }
  EXPECT_THAT(ended, ::testing::ElementsAre("finished", "failed", "cancelled", "lost"));
  EXPECT_THAT(placed, ::testing::ElementsAre("starting", "running", "upgrading"));
}

}  // namespace
}  // namespace commensal::cluster::job_json_test
