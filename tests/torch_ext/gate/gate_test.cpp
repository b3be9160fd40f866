// SPDX-License-Identifier: Apache-2.0
// The gate itself: what passes, what waits, and that waiting always ends or is explained.
#include "torch_ext/gate/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/torch_ext/fake_clock.h"
#include "tests/torch_ext/gate/fake_device.h"

namespace commensal::gate_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::FakeClock;
using testing::FakeDevice;

OpDuration g_add;
OpDuration g_mm;

/// Waits until something is true; tests fail rather than hang.
template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds{1});
  }
  return true;
}

/// Threads that run empty ops through a gate as fast as it lets them.
class Workers {
 public:
  Workers(Gate& gate, int count) : gate_(gate) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_.load()) {
          if (!gate_.try_enter_op(g_add)) gate_.wait_op(g_add);
          passed_.fetch_add(1);
          gate_.leave_op(g_add);
        }
      });
    }
  }
  ~Workers() { stop(); }
  void stop() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  [[nodiscard]] std::uint64_t passed() const { return passed_.load(); }

 private:
  Gate& gate_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> passed_{0};
  std::vector<std::thread> threads_;
};

/// Counts the ops that pass while the guaranteed job is busy and allows no trickle.
std::uint64_t passed_beside_a_burst(const std::string& law) {
  FakeDevice device;
  device.burst(SteadyClock::instance().now());
  Gate gate(make_pacing_law(law), device);
  gate.refresh();
  constexpr int kThreads = 4;
  Workers workers(gate, kThreads);
  EXPECT_TRUE(eventually([&] {
    const GateStats stats = gate.stats();
    return stats.ops_gated >= kThreads || stats.ops_seen > 1000;
  }));
  std::this_thread::sleep_for(milliseconds{20});
  const std::uint64_t passed = workers.passed();
  device.set([](DeviceObservation& seen) { seen.guaranteed_present = false; });
  EXPECT_TRUE(eventually([&] { return workers.passed() > passed + 1000; })) << "did not open again";
  return passed;
}

TEST(GateTest, Law4_AClosedGateLetsNoOpPassAndOpensAgain) {
  EXPECT_EQ(passed_beside_a_burst("gap"), 0U);
}

TEST(GateTest, Law4_WithTheMechanismOffOpsPass) { EXPECT_GT(passed_beside_a_burst("open"), 0U); }

/// Runs ops on four threads, and counts those that ran while memory was being moved.
std::uint64_t ran_while_moving(bool holds) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  std::atomic<bool> moving{false};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> ops{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        if (!gate.try_enter_op(g_add)) gate.wait_op(g_add);
        const bool before = moving.load();
        for (int spin = 0; spin < 50; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
        if (before || moving.load()) wrong.fetch_add(1);
        gate.leave_op(g_add);
        ops.fetch_add(1);
      }
    });
  }
  EXPECT_TRUE(eventually([&] { return ops.load() > 1000; }));
  int held = 0;
  for (int i = 0; i < 300; ++i) {
    if (holds && !gate.hold(std::chrono::seconds{5})) continue;
    ++held;
    moving.store(true);
    std::this_thread::sleep_for(microseconds{100});
    moving.store(false);
    if (holds) gate.release();
    const std::uint64_t seen = ops.load();
    EXPECT_TRUE(eventually([&] { return ops.load() > seen; })) << "nobody goes on";
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(held, 250);
  return wrong.load();
}

TEST(GateHold, NoOpRunsWhileMemoryIsMoved) { EXPECT_EQ(ran_while_moving(true), 0U); }

TEST(GateHold, WithTheMechanismOffOpsRunWhileMemoryIsMoved) {
  EXPECT_GT(ran_while_moving(false), 0U);
}

TEST(GateHold, GivesUpAtItsDeadlineAndHoldsNobody) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  std::atomic<bool> inside{false};
  std::atomic<bool> done{false};
  std::thread other([&] {
    ASSERT_TRUE(gate.try_enter_op(g_mm));
    inside.store(true);
    while (!done.load()) std::this_thread::sleep_for(milliseconds{1});
    gate.leave_op(g_mm);
  });
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  EXPECT_FALSE(gate.hold(milliseconds{5})) << "its op still runs";
  EXPECT_TRUE(gate.try_enter_op(g_add)) << "nobody is held";
  gate.leave_op(g_add);
  done.store(true);
  other.join();
  EXPECT_TRUE(gate.hold(milliseconds{5}));
  EXPECT_FALSE(gate.try_enter_op(g_add));
  gate.release();
  EXPECT_TRUE(gate.try_enter_op(g_add));
  gate.leave_op(g_add);
}

TEST(GateHold, TheHoldersOwnOpIsNoneToWaitFor) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  ASSERT_TRUE(gate.try_enter_op(g_add));
  EXPECT_TRUE(gate.hold(milliseconds{5}));
  gate.release();
  gate.leave_op(g_add);
  EXPECT_EQ(gate.ops_in_flight(), 0U);
}

TEST(GateHold, NobodyWhoIsCalledGoesThrough) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  ASSERT_TRUE(gate.hold(milliseconds{5}));
  std::atomic<bool> through{false};
  std::thread other([&] {
    EXPECT_FALSE(gate.try_enter_op(g_add));
    gate.wait_op(g_add, []() noexcept { return true; });  // a signal is pending all the time
    through.store(true);
    gate.leave_op(g_add);
  });
  EXPECT_TRUE(eventually([&] { return gate.stats().ops_gated == 1; }));
  std::this_thread::sleep_for(milliseconds{30});
  EXPECT_FALSE(through.load());
  gate.release();
  other.join();
  EXPECT_TRUE(through.load());
}

TEST(GateHold, AnOpThatGoesBackIsNotCounted) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  ASSERT_TRUE(gate.try_enter_op(g_add));
  gate.leave_op(g_add);
  ASSERT_TRUE(gate.hold(milliseconds{5}));
  EXPECT_FALSE(gate.try_enter_op(g_add));
  gate.release();
  EXPECT_EQ(gate.stats().ops_seen, 1U);
  EXPECT_EQ(gate.ops_in_flight(), 0U);
}

TEST(GateHold, OpsPassTheGateWhereAHoldIsExpected) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  gate.refresh();
  EXPECT_FALSE(gate.wants_callback());
  gate.expect_hold(true);
  EXPECT_TRUE(gate.wants_callback());
  gate.expect_hold(false);
  EXPECT_FALSE(gate.wants_callback());
}

TEST(GateTest, Law4_APausedGateLetsNoOpPassAndOpensAgain) {
  FakeDevice device;
  Gate gate(make_pacing_law("gap"), device);
  constexpr std::uint64_t kThreads = 4;
  Workers workers(gate, kThreads);
  ASSERT_TRUE(eventually([&] { return workers.passed() > 1000; }));
  gate.pause();
  ASSERT_TRUE(eventually([&] { return gate.ops_in_flight() == 0; }));
  ASSERT_TRUE(eventually([&] { return gate.stats().ops_gated >= kThreads; }));
  const std::uint64_t passed = workers.passed();
  std::this_thread::sleep_for(milliseconds{20});
  EXPECT_EQ(workers.passed(), passed);
  const GateStats closed = gate.stats();
  EXPECT_STREQ(closed.state, "paused");
  EXPECT_EQ(closed.reason, "paused by the job itself");
  EXPECT_GT(closed.closed_total, Duration::zero());
  gate.resume();
  EXPECT_TRUE(eventually([&] { return workers.passed() > passed + 1000; }));
}

TEST(GateTest, Law4_AGateThatStaysClosedSaysWhy) {
  FakeDevice device;
  device.burst(SteadyClock::instance().now());
  Gate gate(make_pacing_law("gap"), device);
  gate.refresh();
  EXPECT_STREQ(gate.stats().state, "closed");
  EXPECT_EQ(gate.stats().reason, "guaranteed job busy");
  gate.set_share(0.0, 0.0);
  EXPECT_STREQ(gate.stats().state, "paused");
  EXPECT_EQ(gate.stats().reason, "paused: its share of device time is 0");
  device.set([](DeviceObservation& seen) { seen.paused = true; });
  gate.refresh();
  EXPECT_EQ(gate.stats().reason, "paused by the coordinator");
}

TEST(GateTest, TogglingTenThousandTimesLosesNoThread) {
  FakeDevice device;
  Gate gate(make_pacing_law("gap"), device);
  Workers workers(gate, 4);
  for (int i = 0; i < 10'000; ++i) {
    gate.pause();
    gate.resume();
  }
  const std::uint64_t passed = workers.passed();
  EXPECT_TRUE(eventually([&] { return workers.passed() > passed + 10'000; }));
  workers.stop();
  EXPECT_EQ(gate.ops_in_flight(), 0U);
  EXPECT_EQ(gate.stats().ops_seen, workers.passed());
}

TEST(GateTest, AResumeWakesWaitingOpsAtOnce) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  gate.pause();
  std::atomic<bool> through{false};
  std::thread thread([&] {
    EXPECT_FALSE(gate.try_enter_op(g_add));
    gate.wait_op(g_add);
    through.store(true);
    gate.leave_op(g_add);
  });
  ASSERT_TRUE(eventually([&] { return gate.stats().ops_gated == 1; }));
  EXPECT_FALSE(through.load());
  gate.resume();
  thread.join();
  EXPECT_TRUE(through.load());
}

/// The gate in simulated time: sleeping moves the clock.
class SimulatedGateTest : public ::testing::Test {
 protected:
  SimulatedGateTest() {
    g_add.forget();  // what ops of other tests took says nothing here
    g_mm.forget();
  }
  void run_op(OpDuration& op, Duration length) {
    if (!gate_.try_enter_op(op)) gate_.wait_op(op);
    started_ = clock_.now();
    clock_.advance(length);
    gate_.leave_op(op);
  }

  FakeClock clock_;
  FakeDevice device_;
  std::function<void()> on_sleep_ = [] {};
  Gate gate_{make_pacing_law("gap"), device_, clock_, [this](Duration time, const Doorbell&) {
               clock_.advance(time);
               on_sleep_();
             }};
  TimePoint started_;
};

TEST_F(SimulatedGateTest, C3_AnElevenMsOpNeverStartsInAFiveMsGap) {
  run_op(g_mm, milliseconds{11});  // alone: the gate learns its length
  TimePoint gap_begin;
  // A guaranteed job that is busy for 5 ms and idle for 5 ms; ops are let through in gaps only.
  const auto play = [&] {
    const Duration phase = (clock_.now() - gap_begin) % milliseconds{10};
    if (phase < milliseconds{5}) {
      device_.gap(clock_.now() - phase, clock_.now() - phase + milliseconds{5});
    } else {
      device_.burst(clock_.now() - phase + milliseconds{5});
    }
  };
  gap_begin = clock_.now();
  play();
  int sleeps = 0;
  on_sleep_ = [&] {
    play();
    if (++sleeps == 2000)
      device_.set([](DeviceObservation& seen) { seen.guaranteed_present = false; });
  };
  EXPECT_FALSE(gate_.try_enter_op(g_mm));
  gate_.wait_op(g_mm);
  EXPECT_GE(sleeps, 2000) << "it started beside the guaranteed job";
}

TEST_F(SimulatedGateTest, C3_WithoutALengthToGoByItStarts) {
  OpDuration never_seen;
  device_.gap(clock_.now() - milliseconds{1}, clock_.now() + milliseconds{4});
  EXPECT_TRUE(gate_.try_enter_op(never_seen)) << "and runs into the burst for 7 of its 11 ms";
  clock_.advance(milliseconds{11});
  gate_.leave_op(never_seen);
  EXPECT_FALSE(gate_.try_enter_op(never_seen)) << "once";
}

TEST_F(SimulatedGateTest, ShortOpsRunInTheGapAndStopBeforeItsEnd) {
  run_op(g_add, microseconds{100});
  const TimePoint begin = clock_.now();
  device_.gap(begin, begin + milliseconds{5});
  on_sleep_ = [&] {
    if (clock_.now() >= begin + milliseconds{5}) device_.burst(begin + milliseconds{5});
    if (clock_.now() >= begin + milliseconds{8}) {
      device_.gap(begin + milliseconds{8}, begin + milliseconds{13});
    }
  };
  int in_first_gap = 0;
  while (clock_.now() < begin + milliseconds{12}) {
    run_op(g_add, microseconds{100});
    if (started_ < begin + milliseconds{5}) {
      ++in_first_gap;
      EXPECT_LE(started_, begin + milliseconds{5} - microseconds{99});
      EXPECT_GE(started_, begin + kQuietBeforeGap);
    } else {
      EXPECT_GE(started_, begin + milliseconds{8} + kQuietBeforeGap);
    }
  }
  EXPECT_GT(in_first_gap, 35);
}

/// Ops of two threads count together: where one of 5 ms runs, a bound of 4 ms is reached, and
/// another one may start once the first has run for 3 ms.
TEST_F(SimulatedGateTest, WorkInFlightIsThatOfAllThreads) {
  device_.gap(clock_.now() - milliseconds{2}, clock_.now() + milliseconds{100});
  device_.set([](DeviceObservation& seen) {
    seen.gap_rules.known = true;
    seen.gap_rules.in_flight = milliseconds{4};
  });
  Gate gate(make_pacing_law("gap"), device_, clock_, [](Duration, const Doorbell&) {});
  gate.refresh();
  EXPECT_EQ(gate.stats().hand_overs, 0U) << "a look enters nothing";
  OpDuration op;
  op.record(milliseconds{5});
  std::atomic<int> stage{0};
  std::thread other([&] {
    ASSERT_TRUE(gate.try_enter_op(op)) << "alone";
    stage.store(1);
    ASSERT_TRUE(eventually([&] { return stage.load() == 2; }));
    gate.leave_op(op);
  });
  ASSERT_TRUE(eventually([&] { return stage.load() == 1; }));
  EXPECT_FALSE(gate.try_enter_op(op)) << "5 ms are above 4";
  EXPECT_EQ(gate.stats().reason, "work in flight is at its bound");
  clock_.advance(milliseconds{3});
  EXPECT_TRUE(gate.try_enter_op(op)) << "2 ms are not";
  gate.leave_op(op);
  stage.store(2);
  other.join();
  EXPECT_EQ(gate.stats().hand_overs, 1U) << "both ops ran in one gap";
}

TEST_F(SimulatedGateTest, TheTrickleIsKeptOverASimulatedMinute) {
  device_.burst(clock_.now());
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.02; });
  const TimePoint begin = clock_.now();
  Duration ran{};
  while (clock_.now() - begin < std::chrono::minutes{1}) {
    run_op(g_mm, milliseconds{11});
    ran += milliseconds{11};
  }
  const double share =
      std::chrono::duration<double>(ran) / std::chrono::duration<double>(clock_.now() - begin);
  EXPECT_NEAR(share, 0.02, 0.002);
}

TEST_F(SimulatedGateTest, RunningIntoABurstIsPaidFromTheTrickle) {
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.01; });
  const TimePoint begin = clock_.now();
  device_.gap(begin - milliseconds{1}, begin + milliseconds{50});
  ASSERT_TRUE(gate_.try_enter_op(g_add));
  clock_.advance(milliseconds{10});
  device_.burst(begin + milliseconds{4});  // 46 ms earlier than foreseen
  gate_.leave_op(g_add);
  EXPECT_FALSE(gate_.try_enter_op(g_add)) << "6 ms beside the burst must be paid first";
  clock_.advance(milliseconds{650});
  EXPECT_TRUE(gate_.try_enter_op(g_add));
  gate_.leave_op(g_add);
}

/// Runs 20 ms of ops in a gap, then the guaranteed job is busy.
void use_a_gap(Gate& gate, FakeDevice& device, FakeClock& clock) {
  device.gap(clock.now() - milliseconds{2}, clock.now() + milliseconds{100});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(gate.try_enter_op(g_add));
    clock.advance(milliseconds{1});
    gate.leave_op(g_add);
  }
  device.burst(clock.now());
}

TEST_F(SimulatedGateTest, WhatRanInGapsCountsTowardsTheLeastTrickle) {
  device_.set([](DeviceObservation& seen) { seen.trickle = seen.least_trickle = 0.01; });
  use_a_gap(gate_, device_, clock_);
  EXPECT_FALSE(gate_.try_enter_op(g_add)) << "it does not starve";
  clock_.advance(milliseconds{900});
  EXPECT_FALSE(gate_.try_enter_op(g_add));
  clock_.advance(milliseconds{120});
  EXPECT_TRUE(gate_.try_enter_op(g_add)) << "no gap for a second";
  gate_.leave_op(g_add);
}

TEST_F(SimulatedGateTest, AShareThatDoesNoHarmIsNotSpentInGaps) {
  device_.set([](DeviceObservation& seen) {
    seen.trickle = 0.05;
    seen.least_trickle = 0.01;
  });
  use_a_gap(gate_, device_, clock_);
  EXPECT_TRUE(gate_.try_enter_op(g_add));
  gate_.leave_op(g_add);
}

TEST_F(SimulatedGateTest, AMinimumOfItsOwnIsNotSpentInGaps) {
  device_.set([](DeviceObservation& seen) { seen.trickle = seen.least_trickle = 0.01; });
  gate_.set_share(0.05, 1.0);
  use_a_gap(gate_, device_, clock_);
  EXPECT_TRUE(gate_.try_enter_op(g_add));
  gate_.leave_op(g_add);
}

TEST_F(SimulatedGateTest, AShareWithoutAnyCoordinatorIsADutyCycle) {
  gate_.set_share(0.0, 0.25);
  const TimePoint begin = clock_.now();
  Duration ran{};
  while (clock_.now() - begin < std::chrono::seconds{10}) {
    run_op(g_add, microseconds{300});
    ran += microseconds{300};
  }
  EXPECT_NEAR(
      std::chrono::duration<double>(ran) / std::chrono::duration<double>(clock_.now() - begin),
      0.25, 0.01);
  EXPECT_NEAR(std::chrono::duration<double>(gate_.stats().busy_total).count(),
              std::chrono::duration<double>(ran).count(), 1e-3);
}

TEST_F(SimulatedGateTest, WhatAThreadDoesBetweenTwoOpsCountsAgainstAMaximum) {
  gate_.set_share(0.0, 0.25);
  const TimePoint begin = clock_.now();
  Duration ran{};
  while (clock_.now() - begin < std::chrono::seconds{10}) {
    run_op(g_add, microseconds{300});
    clock_.advance(microseconds{100});
    ran += microseconds{400};
  }
  EXPECT_NEAR(
      std::chrono::duration<double>(ran) / std::chrono::duration<double>(clock_.now() - begin),
      0.25, 0.01);
}

TEST_F(SimulatedGateTest, APauseBetweenTwoOpsDoesNot) {
  gate_.set_share(0.0, 0.5);
  for (int i = 0; i < 1000; ++i) {
    run_op(g_add, milliseconds{1});
    clock_.advance(milliseconds{2});  // for a batch, say
  }
  EXPECT_EQ(gate_.stats().ops_gated, 0U);
}

TEST_F(SimulatedGateTest, C19_AKilledGuaranteedJobOpensTheGate) {
  device_.burst(clock_.now());
  int sleeps = 0;
  on_sleep_ = [&] {
    if (++sleeps == 5)
      device_.set([](DeviceObservation& seen) { seen.guaranteed_present = false; });
  };
  EXPECT_FALSE(gate_.try_enter_op(g_add));
  gate_.wait_op(g_add);
  EXPECT_EQ(sleeps, 5);
}

TEST_F(SimulatedGateTest, C19_WithALeaseThatNeverEndsItStaysClosed) {
  device_.burst(clock_.now());
  int sleeps = 0;
  on_sleep_ = [&] {
    if (++sleeps == 5000) gate_.disarm_in_child();  // or this test would not end
  };
  EXPECT_FALSE(gate_.try_enter_op(g_add));
  gate_.wait_op(g_add);
  EXPECT_EQ(sleeps, 5000);
}

std::atomic<int> g_switched_on{0};
std::atomic<int> g_switched_off{0};

TEST_F(SimulatedGateTest, TheCallbackIsOnOnlyWhileThereIsSomethingToWaitFor) {
  g_switched_on = g_switched_off = 0;
  gate_.on_callback_switch([](bool on) { ++(on ? g_switched_on : g_switched_off); });
  EXPECT_EQ(g_switched_off, 1);  // the present state, at once
  EXPECT_FALSE(gate_.wants_callback());
  EXPECT_STREQ(gate_.stats().state, "off");
  device_.burst(clock_.now());
  gate_.refresh();
  EXPECT_TRUE(gate_.wants_callback());
  EXPECT_EQ(g_switched_on, 1);
  gate_.refresh();
  EXPECT_EQ(g_switched_on, 1);
  device_.set([](DeviceObservation& seen) { seen.guaranteed_present = false; });
  gate_.refresh();
  EXPECT_EQ(g_switched_off, 2);
  gate_.set_share(0.0, 0.5);
  EXPECT_EQ(g_switched_on, 2);
  gate_.set_share(0.0, 1.0);
  gate_.pause();
  EXPECT_EQ(g_switched_on, 3);
  gate_.resume();
  EXPECT_FALSE(gate_.wants_callback());
}

TEST_F(SimulatedGateTest, ADozingGateHasTheJobBroughtBackByTheFirstOpThatWouldPass) {
  int asked = 0;
  gate_.on_needed([&] {
    ++asked;
    EXPECT_TRUE(gate_.dozing());
    gate_.wake();
  });
  gate_.doze();
  EXPECT_TRUE(gate_.wants_callback());
  EXPECT_FALSE(gate_.try_enter_op(g_add));
  EXPECT_STREQ(gate_.stats().state, "closed");
  EXPECT_EQ(gate_.stats().reason, "parked while idle: an op has it brought back");
  EXPECT_FALSE(gate_.paused()) << "nobody has to resume it";
  EXPECT_EQ(asked, 0) << "to be looked at is no op";
  gate_.wait_op(g_add);
  gate_.leave_op(g_add);
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(gate_.try_enter_op(g_add));
  gate_.leave_op(g_add);
  gate_.doze();
  gate_.wait_op(g_add);
  gate_.leave_op(g_add);
  EXPECT_EQ(asked, 2) << "each time anew";
}

TEST_F(SimulatedGateTest, AnOpThatMustWaitAnywayBringsNothingBack) {
  std::atomic<int> asked{0};
  gate_.on_needed([&] {
    ++asked;
    gate_.wake();
  });
  gate_.pause();
  gate_.doze();
  EXPECT_TRUE(gate_.paused());
  // Summoned by its program, the op enters the closed gate, of a paused job.
  gate_.wait_op(g_add, []() noexcept { return true; });
  gate_.leave_op(g_add);
  EXPECT_EQ(asked, 0);
  gate_.resume();
  EXPECT_FALSE(gate_.try_enter_op(g_add)) << "resumed, but still parked";
  gate_.wait_op(g_add);
  gate_.leave_op(g_add);
  EXPECT_EQ(asked, 1);
}

TEST(GateTest, ManyThreadsAtADozingGateAskOnce) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device);
  std::atomic<int> asked{0};
  gate.on_needed([&] { ++asked; });
  gate.doze();
  {
    Workers workers(gate, 4);
    ASSERT_TRUE(eventually([&] { return asked.load() == 1 && gate.stats().ops_gated == 4; }));
    EXPECT_EQ(workers.passed(), 0U) << "all wait until it is back";
    gate.wake();
    ASSERT_TRUE(eventually([&] { return workers.passed() > 100; }));
  }
  EXPECT_EQ(asked.load(), 1);
}

TEST_F(SimulatedGateTest, AnEndWithoutAnEntryIsIgnored) {
  gate_.leave_op(g_add);
  EXPECT_EQ(gate_.stats().ops_seen, 0U);
}

TEST_F(SimulatedGateTest, ADisarmedGateNeverWaits) {
  device_.burst(clock_.now());
  gate_.disarm_in_child();
  EXPECT_TRUE(gate_.try_enter_op(g_add));
  gate_.wait_op(g_add);
  gate_.leave_op(g_add);
  EXPECT_FALSE(gate_.wants_callback());
  EXPECT_EQ(gate_.stats().reason, "inert in a forked child");
}

TEST(GateTest, AccountsOutliveThreadsAndGates) {
  FakeDevice device;
  std::uint64_t passed = 0;
  for (int round = 0; round < 3; ++round) {
    Gate gate(make_pacing_law("open"), device);
    for (int i = 0; i < 3; ++i) {
      std::thread([&gate] {
        EXPECT_TRUE(gate.try_enter_op(g_add));
        gate.leave_op(g_add);
      }).join();
    }
    passed += gate.stats().ops_seen;
    EXPECT_TRUE(gate.try_enter_op(g_add));  // this thread keeps accounts of gates that are gone
    gate.leave_op(g_add);
  }
  EXPECT_EQ(passed, 9U);
}

}  // namespace
}  // namespace commensal::gate_test
