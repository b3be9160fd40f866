// SPDX-License-Identifier: Apache-2.0
// A cluster's accounting refuses what is not there, and changes nothing then.
#include "coordinator/policies/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "coordinator/policies/one_kind.h"

namespace commensal::policies::cluster_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest()
      : cluster_(
            {{.name = "a", .gpu_type = "v100", .gpus = 2, .cpu_milli = 4000, .memory_mib = 1024},
             {.name = "b", .gpu_type = "t4", .gpus = 1}}) {}

  /// Expects a refusal that names the values, and an unchanged cluster.
  void refuses(const std::function<void()>& call, const char* says) {
    const Cluster before = cluster_;
    EXPECT_THAT(call, ThrowsMessage<std::logic_error>(HasSubstr(says)));
    EXPECT_EQ(cluster_, before);
  }

  Cluster cluster_;
};

TEST_F(ClusterTest, CountsWholeGpusOfEachNode) {
  cluster_.take({.node = 0, .gpu = 1});
  EXPECT_EQ(cluster_.free_gpus(), 2);
  EXPECT_EQ(cluster_.free_gpus(0), 1);
  cluster_.give({.node = 0, .gpu = 1});
  EXPECT_EQ(cluster_.free_gpus(), 3);
}

TEST_F(ClusterTest, APartTakesAGpuOutOfTheWholeOnes) {
  cluster_.take({.node = 0, .gpu = 0, .milli = 300});
  cluster_.take({.node = 0, .gpu = 0, .milli = 700});
  EXPECT_EQ(cluster_.free_gpus(0), 1);
  EXPECT_EQ(cluster_.gpu(0, 0).free_milli, 0);
  cluster_.give({.node = 0, .gpu = 0, .milli = 300});
  EXPECT_EQ(cluster_.free_gpus(0), 1);
  cluster_.give({.node = 0, .gpu = 0, .milli = 700});
  EXPECT_EQ(cluster_.free_gpus(0), 2);
}

TEST_F(ClusterTest, RefusesMoreThanIsFree) {
  cluster_.take({.node = 0, .gpu = 0, .milli = 600});
  refuses([&] { cluster_.take({.node = 0, .gpu = 0, .milli = 500}); }, "500 > 400 milli");
  refuses([&] { cluster_.take_counted(3); }, "3 > 2");
  refuses([&] { cluster_.take_host(0, 4001, 0); }, "4001 > 4000 milli-CPU");
  refuses([&] { cluster_.take_host(0, 0, 1025); }, "1025 > 1024 MiB");
}

TEST_F(ClusterTest, RefusesBackWhatWasNotTaken) {
  refuses([&] { cluster_.give({.node = 1, .gpu = 0, .milli = 1}); }, "1 > 0 milli");
  refuses([&] { cluster_.give_counted(1); }, "1 > 0");
  refuses([&] { cluster_.give_beside({.node = 0, .gpu = 0}); }, "no opportunistic job");
}

TEST_F(ClusterTest, RefusesGpusThatDoNotExist) {
  refuses([&] { cluster_.take({.node = 0, .gpu = 2}); }, "no GPU 2 on node 0");
  refuses([&] { cluster_.take_beside({.node = 2, .gpu = 0}); }, "no GPU 0 on node 2");
}

TEST_F(ClusterTest, AReservationIsForOneJob) {
  cluster_.reserve(0, 0, 7);
  EXPECT_FALSE(cluster_.open(0, 0));
  refuses([&] { cluster_.reserve(0, 0, 8); }, "reserved for job 7");
  cluster_.unreserve(0, 0);
  EXPECT_TRUE(cluster_.open(0, 0));
}

TEST_F(ClusterTest, WhatANodeDoesNotStateIsNotCounted) {
  cluster_.take_host(1, 1'000'000, 1'000'000);
  cluster_.give_host(1, 1'000'000, 1'000'000);
}

TEST_F(ClusterTest, NumbersTypesInTheOrderOfTheirNodes) {
  EXPECT_THAT(cluster_.types(), ::testing::ElementsAre("v100", "t4"));
  EXPECT_EQ(cluster_.nodes()[1].type, 1U);
}

TEST_F(ClusterTest, KeepsTheSumsOfMinimaOfEachGpu) {
  const Cluster before = cluster_;
  cluster_.take_minima({.node = 0, .gpu = 1}, {.share_milli = 700, .memory_mib = 10});
  cluster_.take_minima({.node = 0, .gpu = 1}, {.share_milli = 700, .memory_mib = 0});
  EXPECT_EQ(cluster_.gpu(0, 1).minima, (Minima{.share_milli = 1400, .memory_mib = 10}));
  refuses([&] { cluster_.give_minima({.node = 0, .gpu = 1}, {.memory_mib = 11}); }, "11 > 10 MiB");
  refuses([&] { cluster_.give_minima({.node = 0, .gpu = 0}, {.share_milli = 1}); }, "1 > 0 milli");
  refuses([&] { cluster_.take_minima({.node = 0, .gpu = 2}, {}); }, "no GPU 2 on node 0");
  cluster_.give_minima({.node = 0, .gpu = 1}, {.share_milli = 1400, .memory_mib = 10});
  EXPECT_EQ(cluster_, before);
}

TEST(ClusterTypesTest, OneTypeWithDifferentMemoryIsSeveral) {
  const Cluster cluster({{.name = {}, .gpu_type = "a100", .gpus = 1, .gpu_memory_mib = 40},
                         {.name = {}, .gpu_type = "a100", .gpus = 1, .gpu_memory_mib = 80},
                         {.name = {}, .gpu_type = "a100", .gpus = 1, .gpu_memory_mib = 40},
                         {.name = {}, .gpu_type = "t4", .gpus = 1}});
  EXPECT_THAT(cluster.types(), ::testing::ElementsAre("a100", "a100", "t4"));
  EXPECT_EQ(cluster.nodes()[2].type, 0U);
  EXPECT_EQ(cluster.type_bits({"a100"}), 0b011U);
  EXPECT_EQ(cluster.types_with_memory(40), 0U) << "any will do";
  EXPECT_EQ(cluster.types_with_memory(41), 0b110U) << "of the last it is not known";
}

TEST(ClusterTypesTest, WhereNoTypeHasTheMemoryNoneWillDo) {
  const Cluster cluster({{.name = {}, .gpu_type = "a100", .gpus = 1, .gpu_memory_mib = 40}});
  EXPECT_EQ(cluster.types_with_memory(41), kNoGpuType);
}

TEST(ClusterTypesTest, RefusesMoreTypesThanAMaskHolds) {
  std::vector<NodeSpec> nodes;
  for (int i = 0; i < 32; ++i)
    nodes.push_back({.name = {}, .gpu_type = std::to_string(i), .gpus = 1});
  EXPECT_THROW(Cluster{nodes}, std::invalid_argument);
}

/// Two GPUs of one type, one of another, and the cores of two machines without one.
Cluster mixed_cluster() {
  const auto node = [](const char* type, int gpus) {
    return NodeSpec{.name = {}, .gpu_type = type, .gpus = gpus};
  };
  return Cluster({node("v100", 2), node("cpu", 1), node("t4", 1), node("cpu", 1)});
}
constexpr std::uint32_t kV100 = 0b001;
constexpr std::uint32_t kCores = 0b010;
constexpr std::uint32_t kT4 = 0b100;

TEST(OneKindTest, AGangHasGpusWhereThereAreEnough) {
  EXPECT_EQ(types_of_one_kind(mixed_cluster(), 2, 0), kV100 | kT4);
  EXPECT_EQ(types_of_one_kind(mixed_cluster(), 3, 0), kV100 | kT4);
}

TEST(OneKindTest, ItHasCoresWhereOnlyTheseAreEnough) {
  EXPECT_EQ(types_of_one_kind(mixed_cluster(), 2, kT4 | kCores), kCores);
}

TEST(OneKindTest, WhatNeitherHasEnoughOfIsNotMixed) {
  EXPECT_EQ(types_of_one_kind(mixed_cluster(), 4, 0), kV100 | kT4);
}

TEST(OneKindTest, OneDeviceMayBeOfAnyKind) {
  EXPECT_EQ(types_of_one_kind(mixed_cluster(), 1, 0), 0U);
  EXPECT_EQ(types_of_one_kind(mixed_cluster(), 1, kCores | kT4), kCores | kT4);
}

TEST(OneKindTest, WhereThereIsOneKindNothingIsNarrowed) {
  const Cluster gpus(
      {{.name = {}, .gpu_type = "v100", .gpus = 2}, {.name = {}, .gpu_type = "t4", .gpus = 2}});
  EXPECT_EQ(types_of_one_kind(gpus, 4, 0), 0U);
  const Cluster cores(
      {{.name = {}, .gpu_type = "cpu", .gpus = 1}, {.name = {}, .gpu_type = "cpu", .gpus = 1}});
  EXPECT_EQ(types_of_one_kind(cores, 2, 0), 0U);
  EXPECT_EQ(types_of_one_kind(mixed_cluster(), 4, kV100 | kT4), kV100 | kT4);
}

TEST(OneKindTest, WhoWouldFitOnBothTogetherAloneIsToldOf) {
  const DeviceKinds all = kinds_of(mixed_cluster());
  EXPECT_EQ(all, (DeviceKinds{.gpus = 3, .cores = 2}));
  EXPECT_EQ(lack_of_one_kind(4, all),
            "the job asks for 4 devices, all GPUs or none, and the cluster has 3 GPUs and 2 nodes' "
            "cores");
  EXPECT_NE(lack_of_one_kind(5, all), "");
  EXPECT_EQ(lack_of_one_kind(3, all), "");
  EXPECT_EQ(lack_of_one_kind(2, {.gpus = 1, .cores = 2}), "");
  EXPECT_EQ(lack_of_one_kind(6, all), "") << "more than there is of anything";
  EXPECT_EQ(lack_of_one_kind(0, all), "");
  EXPECT_EQ(lack_of_one_kind(1, {}), "");
}

}  // namespace
}  // namespace commensal::policies::cluster_test
