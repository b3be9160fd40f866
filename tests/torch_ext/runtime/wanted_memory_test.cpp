// SPDX-License-Identifier: Apache-2.0
// How long a need for memory is remembered.
#include "torch_ext/runtime/wanted_memory.h"

#include <gtest/gtest.h>

namespace commensal::wanted_memory_test {
namespace {

using std::chrono::seconds;

TEST(WantedMemoryTest, WhatWasPutAwayByRequestIsNotNeeded) {
  AllocatorStats stats;
  stats.live = 100_MiB;
  stats.device = 80_MiB;
  stats.cached = 20_MiB;
  EXPECT_EQ(needed_now(stats, {}), 100_MiB);
  stats.host = 60_MiB;
  EXPECT_EQ(needed_now(stats, {}), 120_MiB) << "whole chunks";
  stats.host = {};
  stats.parked = 40_MiB;
  EXPECT_EQ(needed_now(stats, {}), 100_MiB) << "parked by others: it wants all of it back";
  TagResidency tag;
  tag.saved = 30_MiB;
  EXPECT_EQ(needed_now(stats, {tag}), 100_MiB);
  tag.parked = true;
  EXPECT_EQ(needed_now(stats, {tag}), 70_MiB);
  stats.dropped = 50_MiB;
  EXPECT_EQ(needed_now(stats, {tag}), 60_MiB) << "what is on the device";
}

TEST(WantedMemoryTest, KeepsTheLargestNeedOfTheLastSteps) {
  WantedMemory wanted;
  const TimePoint begin{std::chrono::hours{1}};
  EXPECT_EQ(wanted.wanted(), 0_B);
  wanted.note(100_MiB, 1, begin);
  wanted.note(40_MiB, 2, begin + seconds{1});
  EXPECT_EQ(wanted.wanted(), 100_MiB);
  wanted.note(40_MiB, 50, begin + seconds{2});
  EXPECT_EQ(wanted.wanted(), 100_MiB) << "many steps, but not long ago";
  wanted.note(40_MiB, 60, begin + seconds{20});
  EXPECT_EQ(wanted.wanted(), 40_MiB);
  wanted.note(120_MiB, 61, begin + seconds{21});
  EXPECT_EQ(wanted.wanted(), 120_MiB);
}

TEST(WantedMemoryTest, ANeedWithoutStepsIsNotForgotten) {
  WantedMemory wanted;
  const TimePoint begin{std::chrono::hours{1}};
  wanted.note(100_MiB, 5, begin);
  for (int i = 1; i < 100; ++i) wanted.note(1_MiB, 5, begin + seconds{i});
  EXPECT_EQ(wanted.wanted(), 100_MiB);
}

}  // namespace
}  // namespace commensal::wanted_memory_test
