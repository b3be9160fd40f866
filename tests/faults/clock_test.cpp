// SPDX-License-Identifier: Apache-2.0
// Every consumer of a clock sees it jump: forward as after a suspended machine, and backward as
// after a restored one. Nothing waits for the time that is missing, nothing counts time that was
// not, and everything goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"
#include "tests/torch_ext/fake_clock.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/step_tracker.h"

namespace commensal::clock_test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeClock;

// The coordinator's thread runs until the process is gone: longer than what `exit` destroys.
TEST(ClockAtExitDeathTest, TellsTheTimeToThreadsThatOutliveWhatExitDestroys) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a process that has asked no clock yet
  EXPECT_EXIT(
      {
        static const Clock* clock = nullptr;
        // Registered before the clock is made, so called after whatever would destroy it.
        std::atexit([] { std::_Exit(clock->now() > TimePoint{} ? 0 : 1); });
        clock = &SteadyClock::instance();
        std::exit(2);
      },
      ::testing::ExitedWithCode(0), "");
}

class ClockJumps : public ::testing::TestWithParam<int> {
 protected:
  [[nodiscard]] static Duration jump() { return hours{GetParam()}; }
  FakeClock clock_;
};

INSTANTIATE_TEST_SUITE_P(ForwardAndBackward, ClockJumps, ::testing::Values(10, -10),
                         [](const auto& test) {
                           return std::string(test.param > 0 ? "Forward" : "Backward");
                         });

// --- the allocator: deadlines of a safe point ---------------------------------------------------

TEST_P(ClockJumps, Law2_InTheMiddleOfAShrinkAndARetryCompletes) {
  clock_.advance(hours{100});  // so that going back stays above zero
  for (const bool while_copying : {true, false}) {
    MovingSource source;
    ElasticAllocatorOptions options;
    options.chunk_size = 128_KiB;
    ElasticAllocator allocator{source, options, clock_};
    PatternedBlocks blocks{allocator};
    for (int i = 0; i < 4; ++i) ASSERT_NE(blocks.add(256_KiB), nullptr);
    int jumps = 0;
    const auto once = [&] {
      if (jumps++ == 0) clock_.advance(jump());
    };
    if (while_copying) {
      source.fake().hooks().copied = [&](std::byte*, Bytes) { once(); };
    } else {
      source.fake().hooks().before_fence = once;
    }
    const LimitTicket ticket = allocator.set_limit(128_KiB);
    ASSERT_GT(jumps, 0);
    EXPECT_EQ(ticket.reason.empty(), ticket.complete()) << ticket.reason;
    blocks.expect_all();
    EXPECT_TRUE(allocator.set_limit(128_KiB).complete()) << allocator.stats().deferred_reason;
    EXPECT_TRUE(allocator.set_limit(1_GiB).complete());
    blocks.expect_all();
    const AllocatorStats stats = allocator.stats();
    EXPECT_EQ(stats.live, 1_MiB);
    for (const Duration time : {stats.longest_pause, stats.total_pause, stats.safe_point_wait}) {
      EXPECT_GE(time, Duration::zero());
      EXPECT_LE(time, std::max<Duration>(jump(), Duration::zero()) + hours{1});
    }
    blocks.remove_all();
  }
}

// --- the gate: run time metered against wall time -----------------------------------------------

class BusyDevice final : public DeviceObserver {
 public:
  DeviceObservation observe(TimePoint now) const noexcept override {
    DeviceObservation seen;
    seen.now = now;
    seen.guaranteed_present = seen.coordinator_alive = true;
    seen.busy_since = now - seconds{1};
    seen.trickle = 0.25;
    return seen;
  }
};

TEST_P(ClockJumps, Law4_TheTrickleGoesOnAtItsRate) {
  clock_.advance(hours{100});
  for (const char* law : {"gap", "duty_cycle", "rate_aimd", "token_window"}) {
    SCOPED_TRACE(law);
    BusyDevice device;
    int sleeps = 0;
    Gate gate{make_pacing_law(law), device, clock_, [&](Duration time, const Doorbell&) {
                ++sleeps;
                clock_.advance(std::max<Duration>(time, milliseconds{1}));
              }};
    if (std::string{law} == "duty_cycle") gate.set_share(0.0, 0.25);
    OpDuration op;
    const auto run_ops = [&](int count) {
      sleeps = 0;
      for (int i = 0; i < count; ++i) {
        if (!gate.try_enter_op(op)) gate.wait_op(op);
        clock_.advance(milliseconds{2});
        gate.leave_op(op);
      }
      return sleeps;
    };
    (void)run_ops(50);
    const int usual = run_ops(50);
    EXPECT_GT(usual, 0) << "it is throttled";
    clock_.advance(jump());
    // A sleep is at least a millisecond: waiting for ten lost hours would take millions of them.
    EXPECT_LT(run_ops(50), 20 * usual + 1000);
    const int after = run_ops(50);
    EXPECT_LT(after, 4 * usual + 50) << "and soon everything is as before";
    EXPECT_GE(gate.stats().closed_total, Duration::zero());
  }
}

// --- steps and waits ----------------------------------------------------------------------------

TEST_P(ClockJumps, StepsKeepTheirNumberAndTheirMedian) {
  clock_.advance(hours{100});
  StepTracker tracker{clock_};
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      clock_.advance(milliseconds{20});
      (void)tracker.user_step();
    }
  };
  steps(40);
  EXPECT_EQ(tracker.state().median, milliseconds{20});
  clock_.advance(jump());
  steps(1);
  EXPECT_GE(tracker.state().last, Duration::zero());
  EXPECT_EQ(tracker.state().median, milliseconds{20}) << "one outlier among 32";
  steps(39);
  EXPECT_EQ(tracker.state().number, 80U);
  EXPECT_EQ(tracker.state().last, milliseconds{20});
  EXPECT_EQ(tracker.state().median, milliseconds{20});
}

TEST_P(ClockJumps, WaitsForDataKeepTheirTypicalLength) {
  clock_.advance(hours{100});
  OwnPage page{JobId{"j"}, JobClass::kGuaranteed, 0};
  ActivityRecorder recorder{page.page(), clock_};
  const auto waits = [&](int count, Duration lost) {
    for (int i = 0; i < count; ++i) {
      recorder.wait_begin();
      clock_.advance(milliseconds{5} + lost);
      recorder.wait_end();
      clock_.advance(milliseconds{5});
    }
  };
  waits(40, {});
  const Duration typical{static_cast<Duration::rep>(page.page().wait_typical_ns.load())};
  EXPECT_EQ(typical, milliseconds{5});
  waits(1, jump());
  EXPECT_LE(page.page().wait_ns_total.load(),
            static_cast<std::uint64_t>((hours{11}) / Duration{1}));
  waits(40, {});
  EXPECT_EQ(Duration{static_cast<Duration::rep>(page.page().wait_typical_ns.load())}, typical);
  EXPECT_EQ(page.page().waits_total.load(), 81U);
}

}  // namespace
}  // namespace commensal::clock_test
