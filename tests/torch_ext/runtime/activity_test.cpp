// SPDX-License-Identifier: Apache-2.0
// What a job publishes about its waits.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/torch_ext/fake_clock.h"
#include "tests/torch_ext/sleeping_thread.h"
#include "torch_ext/gate/doorbell.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal::activity_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeClock;
using testing::SleepingThread;
using wire::Activity;
using wire::GapPhase;

class ActivityTest : public ::testing::Test {
 protected:
  void wait(Duration length) {
    recorder_.wait_begin();
    clock_.advance(length);
    recorder_.wait_end();
  }
  void fetch(Duration length) {
    recorder_.fetch_begin();
    clock_.advance(length);
    recorder_.wait_end();
  }
  /// Trains on the batch that was fetched, and ends the step.
  void train() {
    recorder_.touch();
    clock_.advance(milliseconds{20});
    recorder_.worked();
    recorder_.trained();
    recorder_.boundary_begin();
  }
  [[nodiscard]] GapPhase phase() const { return static_cast<GapPhase>(page_.wait_phase.load()); }
  [[nodiscard]] std::uint64_t waits_of(GapPhase wanted) const {
    for (const GapSummary& gap : recorder_.gaps()) {
      if (gap.phase == wanted) return gap.waits;
    }
    return 0;
  }
  [[nodiscard]] Activity activity() const { return static_cast<Activity>(page_.activity.load()); }

  FakeClock clock_;
  OwnPage own_{JobId{"job-1"}, JobClass::kGuaranteed, 3};
  wire::JobPage& page_ = own_.page();
  ActivityRecorder recorder_{page_, clock_};
};

/// A device's queue that comes past a mark when a test says so.
class SlowQueue final : public DeviceQueue {
 public:
  explicit SlowQueue(wire::JobPage& page) : page_(page) {}
  bool mark(std::uint64_t number) noexcept override {
    if (!fails) marked = number;
    return !fails;
  }
  void pass() { page_.queue_done.store(marked); }
  bool fails = false;
  std::uint64_t marked = 0;

 private:
  wire::JobPage& page_;
};

TEST_F(ActivityTest, AWaitCountsOnceTheDeviceHasDoneItsWork) {
  SlowQueue queue{page_};
  recorder_.follow_queue(queue);
  const auto waits = [&] { return wire::present_wait(page_, to_page_time(clock_.now())).waits; };
  recorder_.wait_begin();
  EXPECT_FALSE(waits()) << "the device still works";
  queue.pass();
  EXPECT_TRUE(waits());
  recorder_.wait_end();
  EXPECT_FALSE(waits());
  recorder_.wait_begin();
  EXPECT_FALSE(waits()) << "what was done before is not this wait's work";
  queue.pass();
  EXPECT_TRUE(waits());
}

TEST_F(ActivityTest, WhereTheQueueCannotBeMarkedTheJobLooksBusy) {
  SlowQueue queue{page_};
  recorder_.follow_queue(queue);
  const auto waits = [&] { return wire::present_wait(page_, to_page_time(clock_.now())).waits; };
  queue.fails = true;
  recorder_.wait_begin();
  queue.pass();
  EXPECT_FALSE(waits());
  recorder_.wait_end();
  queue.fails = false;
  recorder_.wait_begin();
  queue.pass();
  EXPECT_TRUE(waits());
}

TEST_F(ActivityTest, ThePageSaysWhoseItIs) {
  EXPECT_STREQ(wire::check_page(&page_, wire::kPageSize, wire::kJobPageMagic), "");
  EXPECT_STREQ(page_.job_id, "job-1");
  EXPECT_EQ(page_.rank, 3U);
  EXPECT_EQ(activity(), Activity::kUnknown);
}

TEST_F(ActivityTest, AFetchIsAWait) {
  recorder_.wait_begin();
  EXPECT_EQ(activity(), Activity::kWaiting);
  EXPECT_EQ(page_.activity_since_ns.load(), to_page_time(clock_.now()));
  EXPECT_EQ(page_.wait_expected_end_ns.load(), 0U) << "no wait was seen before";
  clock_.advance(milliseconds{30});
  recorder_.wait_end();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(page_.waits_total.load(), 1U);
  EXPECT_EQ(page_.wait_ns_total.load(), 30'000'000U);
  EXPECT_EQ(page_.last_touch_ns.load(), to_page_time(clock_.now()));
}

/// Whether somebody who sleeps at a page's activity, as it is, is woken by something in that time.
bool wakes_a_sleeper(wire::JobPage& page, milliseconds patience,
                     const std::function<void()>& something) {
  const Doorbell bell{&page.activity, static_cast<std::uint32_t>(page.activity.load())};
  const std::atomic<std::uint32_t> generation{0};
  SleepingThread sleeper([&] { sleep_until_rung(generation, 0, bell, std::chrono::hours{1}); });
  something();
  const bool woken = sleeper.wakes_within(patience);
  while (!sleeper.awake()) {
    ring(page.activity);
    std::this_thread::sleep_for(milliseconds{1});
  }
  sleeper.join();
  return woken;
}

TEST_F(ActivityTest, AWaitRingsForThoseWhoSleepAtThePage) {
  recorder_.worked();
  constexpr milliseconds kLong{20'000};
  EXPECT_TRUE(wakes_a_sleeper(page_, kLong, [&] { recorder_.wait_begin(); }))
      << "nothing known of waits";
  recorder_.wait_end();
  for (int i = 0; i < 20; ++i) wait(milliseconds{30});
  EXPECT_TRUE(wakes_a_sleeper(page_, kLong, [&] { recorder_.wait_begin(); }));
  recorder_.wait_end();
  EXPECT_TRUE(wakes_a_sleeper(page_, kLong, [&] { (void)recorder_.request_end(); })) << "any phase";
}

TEST_F(ActivityTest, AWaitThatIsUsuallyTooShortForAGapDoesNotRing) {
  for (int i = 0; i < 20; ++i) wait(std::chrono::microseconds{300});
  EXPECT_FALSE(wakes_a_sleeper(page_, milliseconds{200}, [&] { recorder_.wait_begin(); }));
  EXPECT_EQ(activity(), Activity::kWaiting) << "it is told all the same";
}

TEST_F(ActivityTest, TheTypicalWaitIsALowQuantileOfRecentOnes) {
  for (int i = 0; i < 20; ++i) wait(milliseconds{i % 10 == 0 ? 1 : 30});
  EXPECT_EQ(page_.wait_typical_ns.load(), 30'000'000U) << "10 % short ones are below the quantile";
  for (int i = 0; i < 40; ++i) wait(milliseconds{i % 2 == 0 ? 2 : 30});
  EXPECT_EQ(page_.wait_typical_ns.load(), 2'000'000U);
  const std::uint64_t begin = to_page_time(clock_.now());
  recorder_.wait_begin();
  EXPECT_EQ(page_.wait_expected_end_ns.load(), begin + 2'000'000U);
}

TEST_F(ActivityTest, NestedFetchesAreOneWait) {
  recorder_.wait_begin();
  recorder_.wait_begin();
  recorder_.wait_end();
  EXPECT_EQ(activity(), Activity::kWaiting);
  recorder_.wait_end();
  EXPECT_EQ(page_.waits_total.load(), 1U);
  recorder_.wait_end();  // without a begin
  EXPECT_EQ(page_.waits_total.load(), 1U);
}

TEST_F(ActivityTest, WorkDuringAWaitShowsAtOnce) {
  recorder_.wait_begin();
  clock_.advance(milliseconds{5});
  recorder_.touch();
  EXPECT_EQ(page_.last_touch_ns.load(), to_page_time(clock_.now()));
}

TEST_F(ActivityTest, OutsideOfWaitsTouchesAreSampled) {
  wait(milliseconds{1});
  clock_.advance(milliseconds{5});
  for (int i = 0; i < 16; ++i) recorder_.touch();
  EXPECT_EQ(page_.last_touch_ns.load(), to_page_time(clock_.now()));
}

TEST_F(ActivityTest, TheFirstSignOfWorkEndsNotKnowing) {
  recorder_.worked();
  EXPECT_EQ(activity(), Activity::kBusy);
}

TEST_F(ActivityTest, BetweenTwoRequestsTheJobWaits) {
  EXPECT_EQ(recorder_.request_end(), Duration::zero()) << "its beginning was not seen";
  EXPECT_EQ(activity(), Activity::kWaiting);
  clock_.advance(milliseconds{40});
  recorder_.touch();
  EXPECT_EQ(activity(), Activity::kBusy) << "the first sign of work is the next request";
  EXPECT_EQ(page_.last_touch_ns.load(), to_page_time(clock_.now()));
  EXPECT_EQ(page_.wait_ns_total.load(), 40'000'000U);
  clock_.advance(milliseconds{7});
  EXPECT_EQ(recorder_.request_end(), milliseconds{7});
  clock_.advance(milliseconds{10});
  recorder_.worked();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(page_.waits_total.load(), 2U);
}

TEST_F(ActivityTest, WaitsBetweenRequestsAreExpectedToLastAsLongAsUsual) {
  for (int i = 0; i < 10; ++i) {
    (void)recorder_.request_end();
    clock_.advance(milliseconds{30});
    recorder_.touch();
    clock_.advance(milliseconds{5});
  }
  const std::uint64_t begin = to_page_time(clock_.now());
  (void)recorder_.request_end();
  EXPECT_EQ(page_.wait_expected_end_ns.load(), begin + 30'000'000U);
}

TEST_F(ActivityTest, AFetchEndsWhenItEndsWhateverIsTouchedMeanwhile) {
  (void)recorder_.request_end();
  recorder_.wait_begin();  // its next request comes from a data loader
  recorder_.touch();
  EXPECT_EQ(activity(), Activity::kWaiting);
  EXPECT_EQ(recorder_.request_end(), Duration::zero()) << "an end inside of a fetch is none";
  recorder_.wait_end();
  EXPECT_EQ(activity(), Activity::kBusy);
}

TEST_F(ActivityTest, AnEndSaidTwiceIsOneWait) {
  (void)recorder_.request_end();
  clock_.advance(milliseconds{10});
  EXPECT_EQ(recorder_.request_end(), Duration::zero());
  clock_.advance(milliseconds{10});
  recorder_.touch();
  EXPECT_EQ(page_.wait_ns_total.load(), 20'000'000U);
  EXPECT_EQ(page_.waits_total.load(), 1U);
}

// --- phases
// --------------------------------------------------------------------------------------

TEST_F(ActivityTest, FetchesWithoutTrainingInBetweenAreAnEvaluation) {
  for (int step = 0; step < 5; ++step) {
    fetch(milliseconds{10});
    EXPECT_EQ(phase(), GapPhase::kLoader) << step;
    train();
  }
  fetch(milliseconds{10});
  EXPECT_EQ(phase(), GapPhase::kLoader) << "nothing tells it from the next step's";
  for (int batch = 0; batch < 10; ++batch) {
    fetch(milliseconds{2});
    EXPECT_EQ(phase(), GapPhase::kEvaluation) << batch;
  }
  train();
  fetch(milliseconds{10});
  EXPECT_EQ(phase(), GapPhase::kLoader) << "it trains again";
  EXPECT_EQ(waits_of(GapPhase::kEvaluation), 10U);
  EXPECT_EQ(waits_of(GapPhase::kLoader), 7U);
}

TEST_F(ActivityTest, AccumulatedGradientsAreNoEvaluation) {
  for (int step = 0; step < 6; ++step) {
    for (int batch = 0; batch < 4; ++batch) {
      fetch(milliseconds{10});
      if (step >= 1) {
        EXPECT_EQ(phase(), GapPhase::kLoader) << step << " " << batch;
      }
    }
    train();
  }
  for (int batch = 0; batch < 5; ++batch) fetch(milliseconds{2});
  EXPECT_EQ(phase(), GapPhase::kEvaluation) << "more than an iteration takes";
}

TEST_F(ActivityTest, AJobThatNeverTrainsHasOneKindOfFetch) {
  for (int batch = 0; batch < 10; ++batch) fetch(milliseconds{2});
  EXPECT_EQ(waits_of(GapPhase::kEvaluation), 0U);
  EXPECT_EQ(waits_of(GapPhase::kLoader), 10U);
}

/// One low quantile over all waits would promise 2 ms where 40 are usual.
TEST_F(ActivityTest, EachPhaseIsExpectedToLastAsLongAsItsOwn) {
  for (int round = 0; round < 5; ++round) {
    for (int step = 0; step < 4; ++step) {
      fetch(milliseconds{40});
      train();
    }
    fetch(milliseconds{40});
    for (int batch = 0; batch < 20; ++batch) fetch(milliseconds{2});
    train();
  }
  recorder_.fetch_begin();
  EXPECT_EQ(phase(), GapPhase::kLoader);
  EXPECT_EQ(page_.wait_expected_end_ns.load(), to_page_time(clock_.now()) + 40'000'000U);
  recorder_.wait_end();
  recorder_.fetch_begin();
  EXPECT_EQ(phase(), GapPhase::kEvaluation);
  EXPECT_EQ(page_.wait_expected_end_ns.load(), to_page_time(clock_.now()) + 2'000'000U);
  recorder_.wait_end();
  EXPECT_EQ(page_.wait_typical_ns.load(), 2'000'000U) << "what it was before";
}

TEST_F(ActivityTest, FromTheEndOfAStepToTheNextSignOfWorkIsABoundary) {
  fetch(milliseconds{10});
  train();
  EXPECT_EQ(activity(), Activity::kWaiting);
  EXPECT_EQ(phase(), GapPhase::kBoundary);
  EXPECT_EQ(page_.wait_expected_end_ns.load(), 0U);
  clock_.advance(milliseconds{700});  // it prints, and sleeps
  recorder_.zeroed();
  EXPECT_EQ(activity(), Activity::kWaiting) << "setting gradients to none is no work";
  recorder_.touch();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(page_.last_touch_ns.load(), to_page_time(clock_.now()));
  EXPECT_EQ(waits_of(GapPhase::kBoundary), 1U);
  EXPECT_EQ(page_.waits_total.load(), 1U) << "the totals are of waits for data, as ever";
}

TEST_F(ActivityTest, ABoundaryThatTurnsOutToBeAFetchGoesOnWithoutAMomentOfWork) {
  fetch(milliseconds{10});
  train();
  clock_.advance(milliseconds{3});
  recorder_.fetch_begin();
  EXPECT_EQ(activity(), Activity::kWaiting);
  EXPECT_EQ(phase(), GapPhase::kLoader);
  EXPECT_EQ(page_.activity_since_ns.load(), to_page_time(clock_.now()));
  recorder_.touch();  // the loader makes its batch here
  EXPECT_EQ(activity(), Activity::kWaiting) << "only the fetch's end ends it";
  recorder_.wait_end();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(waits_of(GapPhase::kBoundary), 1U);
}

TEST_F(ActivityTest, OptimizersInTheBackwardPassAreNotABoundaryEach) {
  for (int parameter = 0; parameter < 100; ++parameter) {
    recorder_.boundary_begin();
    clock_.advance(std::chrono::microseconds{20});
    recorder_.touch();
  }
  EXPECT_LE(waits_of(GapPhase::kBoundary), 5U);
}

TEST_F(ActivityTest, AfterASynchronisationTheDeviceHasNothingToDoUntilTheNextSignOfWork) {
  SlowQueue queue{page_};
  recorder_.follow_queue(queue);
  const auto waits = [&] { return wire::present_wait(page_, to_page_time(clock_.now())).waits; };
  fetch(milliseconds{10});
  clock_.advance(milliseconds{5});
  recorder_.synchronised();
  EXPECT_EQ(phase(), GapPhase::kSynchronisation);
  EXPECT_FALSE(waits()) << "another stream still works";
  queue.pass();
  EXPECT_TRUE(waits());
  clock_.advance(milliseconds{7});
  recorder_.touch();
  EXPECT_FALSE(waits());
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(waits_of(GapPhase::kSynchronisation), 1U);
  EXPECT_EQ(page_.waits_total.load(), 1U) << "the totals are of waits for data, as ever";
}

TEST_F(ActivityTest, C19_AJobThatDoesNothingWaitsUntilItsNextSignOfWork) {
  const auto waits = [&] { return wire::present_wait(page_, to_page_time(clock_.now())); };
  recorder_.worked();
  clock_.advance(seconds{2});
  EXPECT_FALSE(waits().waits) << "nobody has said so yet";
  recorder_.rest_begin();
  EXPECT_TRUE(waits().waits);
  EXPECT_EQ(waits().phase, GapPhase::kUnknown);
  clock_.advance(seconds{60});
  recorder_.touch();
  EXPECT_FALSE(waits().waits);
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_TRUE(recorder_.gaps().empty()) << "how long somebody sat at a prompt predicts nothing";
  EXPECT_EQ(page_.waits_total.load(), 0U);
}

TEST_F(ActivityTest, AJobThatHasNotBegunYetMayRestToo) {
  recorder_.rest_begin();
  EXPECT_EQ(activity(), Activity::kWaiting);
  recorder_.worked();
  EXPECT_EQ(activity(), Activity::kBusy);
}

TEST_F(ActivityTest, ARestEndsWithProcessorTimeAndWithAnyWait) {
  recorder_.worked();
  recorder_.rest_begin();
  recorder_.rest_end();
  EXPECT_EQ(activity(), Activity::kBusy);
  recorder_.rest_begin();
  wait(milliseconds{10});
  EXPECT_EQ(activity(), Activity::kBusy);
  recorder_.rest_end();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(waits_of(GapPhase::kLoader), 1U);
  recorder_.rest_begin();
  recorder_.boundary_begin();
  EXPECT_EQ(activity(), Activity::kWaiting) << "it waits already";
  recorder_.touch();
  EXPECT_EQ(activity(), Activity::kBusy);
}

TEST_F(ActivityTest, WhatWaitsOrIsPausedDoesNotBeginToRest) {
  recorder_.wait_begin();
  recorder_.rest_begin();
  EXPECT_EQ(phase(), GapPhase::kLoader);
  recorder_.rest_end();
  EXPECT_EQ(activity(), Activity::kWaiting) << "the wait's own end ends it";
  recorder_.wait_end();
  page_.activity.store(static_cast<std::uint64_t>(Activity::kPaused));
  recorder_.rest_begin();
  EXPECT_EQ(activity(), Activity::kPaused);
}

TEST_F(ActivityTest, ARestCountsOnceTheDeviceHasDoneItsWork) {
  SlowQueue queue{page_};
  recorder_.follow_queue(queue);
  const auto waits = [&] { return wire::present_wait(page_, to_page_time(clock_.now())).waits; };
  recorder_.worked();
  recorder_.rest_begin();
  EXPECT_FALSE(waits()) << "the host sleeps until the device is done";
  queue.pass();
  EXPECT_TRUE(waits());
}

TEST_F(ActivityTest, WhileRequestsAreLookedForASynchronisationIsNoPause) {
  recorder_.find_requests();
  recorder_.worked();
  recorder_.synchronised();
  EXPECT_EQ(activity(), Activity::kBusy);
  recorder_.trained();  // it serves none
  recorder_.synchronised();
  EXPECT_EQ(phase(), GapPhase::kSynchronisation);
}

TEST_F(ActivityTest, ASynchronisationWithinAWaitOrSoonAfterOneIsNone) {
  recorder_.fetch_begin();
  recorder_.synchronised();
  EXPECT_EQ(phase(), GapPhase::kLoader);
  recorder_.wait_end();
  recorder_.boundary_begin();
  recorder_.synchronised();
  EXPECT_EQ(phase(), GapPhase::kBoundary) << "which goes on";
  for (int loss = 0; loss < 100; ++loss) {
    recorder_.touch();
    clock_.advance(std::chrono::microseconds{20});
    recorder_.synchronised();
  }
  EXPECT_LE(waits_of(GapPhase::kSynchronisation), 5U);
}

TEST_F(ActivityTest, AJobThatGoesOnAtOnceIsLookedAtMoreAndMoreRarely) {
  const auto told_in = [this](Duration time, Duration pause) {
    const std::uint64_t before = waits_of(GapPhase::kSynchronisation);
    for (const TimePoint end = clock_.now() + time; clock_.now() < end;) {
      recorder_.touch();
      clock_.advance(milliseconds{1} - pause);
      recorder_.synchronised();
      clock_.advance(pause);
      recorder_.worked();
    }
    return waits_of(GapPhase::kSynchronisation) - before;
  };
  recorder_.trained();
  const std::uint64_t at_first = told_in(milliseconds{20}, std::chrono::microseconds{50});
  EXPECT_GE(at_first, 3U);
  EXPECT_LE(at_first, 6U);
  EXPECT_NEAR(static_cast<double>(told_in(seconds{1}, std::chrono::microseconds{50})), 62.0, 2.0)
      << "every 16 ms";
  clock_.advance(milliseconds{20});
  recorder_.synchronised();
  clock_.advance(milliseconds{5});
  recorder_.worked();
  EXPECT_GE(told_in(milliseconds{20}, std::chrono::microseconds{50}), 3U)
      << "a pause that is of use has it looked at as at first";
}

TEST_F(ActivityTest, ACheckpointIsAGapOfItsOwn) {
  fetch(milliseconds{10});
  train();
  recorder_.wait_begin(GapPhase::kCheckpoint);
  EXPECT_EQ(phase(), GapPhase::kCheckpoint);
  clock_.advance(milliseconds{300});
  recorder_.touch();
  EXPECT_EQ(activity(), Activity::kWaiting) << "it copies what it writes";
  recorder_.wait_end();
  EXPECT_EQ(phase(), GapPhase::kBoundary) << "which is not the next step yet";
  EXPECT_EQ(activity(), Activity::kWaiting);
  recorder_.touch();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(waits_of(GapPhase::kCheckpoint), 1U);
}

TEST_F(ActivityTest, ACheckpointInTheMiddleOfWorkIsFollowedByWork) {
  fetch(milliseconds{10});
  recorder_.touch();
  recorder_.wait_begin(GapPhase::kCheckpoint);
  clock_.advance(milliseconds{300});
  recorder_.wait_end();
  EXPECT_EQ(activity(), Activity::kBusy);
}

TEST_F(ActivityTest, LookAheadShowsTheJobBusyBeforeTheFetchEnds) {
  recorder_.fetch_begin();
  clock_.advance(milliseconds{30});
  recorder_.wait_ends_soon();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(page_.wait_ns_total.load(), 30'000'000U);
  clock_.advance(milliseconds{4});  // it is unpacked
  recorder_.wait_end();
  EXPECT_EQ(activity(), Activity::kBusy);
  EXPECT_EQ(page_.waits_total.load(), 1U) << "one wait, which ended when the batch came";
  EXPECT_EQ(page_.wait_ns_total.load(), 30'000'000U);
}

TEST_F(ActivityTest, ABatchThatIsNotTheNextOneLetsTheJobWaitOn) {
  recorder_.fetch_begin();
  clock_.advance(milliseconds{30});
  recorder_.wait_ends_soon();
  clock_.advance(milliseconds{1});
  recorder_.wait_goes_on();
  EXPECT_EQ(activity(), Activity::kWaiting);
  EXPECT_EQ(phase(), GapPhase::kLoader);
  EXPECT_EQ(page_.activity_since_ns.load(), to_page_time(clock_.now()));
  clock_.advance(milliseconds{10});
  recorder_.wait_ends_soon();
  recorder_.wait_end();
  EXPECT_EQ(page_.wait_ns_total.load(), 40'000'000U);
}

TEST_F(ActivityTest, LookAheadOutsideOfAWaitIsNothing) {
  recorder_.wait_ends_soon();
  EXPECT_EQ(activity(), Activity::kUnknown);
  fetch(milliseconds{1});
  recorder_.wait_goes_on();
  EXPECT_EQ(activity(), Activity::kBusy);
}

TEST_F(ActivityTest, TheTableOnThePageFollowsTheHistogram) {
  const auto& table = wire::gap_table(page_).expected_ns;
  for (int i = 0; i < 40; ++i) wait(milliseconds{i % 5 == 4 ? 80 : 4});
  recorder_.wait_begin();
  const auto& loader = table[static_cast<std::size_t>(GapPhase::kLoader)];
  EXPECT_EQ(loader[0].load(), 4'000'000U);
  EXPECT_EQ(loader[wire::gap_bucket(6'000'000)].load(), 80'000'000U)
      << "having outlasted the short ones";
  EXPECT_EQ(table[static_cast<std::size_t>(GapPhase::kRequests)][0].load(), 0U);
}

TEST_F(ActivityTest, TellsOfEachPhaseWhatIsKnown) {
  for (int i = 0; i < 20; ++i) wait(milliseconds{30});
  const auto gaps = recorder_.gaps();
  ASSERT_EQ(gaps.size(), 1U);
  EXPECT_EQ(gaps[0].phase, GapPhase::kLoader);
  EXPECT_EQ(gaps[0].waits, 20U);
  EXPECT_EQ(gaps[0].waited, milliseconds{600});
  EXPECT_EQ(gaps[0].median, milliseconds{30});
  ASSERT_EQ(gaps[0].lengths.size(), 1U);
  EXPECT_LE(gaps[0].lengths[0].first, milliseconds{30});
}

/// A server that tells of nothing but its allocations.
class FoundRequestsTest : public ::testing::Test {
 protected:
  static ThreadUse use() noexcept { return {clock_->now() - TimePoint{} - blocked_, {}}; }
  FoundRequestsTest() {
    clock_ = &time_;
    blocked_ = Duration{};
    recorder_.find_requests();
  }
  std::optional<FoundRequest> work(Duration length) {
    std::optional<FoundRequest> found;
    for (Duration done{}; done < length; done += std::chrono::microseconds{500}) {
      if (const auto one = recorder_.touch()) found = one;
      time_.advance(std::chrono::microseconds{500});
    }
    return found;
  }
  void wait(Duration length) {
    time_.advance(length);
    blocked_ += length;
  }
  /// So many requests of 10 ms, 30 ms apart; the last one has not been found yet.
  void serve(int requests) {
    for (int i = 0; i < requests; ++i) {
      work(milliseconds{10});
      wait(milliseconds{30});
    }
  }
  [[nodiscard]] wire::PresentWait wait_now() const {
    return wire::present_wait(page_, to_page_time(time_.now()));
  }

  static inline const FakeClock* clock_ = nullptr;
  static inline Duration blocked_{};
  FakeClock time_;
  OwnPage own_{JobId{"job-1"}, JobClass::kGuaranteed, 0};
  wire::JobPage& page_ = own_.page();
  ActivityRecorder recorder_{page_, time_, &use};
};

TEST_F(FoundRequestsTest, AServerThatMarksNothingIsSeenToWaitBetweenItsRequests) {
  serve(20);
  EXPECT_FALSE(wait_now().waits) << "too few to tell";
  EXPECT_EQ(page_.quiet_ns.load(), 0U);
  serve(20);
  const std::uint64_t last = page_.last_touch_ns.load();
  const wire::PresentWait wait = wait_now();
  EXPECT_TRUE(wait.waits);
  EXPECT_EQ(wait.since_ns, last);
  EXPECT_EQ(wait.phase, GapPhase::kRequests);
  const auto found = work(milliseconds{4});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, milliseconds{10});
  EXPECT_FALSE(wait_now().waits) << "it works on the next one";
  EXPECT_EQ(page_.waits_total.load(), 39U);
  EXPECT_EQ(page_.wait_typical_ns.load(), 30'000'000U);
  const std::vector<GapSummary> gaps = recorder_.gaps();
  ASSERT_EQ(gaps.size(), 1U);
  EXPECT_EQ(gaps[0].phase, GapPhase::kRequests);
  EXPECT_EQ(gaps[0].median, milliseconds{30});
}

TEST_F(FoundRequestsTest, ARestMeanwhileHidesNoRequest) {
  serve(20);
  wait(seconds{3});
  recorder_.rest_begin();
  EXPECT_TRUE(wait_now().waits);
  serve(20);
  EXPECT_EQ(page_.waits_total.load(), 38U) << "as many as without; the last one has not ended";
  recorder_.rest_begin();
  EXPECT_TRUE(wait_now().waits);
  EXPECT_EQ(wait_now().phase, GapPhase::kRequests) << "its silence tells by then";
}

TEST_F(FoundRequestsTest, SilenceShorterThanUsualIsNoWait) {
  serve(40);
  work(milliseconds{2});
  EXPECT_FALSE(wait_now().waits);
  time_.advance(milliseconds{1});
  EXPECT_FALSE(wait_now().waits);
  time_.advance(milliseconds{1});
  EXPECT_TRUE(wait_now().waits);
}

TEST_F(FoundRequestsTest, WhoTrainsReadsBatchesOrMarksRequestsIsNotGuessedAt) {
  const auto over = [&](const std::function<void(ActivityRecorder&)>& sign) {
    OwnPage own{JobId{"job-2"}, JobClass::kGuaranteed, 0};
    ActivityRecorder recorder{own.page(), time_, &use};
    recorder.find_requests();
    std::size_t found = 0;
    const auto serve = [&] {
      for (int i = 0; i < 60; ++i) {
        if (recorder.touch()) ++found;
        time_.advance(std::chrono::microseconds{500});
        wait(milliseconds{5});
      }
    };
    serve();
    EXPECT_GT(found, 0U);
    EXPECT_NE(own.page().quiet_ns.load(), 0U);
    sign(recorder);
    EXPECT_EQ(own.page().quiet_ns.load(), 0U);
    found = 0;
    serve();
    EXPECT_EQ(found, 0U);
  };
  over([](ActivityRecorder& recorder) { recorder.trained(); });
  over([](ActivityRecorder& recorder) {
    recorder.fetch_begin();
    recorder.wait_end();
  });
  over([](ActivityRecorder& recorder) { (void)recorder.request_end(); });
}

TEST(PresentWait, NonsenseOnAPageIsNoWait) {
  OwnPage own{JobId{"job-1"}, JobClass::kGuaranteed, 0};
  wire::JobPage& page = own.page();
  page.quiet_ns.store(1);
  EXPECT_FALSE(wire::present_wait(page, 1'000).waits) << "no sign of work yet";
  page.last_touch_ns.store(UINT64_MAX);
  EXPECT_FALSE(wire::present_wait(page, 1'000).waits) << "one from the future";
  page.last_touch_ns.store(10);
  page.quiet_ns.store(UINT64_MAX);
  EXPECT_FALSE(wire::present_wait(page, 1'000).waits);
  page.quiet_ns.store(990);
  EXPECT_TRUE(wire::present_wait(page, 1'000).waits);
  page.activity.store(static_cast<std::uint64_t>(Activity::kPaused));
  EXPECT_FALSE(wire::present_wait(page, 1'000).waits) << "its gate is closed";
}

}  // namespace
}  // namespace commensal::activity_test
