// SPDX-License-Identifier: Apache-2.0
// What the gate remembers about how long an op takes.
#include "torch_ext/gate/op_duration.h"

#include <gtest/gtest.h>

namespace commensal::op_duration_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(OpDurationTest, UnknownUntilSeen) {
  OpDuration add;
  EXPECT_EQ(add.predicted(), Duration::zero());
  add.record(microseconds{30});
  EXPECT_EQ(add.predicted(), microseconds{30});
}

TEST(OpDurationTest, RisesFastAndFallsSlowly) {
  OpDuration mm;
  mm.record(microseconds{10});
  for (int i = 0; i < 8; ++i) mm.record(milliseconds{10});
  EXPECT_GT(mm.predicted(), milliseconds{9});
  mm.record(microseconds{10});
  EXPECT_GT(mm.predicted(), milliseconds{8});
  for (int i = 0; i < 200; ++i) mm.record(microseconds{10});
  EXPECT_LT(mm.predicted(), microseconds{20});
}

TEST(OpDurationTest, OneOutlierCountsLittle) {
  OpDuration mm;
  for (int i = 0; i < 10; ++i) mm.record(microseconds{200});
  mm.record(milliseconds{500});  // preempted
  EXPECT_LT(mm.predicted(), milliseconds{1});
}

}  // namespace
}  // namespace commensal::op_duration_test
