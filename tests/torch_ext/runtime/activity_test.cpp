// SPDX-License-Identifier: Apache-2.0
// What a job publishes about its waits.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/torch_ext/fake_clock.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal {
namespace {

using std::chrono::milliseconds;
using testing::FakeClock;
using wire::Activity;

class ActivityTest : public ::testing::Test {
 protected:
  void wait(Duration length) {
    recorder_.wait_begin();
    clock_.advance(length);
    recorder_.wait_end();
  }
  [[nodiscard]] Activity activity() const { return static_cast<Activity>(page_.activity.load()); }

  FakeClock clock_;
  OwnPage own_{JobId{"job-1"}, JobClass::kGuaranteed, 3};
  wire::JobPage& page_ = own_.page();
  ActivityRecorder recorder_{page_, clock_};
};

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

}  // namespace
}  // namespace commensal
