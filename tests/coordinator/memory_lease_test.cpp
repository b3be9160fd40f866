// SPDX-License-Identifier: Apache-2.0
// How long a job keeps what it wanted, and that two jobs do not trade the same bytes forever.
#include "coordinator/node/memory_lease.h"

#include <gtest/gtest.h>

#include "coordinator/node/memory_arbiter.h"

namespace commensal::node::memory_lease_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;

constexpr TimePoint kStart{1h};

TEST(LeaseKeeper, APeakCountsUntilTheLeaseRunsOut) {
  LeaseKeeper keeper;
  keeper.note(kStart, 400_MiB);
  EXPECT_EQ(keeper.lease().bytes, 400_MiB);
  EXPECT_EQ(keeper.lease().ends, kStart + 5s);
  keeper.note(kStart + 4s, 100_MiB);
  EXPECT_EQ(keeper.lease().bytes, 400_MiB) << "it has not run out";
  keeper.note(kStart + 6s, 90_MiB);
  EXPECT_EQ(keeper.lease().bytes, 100_MiB) << "the largest wish of the last seconds";
}

TEST(LeaseKeeper, APeakThatComesAgainRenewsIt) {
  LeaseKeeper keeper;
  for (int i = 0; i < 100; ++i) keeper.note(kStart + i * 1s, i % 4 == 0 ? 400_MiB : 100_MiB);
  EXPECT_EQ(keeper.lease().bytes, 400_MiB);
  EXPECT_EQ(keeper.lease().term, 5s);
}

TEST(LeaseKeeper, TakingBackWhatItLetGoMakesTheTermLonger) {
  LeaseKeeper keeper;
  keeper.note(kStart, 400_MiB);
  keeper.note(kStart + 10s, 100_MiB);
  keeper.note(kStart + 16s, 100_MiB);
  ASSERT_EQ(keeper.lease().bytes, 100_MiB);
  keeper.note(kStart + 20s, 400_MiB);
  EXPECT_EQ(keeper.lease().term, 10s);
  EXPECT_EQ(keeper.lease().ends, kStart + 30s);
}

TEST(LeaseKeeper, ComingBackLateOrWithLittleDoesNot) {
  LeaseKeeper late;
  late.note(kStart, 400_MiB);
  late.note(kStart + 10s, 100_MiB);
  late.note(kStart + 16s, 100_MiB);
  late.note(kStart + 60s, 400_MiB);
  EXPECT_EQ(late.lease().term, 5s);
  LeaseKeeper little;
  little.note(kStart, 400_MiB);
  little.note(kStart + 10s, 390_MiB);
  little.note(kStart + 16s, 390_MiB);
  little.note(kStart + 17s, 400_MiB);
  EXPECT_EQ(little.lease().term, 5s) << "nothing moved for so little";
}

TEST(LeaseKeeper, CalmMakesTheTermShortAgain) {
  LeaseKeeper keeper;
  keeper.note(kStart, 400_MiB);
  keeper.note(kStart + 10s, 100_MiB);
  keeper.note(kStart + 16s, 100_MiB);
  keeper.note(kStart + 20s, 400_MiB);
  ASSERT_EQ(keeper.lease().term, 10s);
  for (int i = 0; i < 400; ++i) keeper.note(kStart + 20s + i * 1s, 400_MiB);
  EXPECT_EQ(keeper.lease().term, 5s);
}

/// A guaranteed job whose wish swings with a period, beside an opportunistic one that uses all it
/// can get. @return how often the opportunistic one's limit changed in an hour.
int changes_in_an_hour(Duration period, LeaseTerms terms) {
  LeaseKeeper keeper{terms};
  policies::JobView g;
  g.id = JobId{"g"};
  g.job_class = JobClass::kGuaranteed;
  policies::JobView o;
  o.id = JobId{"o"};
  o.wanted = 1000_MiB;
  int changes = 0;
  for (Duration passed{}; passed < 1h; passed += 200ms) {
    const TimePoint now = kStart + passed;
    g.wanted = passed % period < period / 4 ? 600_MiB : 100_MiB;
    keeper.note(now, g.wanted);
    g.lease = keeper.lease();
    policies::DeviceView device;
    device.now = now;
    device.capacity = 1000_MiB;
    device.jobs = {g, o};
    for (const auto& change : decide_memory(device, {}).memory) {
      (change.job == g.id ? g : o).limit = change.limit;
      changes += change.job == o.id ? 1 : 0;
    }
    EXPECT_GE(g.limit, g.wanted) << "the guaranteed job has what it wants, at once";
  }
  return changes;
}

TEST(Hysteresis, TwoJobsDoNotTradeTheSameBytesForever) {
  for (const Duration period : {Duration{8s}, Duration{20s}, Duration{240s}}) {
    EXPECT_LE(changes_in_an_hour(period, {}), 40) << period.count();
  }
  // Memory that is free for most of a minute is worth two moves a minute.
  EXPECT_LE(changes_in_an_hour(60s, {}), 130);
}

TEST(Hysteresis, WithoutLongerTermsTheyWould) {
  EXPECT_GT(changes_in_an_hour(20s, {.first = 5s, .longest = 5s}), 300);
}

}  // namespace
}  // namespace commensal::node::memory_lease_test
