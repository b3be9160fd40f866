// SPDX-License-Identifier: Apache-2.0
// Jobs of a trace, as they were recorded.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/engines/simulator/training_profile.h"
#include "coordinator/policies/cluster_view.h"
#include "coordinator/policies/throughput_table.h"

namespace commensal::simulator {

struct TraceJob {
  std::string name;
  std::string tenant;
  std::string model;
  std::string user;        ///< who submitted it; empty: the tenant
  std::string group;       ///< of jobs that do the same; empty: not known
  std::string title;       ///< as its user calls it; empty: the model
  std::string request;     ///< what was asked for, as a key; empty: its GPUs
  std::string entrypoint;  ///< script or command, as a key; empty: not known
  double submit = 0;       ///< seconds
  double duration = 0;     ///< seconds alone, with what it asked for
  std::int32_t gpus = 1;
  std::int32_t min_gpus = 0;  ///< of an elastic job; zero: as `gpus`
  std::int32_t max_gpus = 0;
  policies::AskedClass asked = policies::AskedClass::kGuaranteed;
  std::int32_t priority = 0;
  double weight = 1;
  std::int32_t gpu_milli = policies::kWholeGpu;
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;
  std::vector<std::string> gpu_types;  ///< that will do; empty: any
  double busy = -1;                    ///< of a GPU's time, alone, 0..1; negative: not recorded
  double gpu_memory_gib = 0;           ///< on each of its GPUs; zero: not recorded
  double iterations = 0;
  double iteration_seconds = 0;
  std::int32_t batch_size = 0;            ///< samples of a step, over all GPUs
  std::array<double, 3> stage_seconds{};  ///< of an iteration: data, device, network
};

struct Trace {
  std::string source;  ///< the file, for messages
  std::vector<TraceJob> jobs;
  std::uint64_t skipped_rows = 0;
  std::shared_ptr<const TrainingProfiles> profiles = nullptr;  ///< of its applications, if any
  std::shared_ptr<const policies::ThroughputTable> throughputs =
      nullptr;  ///< of its models, if any
};

}  // namespace commensal::simulator
