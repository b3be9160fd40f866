// SPDX-License-Identifier: Apache-2.0
// What an op is charged: the device's time, not calls and not waiting; and that what a closed gate
// leaves running is bounded.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/torch_ext/fake_clock.h"
#include "tests/torch_ext/gate/fake_device.h"
#include "tests/torch_ext/gate/fake_streams.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/gate/work_in_flight.h"

namespace commensal::metering_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeClock;
using testing::FakeDevice;
using testing::FakeStreams;

// --- ops on a CPU: time of their threads -----------------------------------------------------

/// The time of the one thread that a test has.
class FakeThreadTime final : public ThreadTime {
 public:
  [[nodiscard]] Duration total() const noexcept override {
    ++asked;
    return ran;
  }
  Duration ran{};
  mutable int asked = 0;
};

class ThreadTimeTest : public ::testing::Test {
 protected:
  /// An op that takes so long, for a part of which its thread runs.
  void run_op(OpDuration& op, Duration takes, Duration runs) {
    ASSERT_TRUE(gate_.try_enter_op(op));
    clock_.advance(takes);
    thread_.ran += runs;
    gate_.leave_op(op);
  }

  FakeClock clock_;
  FakeDevice device_;
  FakeThreadTime thread_;
  Gate gate_{make_pacing_law("open"), device_, clock_,
             [this](Duration time, const Doorbell&) { clock_.advance(time); },
             DeviceTime{.threads = &thread_, .work = nullptr}};
  /// Times are known to about a nanosecond an op.
  static void expect_about(Duration got, Duration wanted) {
    EXPECT_NEAR(static_cast<double>(got.count()), static_cast<double>(wanted.count()), 2000.0);
  }
  OpDuration mm_;
};

TEST_F(ThreadTimeTest, C4_AnOpThatWaitsIsChargedForWhatItsThreadRan) {
  run_op(mm_, milliseconds{10}, milliseconds{10});
  expect_about(gate_.stats().busy_total, milliseconds{10});
  run_op(mm_, milliseconds{10}, milliseconds{2});
  expect_about(gate_.stats().busy_total, milliseconds{12});
  expect_about(gate_.stats().off_device_total, milliseconds{8});
  EXPECT_LT(mm_.predicted(), milliseconds{10}) << "a wait is no part of its length either";
}

TEST_F(ThreadTimeTest, C4_AShortOpThatIsHeldUpIsNoLongOp) {
  for (int i = 0; i < 100; ++i) run_op(mm_, microseconds{50}, microseconds{50});
  expect_about(mm_.predicted(), microseconds{50});
  run_op(mm_, milliseconds{30}, microseconds{50});  // another process had the core
  EXPECT_LE(mm_.predicted(), microseconds{600}) << "known to within how often the thread is asked";
  EXPECT_LE(gate_.stats().busy_total, microseconds{5000 + 50 + 1100});
}

TEST_F(ThreadTimeTest, ShortOpsAskTheKernelOnceAMillisecond) {
  for (int i = 0; i < 1000; ++i) run_op(mm_, microseconds{10}, microseconds{10});
  EXPECT_LE(thread_.asked, 12);
  expect_about(gate_.stats().busy_total, milliseconds{10});
}

TEST_F(ThreadTimeTest, WhatAThreadRanBetweenOpsIsNotTheirs) {
  run_op(mm_, milliseconds{1}, milliseconds{1});
  clock_.advance(seconds{1});
  thread_.ran += seconds{1};  // its own Python
  run_op(mm_, milliseconds{5}, milliseconds{1});
  expect_about(gate_.stats().busy_total, milliseconds{2});
}

/// A job of ops of that length that may use half of the device, and needs 20 us of it for each time
/// that it is put to sleep. Returns for which part of the time it is on the device.
double share_used(const ThreadTime* threads, FakeThreadTime& thread, Duration length) {
  constexpr Duration kWakeUp = microseconds{20};
  FakeClock clock;
  FakeDevice device;
  const auto run = [&](Duration time) {
    clock.advance(time);
    thread.ran += time;
  };
  const auto sleep = [&](Duration time, const Doorbell& = {}) {
    clock.advance(time);
    run(kWakeUp);
  };
  Gate gate(make_pacing_law("duty_cycle"), device, clock, sleep, DeviceTime{threads, nullptr});
  gate.set_share(0.0, 0.5);
  OpDuration op;
  const TimePoint begin = clock.now();
  while (clock.now() - begin < seconds{10}) {
    if (!gate.try_enter_op(op)) gate.wait_op(op);
    run(length);
    gate.leave_op(op);
  }
  return std::chrono::duration<double>(thread.ran) / (clock.now() - begin);
}

TEST(ThreadTimeAndMaximum, FallingAsleepAndWakingUpCounts) {
  FakeThreadTime thread;
  EXPECT_NEAR(share_used(&thread, thread, microseconds{50}), 0.5, 0.01);
  FakeThreadTime of_long_ops;
  EXPECT_NEAR(share_used(&of_long_ops, of_long_ops, microseconds{500}), 0.5, 0.01);
}

TEST(ThreadTimeAndMaximum, WithoutThreadTimesItDoesNot) {
  FakeThreadTime thread;
  EXPECT_GT(share_used(nullptr, thread, microseconds{50}), 0.52);
}

/// Two threads: one's op waits for the end of the other's, as a reentrant backward does. Returns
/// what they were taken to need: who waits, who works.
std::pair<Duration, Duration> wait_for_anothers_op(const DeviceTime& time) {
  FakeDevice device;
  Gate gate(make_pacing_law("open"), device, SteadyClock::instance(), {}, time);
  OpDuration waits;
  OpDuration works;
  EXPECT_TRUE(gate.try_enter_op(waits));
  std::thread([&] {
    EXPECT_TRUE(gate.try_enter_op(works));
    const Duration begin = CpuThreadTime::instance().total();
    while (CpuThreadTime::instance().total() - begin < milliseconds{40}) {
    }
    gate.leave_op(works);
  }).join();
  gate.leave_op(waits);
  return {waits.predicted(), works.predicted()};
}

TEST(ThreadTimeOfThreads, C4_AnOpThatWaitsForAnotherThreadsOpIsNotChargedTwice) {
  const auto [waits, works] = wait_for_anothers_op(DeviceTime::of_cpu(SteadyClock::instance()));
  EXPECT_GE(works, milliseconds{39});
  EXPECT_LT(waits, works / 2);
}

TEST(ThreadTimeOfThreads, C4_WithoutThreadTimesItIs) {
  const auto [waits, works] = wait_for_anothers_op(DeviceTime{});
  EXPECT_GE(waits, works);
}

// --- ops on a device with queues ---------------------------------------------------------------

constexpr Duration kHostTime = microseconds{10};  // of a call that issues an op

class QueuedWorkTest : public ::testing::Test {
 protected:
  QueuedWorkTest() { use(DeviceTime{.threads = nullptr, .work = &streams_}); }

  void use(const DeviceTime& time) {
    gate_ = std::make_unique<Gate>(
        make_pacing_law("gap"), device_, clock_,
        [this](Duration sleep, const Doorbell&) {
          clock_.advance(sleep);
          on_sleep_();
        },
        time);
  }
  /// Issues an op that runs for so long. @return when it was issued.
  TimePoint run_op(OpDuration& op, Duration runs) {
    clock_.advance(kHostTime);
    if (!gate_->try_enter_op(op)) gate_->wait_op(op);
    const TimePoint issued = clock_.now();
    streams_.issue(runs);
    gate_->leave_op(op);
    return issued;
  }
  /// A wait that is expected to last for so long, and what may be in flight meanwhile.
  void open_gap(Duration length, Duration bound) {
    clock_.advance(milliseconds{1});
    device_.gap(clock_.now() - milliseconds{1}, clock_.now() + length);
    device_.set([bound](DeviceObservation& seen) { seen.gap_rules.in_flight = bound; });
  }
  /// Issues ops into a gap of 50 ms until it ends. @return what runs on after its end.
  Duration left_running(Duration bound) {
    for (int i = 0; i < 50; ++i) (void)run_op(mm_, microseconds{300});  // learns their length
    clock_.advance(seconds{1});
    open_gap(seconds{1}, bound);  // the wait ends earlier than foreseen
    const TimePoint end = clock_.now() + milliseconds{50};
    Duration left{};
    on_sleep_ = [&] {
      if (clock_.now() < end || left != Duration{}) return;
      left = streams_.backlog();
      device_.set([](DeviceObservation& seen) { seen.guaranteed_present = false; });
    };
    while (clock_.now() < end) (void)run_op(mm_, microseconds{300});
    return left != Duration{} ? left : streams_.backlog();
  }

  /// Issues ops in a turn of 50 ms until it ends, no guaranteed job being there. @return what runs
  /// on after it.
  Duration left_in_next_turn(Duration bound) {
    gate_->set_law(make_pacing_law("token_window"));
    for (int i = 0; i < 50; ++i) (void)run_op(mm_, microseconds{300});  // learns their length
    clock_.advance(seconds{1});
    const TimePoint end = clock_.now() + milliseconds{50};
    device_.set([&](DeviceObservation& seen) {
      seen.coordinator_alive = true;
      seen.turn_until = end;
      seen.gap_rules.in_flight = bound;
    });
    Duration left{};
    on_sleep_ = [&] {
      if (clock_.now() < end || left != Duration{}) return;
      left = streams_.backlog();
      device_.set([](DeviceObservation& seen) { seen.turn_until = TimePoint{}; });
    };
    while (clock_.now() < end) (void)run_op(mm_, microseconds{300});
    return left != Duration{} ? left : streams_.backlog();
  }

  /// Share of the device's time that ops of a length get beside a busy guaranteed job, of 2 %.
  double trickle_of(OpDuration& op, Duration length) {
    device_.burst(clock_.now());
    device_.set([](DeviceObservation& seen) { seen.trickle = 0.02; });
    (void)run_op(op, length);
    clock_.advance(seconds{2});
    const TimePoint begin = clock_.now();
    const Duration ran = streams_.busy_total();
    while (clock_.now() - begin < seconds{30}) (void)run_op(op, length);
    return std::chrono::duration<double>(streams_.busy_total() - ran) /
           std::chrono::duration<double>(clock_.now() - begin);
  }

  FakeClock clock_;
  FakeDevice device_;
  FakeStreams streams_{clock_};
  std::function<void()> on_sleep_ = [] {};
  OpDuration mm_;
  OpDuration add_;
  std::unique_ptr<Gate> gate_;  // corrects them until it ends
};

TEST_F(QueuedWorkTest, AProcessThatBeginsToUseAGpuIsMeteredByItsTimeFromThenOn) {
  DeviceTime time = DeviceTime::of_cpu(clock_);
  time.later = &streams_;
  use(time);
  (void)run_op(mm_, milliseconds{3});
  EXPECT_LT(mm_.predicted(), milliseconds{1}) << "on a CPU it is done on return: in no time";
  EXPECT_EQ(gate_->stats().in_flight, Duration::zero());
  ASSERT_TRUE(gate_->try_enter_op(add_));  // entered by the one time, left by the other
  gate_->go_by_work();
  gate_->leave_op(add_);
  // What its ops took on the CPU is forgotten with the first chunk, of 64 of them at the most.
  for (int i = 0; i < 80; ++i) (void)run_op(mm_, milliseconds{3});
  clock_.advance(seconds{1});
  open_gap(seconds{1}, milliseconds{20});
  (void)run_op(mm_, milliseconds{3});
  (void)run_op(mm_, milliseconds{3});
  EXPECT_GT(mm_.predicted(), milliseconds{2});
  EXPECT_GT(gate_->stats().in_flight, Duration::zero());
}

TEST_F(QueuedWorkTest, WhereNoOtherTimeIsKnownTheOneThatThereIsGoesOn) {
  use(DeviceTime::of_cpu(clock_));
  gate_->go_by_work();
  (void)run_op(mm_, milliseconds{3});
  EXPECT_EQ(gate_->stats().in_flight, Duration::zero());
}

TEST_F(QueuedWorkTest, AHostThatIsSlowDoesNotMakeItsOpsLonger) {
  open_gap(seconds{10}, microseconds{500});
  Duration longest{};
  const auto run = [&](int ops, Duration runs, Duration hesitates) {
    longest = {};
    for (int i = 0; i < ops; ++i) {
      clock_.advance(microseconds{50});
      if (i % 16 == 15) clock_.advance(hesitates);
      (void)run_op(mm_, runs);
      longest = std::max(longest, mm_.predicted());
    }
  };
  run(200, microseconds{35}, {});
  const Duration known = mm_.predicted();
  EXPECT_LE(known, microseconds{40}) << "not the 60 us from one call to the next";
  run(200, microseconds{35}, microseconds{700});
  EXPECT_LE(longest, known);
  run(200, microseconds{240}, microseconds{700});
  EXPECT_GT(mm_.predicted(), microseconds{150}) << "what really takes longer is seen";
}

TEST_F(QueuedWorkTest, C1_WhatRunsOnAfterClosingIsTheBoundAndAnOp) {
  const Duration left = left_running(milliseconds{2});
  EXPECT_GT(left, milliseconds{1}) << "the bound is made use of";
  EXPECT_LE(left, milliseconds{2} + microseconds{300});
}

TEST_F(QueuedWorkTest, C1_WithoutABoundTheQueueRunsOn) {
  EXPECT_GT(left_running(Duration::zero()), milliseconds{100});
}

TEST_F(QueuedWorkTest, C1_WhatRunsOnInTheNextTurnIsTheBoundAndAnOp) {
  const Duration left = left_in_next_turn(microseconds{500});
  EXPECT_GT(left, microseconds{200}) << "the bound is made use of";
  EXPECT_LE(left, microseconds{500} + microseconds{300});
}

TEST_F(QueuedWorkTest, C1_WithoutABoundTheQueueTakesTheNextTurn) {
  EXPECT_GT(left_in_next_turn(Duration::zero()), milliseconds{100});
}

TEST_F(QueuedWorkTest, C2_TheDeviceHasWorkAllTheTimeWhileTheGateIsOpen) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, microseconds{50});
  clock_.advance(seconds{1});
  open_gap(seconds{10}, microseconds{500});
  const Duration ran = streams_.busy_total();
  const TimePoint begin = clock_.now();
  while (clock_.now() - begin < milliseconds{500}) (void)run_op(mm_, microseconds{50});
  EXPECT_GE((streams_.busy_total() - ran) * 100, (clock_.now() - begin) * 99);
}

TEST_F(QueuedWorkTest, C2_ABoundBelowAnOpLeavesBubbles) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, microseconds{50});
  clock_.advance(seconds{1});
  open_gap(seconds{10}, microseconds{20});
  const Duration ran = streams_.busy_total();
  const TimePoint begin = clock_.now();
  while (clock_.now() - begin < milliseconds{500}) (void)run_op(mm_, microseconds{50});
  EXPECT_LT((streams_.busy_total() - ran) * 100, (clock_.now() - begin) * 80);
}

TEST_F(QueuedWorkTest, C3_AnOpIsNotIssuedBehindMoreThanTheGapHasRoomFor) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, milliseconds{1});
  clock_.advance(seconds{1});
  open_gap(milliseconds{20}, Duration::zero());
  const TimePoint end = clock_.now() + milliseconds{20};
  on_sleep_ = [&] {
    device_.set([](DeviceObservation& seen) { seen.guaranteed_present = false; });
  };
  while (gate_->try_enter_op(mm_)) {
    clock_.advance(kHostTime);
    streams_.issue(milliseconds{1});
    gate_->leave_op(mm_);
  }
  EXPECT_LE(clock_.now() + streams_.backlog(), end + kHostTime);
  EXPECT_GE(streams_.backlog(), milliseconds{17});
}

TEST_F(QueuedWorkTest, C4_ShortAndLongOpsGetTheSameShareOfTheDevice) {
  EXPECT_NEAR(trickle_of(mm_, milliseconds{10}), 0.02, 0.004);
  EXPECT_NEAR(trickle_of(add_, microseconds{10}), 0.02, 0.004);
}

TEST_F(QueuedWorkTest, TheTrickleIsChargedForTheChangesBetweenProcesses) {
  device_.set([](DeviceObservation& seen) { seen.gap_rules.change = microseconds{300}; });
  const double share = trickle_of(mm_, microseconds{100});
  EXPECT_NEAR(share, 0.02 * 100.0 / (100.0 + 300.0), 0.001);
}

TEST_F(QueuedWorkTest, WhatRanInTurnsWithAGuaranteedJobTellsNothingNewOfAnOp) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, milliseconds{1});  // alone
  clock_.advance(seconds{1});
  device_.burst(clock_.now());
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.02; });
  gate_->refresh();
  ASSERT_EQ(mm_.predicted(), milliseconds{1});
  for (int i = 0; i < 20; ++i) (void)run_op(mm_, milliseconds{3});  // two of them the other's
  clock_.advance(seconds{1});
  gate_->refresh();
  EXPECT_EQ(mm_.predicted(), milliseconds{1});
}

TEST_F(QueuedWorkTest, AnOpThatOverranItsGapTellsNothingNewEither) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, milliseconds{1});
  clock_.advance(seconds{1});
  open_gap(milliseconds{20}, Duration::zero());
  (void)run_op(mm_, milliseconds{4});  // the gap ended before it did
  device_.burst(clock_.now() + milliseconds{1});
  clock_.advance(milliseconds{10});
  gate_->refresh();
  EXPECT_EQ(mm_.predicted(), milliseconds{1});
  open_gap(milliseconds{20}, Duration::zero());
  (void)run_op(mm_, milliseconds{4});
  clock_.advance(milliseconds{10});
  gate_->refresh();
  EXPECT_GT(mm_.predicted(), milliseconds{2}) << "within a gap it is its own length";
}

TEST_F(QueuedWorkTest, AnOpThatWasFirstSeenInTurnsIsTakenForTheHalfOfIt) {
  device_.burst(clock_.now());
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.02; });
  (void)run_op(mm_, milliseconds{40});
  clock_.advance(seconds{1});
  gate_->refresh();
  EXPECT_EQ(mm_.predicted(), milliseconds{20}) << "so that it fits a gap in which it is measured";
}

TEST_F(QueuedWorkTest, WhatOthersHadOfTheDeviceIsChargedWithinBounds) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, microseconds{300});
  clock_.advance(seconds{1});
  device_.burst(clock_.now());
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.02; });
  gate_->refresh();
  const Duration before = gate_->stats().busy_total;
  (void)run_op(mm_, milliseconds{50});  // others had it nearly all the time
  clock_.advance(seconds{1});
  gate_->refresh();
  EXPECT_EQ(gate_->stats().busy_total - before, WorkInFlight::kMostBeside * microseconds{300});
}

TEST_F(QueuedWorkTest, C4_ChargedForTheCallLongOpsTakeTheDevice) {
  use(DeviceTime{});  // an op that returned is taken to be done
  EXPECT_GT(trickle_of(mm_, milliseconds{10}), 0.5);
}

TEST_F(QueuedWorkTest, C5_AMarkerIsForAChunkOfWork) {
  for (int i = 0; i < 10; ++i) (void)run_op(mm_, microseconds{10});
  clock_.advance(seconds{1});
  (void)run_op(mm_, microseconds{10});
  const auto before = streams_.markers();
  for (int i = 0; i < 1000; ++i) (void)run_op(mm_, microseconds{10});
  EXPECT_LE(streams_.markers() - before, 60U);
  EXPECT_GE(streams_.markers() - before, 40U);
}

TEST_F(QueuedWorkTest, C5_OnlyWhatWasNeverSeenIsMarkedOpByOp) {
  std::vector<OpDuration> ops(1000);
  for (OpDuration& op : ops) (void)run_op(op, microseconds{10});
  EXPECT_GE(streams_.markers(), 1000U);
  clock_.advance(seconds{1});
  gate_->refresh();
  const auto before = streams_.markers();
  for (OpDuration& op : ops) (void)run_op(op, microseconds{10});
  EXPECT_LE(streams_.markers() - before, 60U);
}

TEST_F(QueuedWorkTest, PredictionsAreCorrectedByWhatTheDeviceSays) {
  for (int i = 0; i < 200; ++i) {
    (void)run_op(add_, microseconds{20});
    (void)run_op(mm_, microseconds{900});
    clock_.advance(milliseconds{2});
    gate_->refresh();
  }
  EXPECT_NEAR(static_cast<double>(add_.predicted().count()), 20e3, 2e3);
  EXPECT_NEAR(static_cast<double>(mm_.predicted().count()), 900e3, 20e3);
  for (int i = 0; i < 100; ++i) {  // its input became smaller
    (void)run_op(mm_, microseconds{100});
    clock_.advance(milliseconds{2});
    gate_->refresh();
  }
  EXPECT_NEAR(static_cast<double>(mm_.predicted().count()), 100e3, 10e3);
  EXPECT_NEAR(std::chrono::duration<double>(gate_->stats().busy_total).count(),
              std::chrono::duration<double>(streams_.busy_total()).count(), 2e-3);
}

TEST_F(QueuedWorkTest, QueuesOfOneThreadCountTogether) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, microseconds{300});
  clock_.advance(seconds{1});
  open_gap(seconds{1}, milliseconds{1});
  for (std::size_t i = 0; i < 200; ++i) {
    streams_.use_queue(i % 3);
    (void)run_op(mm_, microseconds{300});
    ASSERT_LE(streams_.backlog(), microseconds{1300});
  }
}

TEST_F(QueuedWorkTest, ADeviceThatMakesNoMarkersIsBelievedWhatWasForetold) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, microseconds{300});
  clock_.advance(seconds{1});
  open_gap(seconds{10}, milliseconds{1});
  streams_.fail_to_mark();
  const TimePoint begin = clock_.now();
  for (int i = 0; i < 1000; ++i) (void)run_op(mm_, microseconds{300});
  EXPECT_LT(clock_.now() - begin, seconds{1}) << "nothing waits for a marker that does not exist";
}

TEST_F(QueuedWorkTest, WhatAThreadLeftBehindDoesNotCloseTheGateForEver) {
  for (int i = 0; i < 50; ++i) {
    (void)run_op(mm_, microseconds{100});
    (void)run_op(add_, microseconds{60});
  }
  clock_.advance(seconds{1});
  open_gap(seconds{100}, microseconds{150});
  const TimePoint begin = clock_.now();
  on_sleep_ = [&] {  // or this test would not end
    if (clock_.now() - begin > seconds{10}) gate_->disarm_in_child();
  };
  std::promise<void> end;
  const std::shared_future<void> over = end.get_future().share();
  std::atomic<int> issued{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {  // too little for a marker each, together more than the bound
    threads.emplace_back([&] {
      (void)run_op(add_, microseconds{60});
      issued.fetch_add(1);
      over.wait();
    });
    while (issued.load() <= i) std::this_thread::yield();
  }
  for (int i = 0; i < 100; ++i) (void)run_op(mm_, microseconds{100});
  EXPECT_LT(clock_.now() - begin, milliseconds{300});
  end.set_value();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(QueuedWorkTest, WhatAThreadForgotWhileItWaitedIsMeasuredTheNextTime) {
  for (int i = 0; i < 50; ++i) (void)run_op(add_, microseconds{20});  // learns their length
  clock_.advance(seconds{1});
  open_gap(seconds{100}, milliseconds{1});
  gate_->refresh();
  const Duration counted = gate_->stats().busy_total;
  const Duration ran = streams_.busy_total();
  for (int i = 0; i < 10; ++i) {  // another input: each is waited for, too little for a marker
    (void)run_op(add_, milliseconds{90});
    clock_.advance(milliseconds{100});
    gate_->refresh();
  }
  // The first was believed what was foretold.
  const Duration seen = gate_->stats().busy_total - counted;
  EXPECT_GE(seen, streams_.busy_total() - ran - milliseconds{91});
  EXPECT_LE(seen, streams_.busy_total() - ran) << "pauses are no work";
  EXPECT_GE(add_.predicted(), milliseconds{10});
}

TEST_F(QueuedWorkTest, AnOpThatWaitsForWhatIsForgottenMeanwhileIsMeasured) {
  for (int i = 0; i < 50; ++i) {
    (void)run_op(add_, microseconds{20});
    (void)run_op(mm_, microseconds{20});
  }
  clock_.advance(seconds{1});
  open_gap(seconds{100}, milliseconds{1});
  gate_->refresh();
  (void)run_op(add_, microseconds{20});  // measured alone
  clock_.advance(milliseconds{1});
  const Duration counted = gate_->stats().busy_total;
  (void)run_op(add_, microseconds{20});
  ASSERT_TRUE(gate_->try_enter_op(mm_));
  streams_.issue(milliseconds{90});
  clock_.advance(milliseconds{80});  // on the host
  gate_->refresh();                  // another thread's
  gate_->leave_op(mm_);
  clock_.advance(milliseconds{20});
  gate_->refresh();
  EXPECT_NEAR(std::chrono::duration<double>(gate_->stats().busy_total - counted).count(), 90e-3,
              1e-3);
  EXPECT_EQ(gate_->stats().in_flight, Duration::zero());
}

// A thread calls its backward pass, whose ops another thread issues, and goes on afterwards.
TEST_F(QueuedWorkTest, WhatOthersIssueMeanwhileIsNotTakenForAThreadsOwnOps) {
  OpDuration loss;
  OpDuration update;
  for (int step = 0; step < 20; ++step) {
    for (int i = 0; i < 3; ++i) (void)run_op(loss, microseconds{10});
    std::thread backward([&] {
      for (int i = 0; i < 40; ++i) (void)run_op(mm_, microseconds{500});
    });
    backward.join();
    clock_.advance(streams_.backlog());
    gate_->refresh();
    for (int i = 0; i < 3; ++i) (void)run_op(update, microseconds{10});
    clock_.advance(milliseconds{5});  // the next batch is loaded
    gate_->refresh();
  }
  EXPECT_LE(loss.predicted(), microseconds{50});
  EXPECT_LE(update.predicted(), microseconds{50});
  EXPECT_NEAR(static_cast<double>(mm_.predicted().count()), 500e3, 50e3);
  EXPECT_NEAR(std::chrono::duration<double>(gate_->stats().busy_total).count(),
              std::chrono::duration<double>(streams_.busy_total()).count(), 0.02);
}

// Its time is not that of what the thread issued before it.
TEST_F(QueuedWorkTest, AnOpThatWasNeverSeenIsMeasuredByItself) {
  open_gap(seconds{100}, milliseconds{10});
  for (int i = 0; i < 50; ++i) (void)run_op(add_, microseconds{10});
  clock_.advance(seconds{1});
  gate_->refresh();
  for (int i = 0; i < 3; ++i) (void)run_op(add_, microseconds{10});
  (void)run_op(mm_, milliseconds{5});
  clock_.advance(seconds{1});
  gate_->refresh();
  EXPECT_LE(add_.predicted(), microseconds{20});
  EXPECT_NEAR(static_cast<double>(mm_.predicted().count()), 5e6, 0.1e6);
}

TEST_F(QueuedWorkTest, TheOpThatWaitsIsTold) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, milliseconds{5});
  clock_.advance(seconds{1});
  EXPECT_EQ(gate_->stats().waiting_op, Duration::zero());
  device_.burst(clock_.now());
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.02; });
  Duration told{};
  on_sleep_ = [&] { told = std::max(told, gate_->stats().waiting_op); };
  for (int i = 0; i < 5; ++i) (void)run_op(mm_, milliseconds{5});
  EXPECT_NEAR(static_cast<double>(told.count()), 5e6, 0.5e6);
  EXPECT_EQ(gate_->stats().waiting_op, Duration::zero());
}

TEST_F(QueuedWorkTest, WhatIsSavedForAnOpThatIsHeldIsNotLostByPauses) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, milliseconds{200});
  clock_.advance(seconds{1});
  device_.burst(clock_.now());
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.02; });
  const TimePoint begin = clock_.now();
  on_sleep_ = [&] {
    const Duration in_turn = (clock_.now() - begin) % seconds{4};
    device_.set([&](DeviceObservation& seen) { seen.paused = in_turn > seconds{2}; });
    if (clock_.now() - begin > seconds{60}) gate_->disarm_in_child();  // or this would not end
  };
  (void)run_op(mm_, milliseconds{200});  // saved for in ten seconds
  EXPECT_LT(clock_.now() - begin, seconds{20});
}

TEST_F(QueuedWorkTest, AnOpAtTheBoundSaysSo) {
  for (int i = 0; i < 50; ++i) (void)run_op(mm_, milliseconds{1});
  clock_.advance(seconds{1});
  open_gap(seconds{1}, milliseconds{1});
  (void)run_op(mm_, milliseconds{1});
  gate_->refresh();
  EXPECT_FALSE(gate_->try_enter_op(mm_));
  const GateStats stats = gate_->stats();
  EXPECT_EQ(stats.reason, "work in flight is at its bound");
  EXPECT_EQ(stats.in_flight, milliseconds{1});
  EXPECT_EQ(stats.in_flight_bound, milliseconds{1});
  gate_->wait_op(mm_);
  gate_->leave_op(mm_);
}

// --- several threads on a CPU --------------------------------------------------------------------

TEST(BoundOnACpuTest, OpsOfSeveralThreadsCountTogether) {
  FakeClock clock;
  FakeDevice device;
  Gate gate(make_pacing_law("gap"), device, clock,
            [&](Duration time, const Doorbell&) { clock.advance(time); });
  OpDuration op;
  OpDuration other;
  EXPECT_TRUE(gate.try_enter_op(op));
  clock.advance(milliseconds{2});
  gate.leave_op(op);  // alone: 2 ms
  clock.advance(milliseconds{1});
  device.gap(clock.now() - milliseconds{1}, clock.now() + seconds{1});
  const auto second_thread_may = [&] {
    bool may = false;
    std::thread([&] {
      may = gate.try_enter_op(other);
      if (may) gate.leave_op(other);
    }).join();
    return may;
  };
  EXPECT_TRUE(gate.try_enter_op(op));
  EXPECT_TRUE(second_thread_may()) << "no bound";
  device.set([](DeviceObservation& seen) { seen.gap_rules.in_flight = milliseconds{3}; });
  clock.advance(microseconds{100});  // the decision that is in force runs out
  EXPECT_TRUE(second_thread_may()) << "1.9 of 3 ms are in flight";
  device.set([](DeviceObservation& seen) { seen.gap_rules.in_flight = microseconds{1500}; });
  clock.advance(microseconds{100});
  EXPECT_FALSE(second_thread_may()) << "1.8 of 1.5 ms";
  clock.advance(microseconds{500});
  EXPECT_TRUE(second_thread_may()) << "1.3 ms are left of it";
  gate.leave_op(op);
}

}  // namespace
}  // namespace commensal::metering_test
