// SPDX-License-Identifier: Apache-2.0
// A clock that a test moves, and machines for it.
#pragma once

#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/engine.h"

namespace commensal::simulator {

class SimulatedTime final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return now_; }
  void pass(Duration time) { now_ += time; }
  void set(TimePoint time) { now_ = time; }

 private:
  TimePoint now_{std::chrono::hours{1}};
};

/// n0, n1, ..., each with so many devices.
inline std::vector<cluster::EngineNode> simulated_nodes(int count, int devices) {
  std::vector<cluster::EngineNode> nodes;
  for (int i = 0; i < count; ++i) {
    const std::string name = "n" + std::to_string(i);
    cluster::EngineNode node{name, {}, "fake", 64'000, 262'144, true, ""};
    for (int j = 0; j < devices; ++j) node.devices.push_back(name + "-gpu-" + std::to_string(j));
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace commensal::simulator
