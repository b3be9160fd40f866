// SPDX-License-Identifier: Apache-2.0
// What is made of sampled ops.
#include "torch_ext/runtime/op_samples.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

namespace commensal::op_samples_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

OpSample compute(std::string_view name, Duration took) {
  return {.name = name, .work = "compute", .took = took, .ran = took};
}
OpSample memory(std::string_view name, Duration took) {
  return {.name = name, .work = "memory", .took = took, .ran = took / 2};
}

TEST(OpSamplesTest, SamplesStandForAllOpsOfTheirKind) {
  OpSamples samples;
  std::mt19937 dice(3);
  std::bernoulli_distribution sampled(kSampleProbability);
  Duration products{};
  Duration sums{};
  for (int i = 0; i < 200'000; ++i) {
    const Duration product = microseconds{50 + i % 100};
    products += product;
    sums += microseconds{20};
    if (sampled(dice)) samples.note(compute("aten::mm", product));
    if (sampled(dice)) samples.note(memory("aten::add", microseconds{20}));
  }
  const OpSampleSums told = samples.sums();
  EXPECT_NEAR(static_cast<double>(told.compute.count()), static_cast<double>(products.count()),
              0.1 * static_cast<double>(products.count()));
  EXPECT_NEAR(static_cast<double>(told.memory.count()), static_cast<double>(sums.count()),
              0.1 * static_cast<double>(sums.count()));
  EXPECT_LT(told.ran, told.compute + told.memory);
}

TEST(OpSamplesTest, TheLongestComeFirst) {
  OpSamples samples;
  for (int i = 0; i < 20; ++i) {
    samples.note(memory("aten::op" + std::to_string(i), microseconds{1 + i}));
  }
  samples.note(compute("aten::mm", microseconds{15}));
  samples.note(compute("aten::mm", microseconds{15}));
  const OpSampleSums told = samples.sums();
  ASSERT_EQ(told.top.size(), OpSamples::kTop);
  EXPECT_EQ(told.top[0].name, "aten::mm");
  EXPECT_EQ(told.top[0].work, "compute");
  EXPECT_EQ(told.top[0].samples, 2U);
  EXPECT_EQ(told.top[0].time, milliseconds{3}) << "two samples of a hundred ops each";
  EXPECT_EQ(told.top[1].name, "aten::op19");
}

TEST(OpSamplesTest, WhatOnlyCallsOthersCountsAsASampleAlone) {
  OpSamples samples;
  samples.note({.name = "aten::linear", .work = "unknown", .took = milliseconds{9}, .ran = {}});
  const OpSampleSums told = samples.sums();
  EXPECT_EQ(told.samples, 1U);
  EXPECT_EQ(told.unclassified, 1U);
  EXPECT_EQ(told.compute + told.memory, Duration::zero());
  EXPECT_TRUE(told.top.empty());
}

TEST(OpSamplesTest, MoreNamesThanThereIsRoomForStillCountInTheSums) {
  OpSamples samples;
  for (std::size_t i = 0; i < 10 * OpSamples::kMostNames; ++i) {
    samples.note(memory("aten::" + std::string(i % 100, 'x') + std::to_string(i), microseconds{1}));
  }
  EXPECT_EQ(samples.sums().memory, microseconds{100 * 10 * OpSamples::kMostNames});
  EXPECT_EQ(samples.sums().top.size(), OpSamples::kTop);
}

TEST(OpSamplesTest, ThreadsMayNoteAtOnce) {
  OpSamples samples;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) samples.note(compute("aten::mm", microseconds{1}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(samples.sums().samples, 4000U);
  EXPECT_EQ(samples.sums().compute, milliseconds{400});
}

}  // namespace
}  // namespace commensal::op_samples_test
