// SPDX-License-Identifier: Apache-2.0
// The statistics have every field that docs/stats.md promises, with its type.
#include "torch_ext/runtime/statistics.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "coordinator/node/node_coordinator.h"

namespace commensal::statistics_test {
namespace {

void expect_fields(const nlohmann::json& object, const std::vector<std::string>& names) {
  for (const std::string& name : names) EXPECT_TRUE(object.contains(name)) << name;
}

TEST(StatisticsTest, TellsOfEachTag) {
  StatisticsView view;
  TagResidency tag;
  tag.name = "weights";
  tag.options.keep = true;
  tag.saved = 4_MiB;
  tag.live = 3_MiB;
  view.tags = {tag};
  EXPECT_EQ(to_json(view).at("memory").at("tags"), nlohmann::json::parse(R"([{
    "name": "weights", "keep": true, "parked": false, "device_bytes": 0, "host_bytes": 0, "parked_bytes": 4194304,
    "dropped_bytes": 0, "live_bytes": 3145728}])"));
}

TEST(StatisticsTest, TellsOfTheFurtherDevicesOfAProcess) {
  StatisticsView view;
  EXPECT_EQ(to_json(view).at("memory").at("devices"), nlohmann::json::array());
  AllocatorStats memory;
  memory.limit = Bytes{UINT64_MAX};
  memory.device = 4_MiB;
  memory.live = 3_MiB;
  view.devices = {{"GPU-1", memory, 5_MiB}};
  memory.limit = 2_MiB;
  memory.deferred = 2_MiB;
  memory.deferred_reason = "waits";
  view.devices.push_back({"GPU-2", memory, 0_B});
  const nlohmann::json devices = to_json(view).at("memory").at("devices");
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].at("device"), "GPU-1");
  EXPECT_TRUE(devices[0].at("limit_bytes").is_null());
  EXPECT_EQ(devices[0].at("live_bytes"), 3U << 20U);
  EXPECT_EQ(devices[0].at("wanted_bytes"), 5U << 20U);
  EXPECT_EQ(devices[1].at("limit_bytes"), 2U << 20U);
  EXPECT_EQ(devices[1].at("deferred_reason"), "waits");
}

TEST(StatisticsTest, HasEveryFieldOfTheSchema) {
  const nlohmann::json stats = to_json(StatisticsView{});
  EXPECT_EQ(stats.at("schema"), 1);
  expect_fields(stats.at("job"), {"id", "name", "tenant", "class", "active", "role", "rank",
                                  "world_size", "pid", "coordinator", "coordinator_pid", "reason"});
  expect_fields(stats.at("memory"), {"policy",
                                     "limit_bytes",
                                     "min_bytes",
                                     "max_bytes",
                                     "device_bytes",
                                     "host_bytes",
                                     "host_touched_bytes",
                                     "parked_bytes",
                                     "dropped_bytes",
                                     "tags",
                                     "devices",
                                     "cached_bytes",
                                     "live_bytes",
                                     "peak_live_bytes",
                                     "peak_device_bytes",
                                     "moved_bytes_total",
                                     "moved_out_bytes_total",
                                     "moved_ahead_bytes_total",
                                     "moved_in_bytes_total",
                                     "given_back_bytes_total",
                                     "deferred_bytes",
                                     "deferred_reason",
                                     "held_back_bytes",
                                     "held_back_reason",
                                     "held_back_total",
                                     "held_by_children_bytes",
                                     "moves_total",
                                     "longest_pause_seconds",
                                     "pause_seconds_total",
                                     "safe_point_wait_seconds_total",
                                     "allocations_total",
                                     "frees_total",
                                     "out_of_memory_total",
                                     "revision",
                                     "notes"});
  expect_fields(
      stats.at("gate"),
      {"law", "share", "share_min", "state", "reason", "closed_seconds_total", "ops_gated_total",
       "ops_seen_total", "busy_seconds_total", "off_device_seconds_total", "in_flight_seconds",
       "in_flight_bound_seconds", "waiting_op_seconds", "idle_class"});
  expect_fields(stats.at("samples"),
                {"windows_total", "window_seconds_total", "ops_total", "ops_unclassified_total",
                 "compute_seconds_total", "memory_seconds_total", "on_core_seconds_total", "top"});
  expect_fields(stats.at("cores"),
                {"cpus", "own", "reason", "threads_left_alone", "elastic_threads", "threads"});
  expect_fields(stats.at("multiprocessors"), {"share", "asked", "granted", "total", "reason"});
  expect_fields(stats.at("step"),
                {"number", "last_seconds", "median_seconds", "confidence", "source"});
  expect_fields(stats.at("activity"),
                {"state", "waits_total", "wait_seconds_total", "wait_typical_seconds"});
}

/// What the coordinator shows of a job before its first report has the same fields.
TEST(StatisticsTest, ACoordinatorsNeutralValuesHaveTheSameFields) {
  node::Device device;
  device.capacity = 1_GiB;
  node::NodeCoordinator coordinator{{}, device, 1, 1, TimePoint{}};
  wire::Register hello;
  hello.job_id = "job-1";
  hello.role = "main";
  hello.pid = 7;
  coordinator.receive("peer", hello, TimePoint{});
  const nlohmann::json shown = coordinator.status("", TimePoint{}).at("jobs").at(0);
  const auto keys = [](const nlohmann::json& object) {
    std::set<std::string> names;
    for (const auto& [name, value] : object.items()) names.insert(name);
    return names;
  };
  const nlohmann::json reported = to_json(StatisticsView{});
  for (const auto& [section, fields] : reported.items()) {
    if (!fields.is_object()) continue;
    EXPECT_EQ(keys(shown.at(section)), keys(fields)) << section;
  }
}

TEST(StatisticsTest, WritesUnitsAsPromised) {
  StatisticsView view;
  view.memory.limit = 4_GiB;
  view.memory.moved_out = 3_MiB;
  view.memory.moved_in = 2_MiB;
  view.memory.longest_pause = std::chrono::milliseconds{12};
  view.step.median = std::chrono::milliseconds{250};
  view.step.source = StepSource::kHook;
  const nlohmann::json stats = to_json(view);
  EXPECT_EQ(stats["memory"]["limit_bytes"], 4ULL << 30U);
  EXPECT_EQ(stats["memory"]["moved_bytes_total"], 5ULL << 20U);
  EXPECT_DOUBLE_EQ(stats["memory"]["longest_pause_seconds"], 0.012);
  EXPECT_DOUBLE_EQ(stats["step"]["median_seconds"], 0.25);
  EXPECT_EQ(stats["step"]["source"], "hook");
}

TEST(StatisticsTest, TellsWhatWasSampled) {
  StatisticsView view;
  view.sample_windows = 3;
  view.sampled = std::chrono::milliseconds{150};
  view.samples.samples = 40;
  view.samples.compute = std::chrono::milliseconds{80};
  view.samples.top = {{"aten::mm", "compute", 12, std::chrono::milliseconds{80}}};
  const nlohmann::json samples = to_json(view).at("samples");
  EXPECT_EQ(samples["windows_total"], 3);
  EXPECT_DOUBLE_EQ(samples["window_seconds_total"], 0.15);
  EXPECT_DOUBLE_EQ(samples["compute_seconds_total"], 0.08);
  EXPECT_EQ(samples["top"], nlohmann::json::parse(R"([
    {"name": "aten::mm", "work": "compute", "samples": 12, "seconds": 0.08}])"));
}

TEST(StatisticsTest, ABoundThatIsNotThereIsNull) {
  StatisticsView view;
  EXPECT_TRUE(to_json(view)["gate"]["in_flight_bound_seconds"].is_null());
  view.gate.in_flight_bound = std::chrono::milliseconds{2};
  EXPECT_DOUBLE_EQ(to_json(view)["gate"]["in_flight_bound_seconds"], 0.002);
  EXPECT_TRUE(to_json(view)["gate"]["waiting_op_seconds"].is_null());
  view.gate.waiting_op = std::chrono::milliseconds{3};
  EXPECT_DOUBLE_EQ(to_json(view)["gate"]["waiting_op_seconds"], 0.003);
}

TEST(StatisticsTest, NoLimitIsNull) {
  StatisticsView view;
  view.memory.limit = Bytes{UINT64_MAX};
  const nlohmann::json stats = to_json(view);
  EXPECT_TRUE(stats["memory"]["limit_bytes"].is_null());
  EXPECT_TRUE(stats["memory"]["max_bytes"].is_null());
}

}  // namespace
}  // namespace commensal::statistics_test
