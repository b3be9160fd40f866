// SPDX-License-Identifier: Apache-2.0
// Checks what is foreseen of copies of each size.
#include "torch_ext/copy_durations.h"

#include <gtest/gtest.h>

#include <chrono>

namespace commensal::copy_durations_test {
namespace {

using namespace std::chrono_literals;

class CopyDurationsTest : public ::testing::Test {
 protected:
  Duration foreseen(Bytes size, CopyWay way = CopyWay::kToDevice) {
    return copies_.of(size, way).predicted();
  }

  CopyDurations copies_;
};

TEST_F(CopyDurationsTest, C15_ACopyThatWasNeverSeenIsForeseenByItsBytes) {
  EXPECT_GE(foreseen(8_GiB), 1s) << "no gap of a step has room for it";
  EXPECT_GE(foreseen(8_MiB), 1ms);
  EXPECT_LT(foreseen(8_MiB), 2ms);
}

// Its twin: known by its op, as a small copy was before it, it would start in any gap.
TEST_F(CopyDurationsTest, C15_ByItsOpAloneItIsForeseenAsTheSmallOneBeforeIt) {
  OpDuration op;
  op.record(30us);
  EXPECT_LT(OpEstimate(op).predicted(), 1ms);
}

TEST_F(CopyDurationsTest, WhatWasMeasuredTellsOfOtherSizesToo) {
  for (int i = 0; i < 40; ++i) copies_.of(64_MiB, CopyWay::kToDevice).record(1342us);  // 50 GB/s
  EXPECT_NEAR(static_cast<double>(foreseen(6_GiB).count()) / 1e6, 150.0, 40.0);
  EXPECT_NEAR(static_cast<double>(foreseen(2_MiB).count()) / 1e6, 0.05, 0.02);
}

TEST_F(CopyDurationsTest, TheTwoWaysAreKnownApart) {
  for (int i = 0; i < 40; ++i) copies_.of(64_MiB, CopyWay::kToDevice).record(1ms);
  EXPECT_GT(foreseen(64_MiB, CopyWay::kToHost), 8ms);
}

TEST_F(CopyDurationsTest, ALargerCopyIsNeverForeseenToBeShorter) {
  Duration before{};
  for (Bytes size = 1_MiB; size < 64_GiB; size = size + Bytes{size.count() / 8}) {
    CopyDurations fresh;
    const Duration now = fresh.of(size, CopyWay::kToDevice).predicted();
    EXPECT_GE(now, before) << to_string(size);
    before = now;
  }
  EXPECT_GT(foreseen(Bytes{UINT64_MAX}), before) << "what is larger than all is the largest";
}

}  // namespace
}  // namespace commensal::copy_durations_test
