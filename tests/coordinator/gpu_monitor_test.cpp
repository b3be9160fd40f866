// SPDX-License-Identifier: Apache-2.0
// The GPUs of a machine as the coordinator sees them: a made-up driver, and the simulated one.
#include "coordinator/node/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

namespace commensal::node::gpu_monitor_test {
namespace {

using namespace commensal::literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr const char* kPlain = "GPU-11111111-0000-0000-0000-000000000000";
constexpr const char* kDivided = "GPU-22222222-0000-0000-0000-000000000000";
constexpr const char* kFirst = "MIG-33333333-0000-0000-0000-000000000000";
constexpr const char* kSecond = "MIG-44444444-0000-0000-0000-000000000000";

class GpuMonitorTest : public ::testing::Test {
 protected:
  GpuMonitorTest() { says(""); }
  ~GpuMonitorTest() override { ::unsetenv("FAKE_NVML"); }
  static void says(const char* what) { ::setenv("FAKE_NVML", what, 1); }
  static std::vector<std::string> ids(const std::vector<GpuFacts>& gpus) {
    std::vector<std::string> all;
    for (const GpuFacts& gpu : gpus) all.push_back(gpu.id);
    return all;
  }
  std::unique_ptr<GpuMonitor> monitor_ = nvml_monitor(COMMENSAL_FAKE_NVML);
};

TEST_F(GpuMonitorTest, AMigInstanceIsADeviceAndItsGpuIsNone) {
  const auto gpus = monitor_->all();
  EXPECT_THAT(ids(gpus), ElementsAre(kPlain, kFirst, kSecond));
  EXPECT_EQ(gpus[0], (GpuFacts{kPlain, "Fake H100", 79500_MiB, false, ""}));
  EXPECT_EQ(gpus[2], (GpuFacts{kSecond, "Fake H100 MIG 3g.40gb", 40000_MiB, true, kDivided}));
  EXPECT_EQ(monitor_->problem(), "");
}

TEST_F(GpuMonitorTest, WithoutMigTheGpuItselfIsShown) {
  says("no-mig");
  EXPECT_THAT(ids(monitor_->all()), ElementsAre(kPlain, kDivided));
}

TEST_F(GpuMonitorTest, UseIsByProcessAndWhoDoesNotTellIsLeftOut) {
  const auto use = monitor_->use(kPlain);
  ASSERT_TRUE(use);
  EXPECT_EQ(use->free, 60000_MiB);
  EXPECT_THAT(use->processes, ElementsAre(Pair(100, 25_MiB))) << "the larger of two lists";
}

TEST_F(GpuMonitorTest, HowBusyItIsIsToldOfAWholeGpuOnly) {
  EXPECT_EQ(monitor_->use(kPlain)->busy, std::optional(0.37));
  EXPECT_FALSE(monitor_->use(kFirst)->busy);
  says("overfull");
  EXPECT_EQ(monitor_->use(kPlain)->busy, std::optional(1.0));
}

TEST_F(GpuMonitorTest, ManyProcessesAreAllSeen) {
  says("crowd");
  const auto use = monitor_->use(kPlain);
  ASSERT_TRUE(use);
  EXPECT_EQ(use->processes.size(), 39U);
  EXPECT_EQ(use->processes.at(139), 49_MiB);
}

TEST_F(GpuMonitorTest, ADriverThatListsNoProcessesStillTellsWhatIsFree) {
  says("no-mig");
  const auto use = monitor_->use(kDivided);
  ASSERT_TRUE(use);
  EXPECT_EQ(use->free, 70000_MiB);
  EXPECT_THAT(use->processes, IsEmpty());
}

TEST_F(GpuMonitorTest, SaysWhyThereAreNone) {
  EXPECT_THAT(nvml_monitor("libno-such-nvml.so.9")->all(), IsEmpty());
  const auto nothing = nvml_monitor("libno-such-nvml.so.9");
  EXPECT_FALSE(nothing->use(kPlain));
  EXPECT_EQ(nothing->problem(), "cannot load libno-such-nvml.so.9");
  says("no-driver");
  EXPECT_THAT(monitor_->all(), IsEmpty());
  EXPECT_EQ(monitor_->problem(), "nvmlInit: Driver Not Loaded (9)");
  says("no-gpu");
  EXPECT_THAT(monitor_->all(), IsEmpty()) << "the driver is there now";
  EXPECT_EQ(monitor_->problem(), "NVML shows no GPU");
}

TEST_F(GpuMonitorTest, AGpuThatIsLostIsNamedAndMayComeBack) {
  EXPECT_FALSE(monitor_->use("GPU-5"));
  EXPECT_EQ(monitor_->problem(), "NVML shows no GPU GPU-5");
  EXPECT_TRUE(monitor_->use(kPlain));
  says("lost");
  EXPECT_FALSE(monitor_->use(kPlain));
  EXPECT_EQ(monitor_->problem(), "nvmlDeviceGetMemoryInfo: GPU is lost (15)");
  says("");
  EXPECT_TRUE(monitor_->use(kPlain));
}

TEST_F(GpuMonitorTest, AnIdFromTheDriverMeansTheGpuOrTheInstance) {
  const auto gpus = monitor_->all();
  EXPECT_EQ(find_gpu(gpus, kPlain)->id, kPlain);
  EXPECT_EQ(find_gpu(gpus, kFirst)->id, kFirst);
  EXPECT_EQ(find_gpu(gpus, "GPU-33333333-0000-0000-0000-000000000000")->id, kFirst)
      << "the driver does not say which of both it is";
  EXPECT_FALSE(find_gpu(gpus, kDivided)) << "nobody can use it but by its instances";
  EXPECT_FALSE(find_gpu(gpus, ""));
}

TEST_F(GpuMonitorTest, ADeviceIsAPartOfTheGpuOrBytes) {
  const GpuFacts facts{kSecond, "Fake H100 MIG 3g.40gb", 40000_MiB, true, kDivided};
  const Device half = make_gpu_device(facts, MemoryBudget{std::nullopt, 0.5});
  EXPECT_EQ(half.id, kSecond);
  EXPECT_EQ(half.kind, DeviceKind::kGpu);
  EXPECT_EQ(half.capacity, 20000_MiB);
  EXPECT_EQ(half.name, "Fake H100 MIG 3g.40gb");
  EXPECT_THAT(half.reason, HasSubstr(kDivided));
  const Device given = make_gpu_device(facts, MemoryBudget{1000_MiB, 0.0});
  EXPECT_EQ(given.capacity, 1000_MiB);
  EXPECT_THAT(given.reason, StartsWith("memory as configured"));
  const Device much = make_gpu_device(facts, MemoryBudget{90000_MiB, 0.0});
  EXPECT_EQ(much.capacity, 40000_MiB);
  EXPECT_THAT(much.reason, HasSubstr("more was configured than it has"));
}

#ifdef COMMENSAL_SIMULATED_NVML
TEST(SimulatedGpuMonitor, ShowsTheSimulatedDevices) {
  const auto monitor = nvml_monitor(COMMENSAL_SIMULATED_NVML);
  const auto gpus = monitor->all();
  ASSERT_FALSE(gpus.empty()) << monitor->problem();
  EXPECT_THAT(gpus[0].id, StartsWith("GPU-"));
  const auto use = monitor->use(gpus[0].id);
  ASSERT_TRUE(use);
  EXPECT_LE(use->free, gpus[0].total);
}
#endif

}  // namespace
}  // namespace commensal::node::gpu_monitor_test
