// SPDX-License-Identifier: Apache-2.0
// Builds the statistics object of a job: docs/stats.md is its description.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/multiprocessor_dial.h"
#include "torch_ext/runtime/op_samples.h"
#include "torch_ext/runtime/step_tracker.h"

namespace commensal {

inline constexpr int kStatsSchema = 1;

/// Everything that goes into the statistics, taken at one moment.
struct StatisticsView {
  struct Job {
    std::string id;
    std::string name;
    std::string tenant;
    std::string_view job_class;
    bool active = true;
    std::string_view role;
    int rank = 0;
    int world_size = 1;
    std::int64_t pid = 0;
    std::string coordinator;
    std::int64_t coordinator_pid = 0;
    std::string reason;
    std::uint64_t malformed_frames = 0;
  } job;
  AllocatorStats memory;
  std::string_view memory_policy;
  /// Memory of another GPU of the process than the first.
  struct Device {
    std::string id;
    AllocatorStats memory;
    Bytes wanted;
  };
  std::vector<Device> devices;
  std::vector<TagResidency> tags;
  std::vector<KeptMemory> kept;
  Bytes memory_min;
  std::optional<Bytes> memory_max;
  Bytes wanted;
  Revision revision = 0;
  std::vector<std::string> notes;
  GateStats gate;
  bool idle_class = false;
  std::string idle_class_reason;
  /// CPUs by the kernel's lists.
  struct Cores {
    std::string cpus;  ///< that its threads keep to
    std::string own;   ///< by its owner
    std::string reason;
    int left_alone = 0;
    bool elastic_threads = false;
    int threads = 0;  ///< set so at a step border; 0: never
  } cores;
  /// Of a GPU.
  struct Multiprocessors {
    std::optional<double> share;  ///< that was asked for
    std::optional<MultiprocessorState> state;
    std::string reason;
  } multiprocessors;
  StepState step;
  std::uint64_t sample_windows = 0;
  Duration sampled{};  ///< in windows that have ended
  OpSampleSums samples;
  struct Activity {
    std::string_view state;
    std::uint64_t waits = 0;
    Duration waited{};
    Duration typical{};
    std::string_view phase;  ///< of the present wait, or of the last
    std::vector<GapSummary> gaps;
  } activity;
};

[[nodiscard]] nlohmann::json to_json(const StatisticsView& view);

}  // namespace commensal
