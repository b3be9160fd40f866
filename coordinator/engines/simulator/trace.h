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

namespace commensal::simulator {

struct TraceJob {
  std::string name;
  std::string tenant;
  std::string model;
  double submit = 0;    ///< seconds
  double duration = 0;  ///< seconds alone, with what it asked for
  std::int32_t gpus = 1;
  policies::AskedClass asked = policies::AskedClass::kGuaranteed;
  std::int32_t priority = 0;
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
};

}  // namespace commensal::simulator
