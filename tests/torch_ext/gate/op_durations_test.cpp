// SPDX-License-Identifier: Apache-2.0
// What the gate remembers about how long ops take.
#include "torch_ext/gate/op_durations.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace commensal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(OpDurationsTest, UnknownUntilSeen) {
  OpDurations durations;
  const char* const add = "aten::add";
  EXPECT_EQ(durations.predict(add), Duration::zero());
  durations.record(add, microseconds{30});
  EXPECT_EQ(durations.predict(add), microseconds{30});
  EXPECT_EQ(durations.predict("aten::mul"), Duration::zero());
}

TEST(OpDurationsTest, RisesFastAndFallsSlowly) {
  OpDurations durations;
  const char* const mm = "aten::mm";
  durations.record(mm, microseconds{10});
  for (int i = 0; i < 8; ++i) durations.record(mm, milliseconds{10});
  EXPECT_GT(durations.predict(mm), milliseconds{9});
  durations.record(mm, microseconds{10});
  EXPECT_GT(durations.predict(mm), milliseconds{8});
  for (int i = 0; i < 200; ++i) durations.record(mm, microseconds{10});
  EXPECT_LT(durations.predict(mm), microseconds{20});
}

TEST(OpDurationsTest, OneOutlierCountsLittle) {
  OpDurations durations;
  const char* const mm = "aten::mm";
  for (int i = 0; i < 10; ++i) durations.record(mm, microseconds{200});
  durations.record(mm, milliseconds{500});  // preempted
  EXPECT_LT(durations.predict(mm), milliseconds{1});
}

TEST(OpDurationsTest, AFullTableLeavesNewOpsUnknown) {
  const auto durations = std::make_unique<OpDurations>();
  const std::vector<char> names(100'000);
  for (const char& name : names) durations->record(&name, microseconds{5});
  std::size_t known = 0;
  for (const char& name : names) known += durations->predict(&name) == microseconds{5} ? 1 : 0;
  EXPECT_GT(known, OpDurations::kSlots / 2);
  EXPECT_LE(known, OpDurations::kSlots);
}

}  // namespace
}  // namespace commensal
