// SPDX-License-Identifier: Apache-2.0
// What the local engine says of this machine's devices.
#include "coordinator/cluster/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/gpu_monitor.h"

namespace commensal::cluster::local_cluster_test {
namespace {

using ::testing::ElementsAre;

class FakeGpus final : public node::GpuMonitor {
 public:
  explicit FakeGpus(std::vector<node::GpuFacts> gpus) : gpus_(std::move(gpus)) {}
  std::vector<node::GpuFacts> all() override { return gpus_; }
  std::optional<node::GpuUse> use(const std::string& /*id*/) override { return std::nullopt; }
  std::string problem() override { return gpus_.empty() ? "no driver" : ""; }

 private:
  std::vector<node::GpuFacts> gpus_;
};

node::GpuFacts gpu(const std::string& id, Bytes total) {
  return {.id = id, .name = "H100", .total = total, .mig = false, .parent = ""};
}

TEST(MachineNodeTest, OfEqualGpusTheMemoryIsSaid) {
  FakeGpus gpus({gpu("GPU-a", 80_GiB), gpu("GPU-b", 80_GiB)});
  const EngineNode node = machine_node(gpus, 0);
  EXPECT_THAT(node.devices, ElementsAre("GPU-a", "GPU-b"));
  EXPECT_EQ(node.device_type, "H100");
  EXPECT_EQ(node.device_memory, 80_GiB);
}

TEST(MachineNodeTest, OfDifferentGpusNoneIsSaid) {
  FakeGpus gpus({gpu("GPU-a", 80_GiB), gpu("GPU-b", 40_GiB), gpu("GPU-c", 80_GiB)});
  EXPECT_EQ(machine_node(gpus, 0).device_memory, Bytes{});
}

TEST(MachineNodeTest, OfCoresNoDeviceMemoryIsKnown) {
  FakeGpus none({});
  EXPECT_EQ(machine_node(none, 0).device_memory, Bytes{});
  FakeGpus one({gpu("GPU-a", 80_GiB)});
  const EngineNode cores = machine_node(one, 2);
  EXPECT_THAT(cores.devices, ElementsAre("host", "host"));
  EXPECT_EQ(cores.device_memory, Bytes{});
}

}  // namespace
}  // namespace commensal::cluster::local_cluster_test
