// SPDX-License-Identifier: Apache-2.0
// Which pauses of a server are waits for a request, and how long its requests took.
#include "torch_ext/runtime/request_finder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

namespace commensal::request_finder_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Threads of a server as the kernel would count their time.
class RequestFinderTest : public ::testing::Test {
 protected:
  /// A sign of work after so much time of each kind.
  std::optional<FoundRequest> sign(Duration ran, Duration delayed = {}, Duration blocked = {}) {
    now_ += ran + delayed + blocked;
    use_.ran += ran;
    use_.delayed += delayed;
    const TimePoint last = std::exchange(last_, now_);
    if (now_ - last < RequestFinder::kLeastPause) return std::nullopt;
    return finder_.note(last, now_, thread_, use_);
  }
  /// A request with an allocation every 200 us, then a wait; it ends with the next one's begin.
  std::optional<FoundRequest> request(Duration length, Duration wait) {
    for (Duration done{}; done < length; done += microseconds{200}) sign(microseconds{200});
    return sign({}, {}, wait);
  }

  RequestFinder finder_;
  TimePoint now_{std::chrono::hours{1}};
  TimePoint last_ = now_;
  ThreadUse use_{seconds{5}, seconds{1}};
  const void* thread_ = this;
};

TEST_F(RequestFinderTest, ARequestLastsFromItsFirstSignOfWorkUntilItsThreadWaits) {
  EXPECT_FALSE(request(milliseconds{8}, milliseconds{30})) << "its beginning was not seen";
  const auto found = request(milliseconds{12}, milliseconds{40});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, milliseconds{12});
  EXPECT_EQ(found->waited, milliseconds{40});
  EXPECT_EQ(found->ended, now_ - milliseconds{40});
}

TEST_F(RequestFinderTest, WorkAfterTheLastSignIsPartOfTheRequest) {
  request(milliseconds{8}, milliseconds{30});
  sign(microseconds{500});
  // An op of 3 ms that allocates nothing, then the wait, then 1 ms of waiting for a core.
  const auto found = sign(milliseconds{3}, milliseconds{1}, milliseconds{20});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, microseconds{4500});
  EXPECT_EQ(found->waited, milliseconds{20});
}

TEST_F(RequestFinderTest, ALongOpThatAllocatesNothingIsNoWait) {
  request(milliseconds{8}, milliseconds{30});
  EXPECT_FALSE(sign(milliseconds{50}));
  const auto found = request(milliseconds{2}, milliseconds{30});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, milliseconds{52});
}

TEST_F(RequestFinderTest, WaitingForACoreIsPartOfTheRequest) {
  request(milliseconds{8}, milliseconds{30});
  EXPECT_FALSE(sign(microseconds{100}, milliseconds{25})) << "a neighbour kept the core";
  const auto found = request(milliseconds{2}, milliseconds{30});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, microseconds{27100});
}

TEST_F(RequestFinderTest, AMomentOfBlockingInALongOpIsNoWait) {
  request(milliseconds{8}, milliseconds{30});
  EXPECT_FALSE(sign(milliseconds{20}, {}, milliseconds{5})) << "a lock, or its own other threads";
  EXPECT_FALSE(sign(microseconds{600}, {}, microseconds{500})) << "below the least pause";
  EXPECT_EQ(finder_.found(), 0U);
}

TEST_F(RequestFinderTest, AnotherThreadsRequestCounts) {
  request(milliseconds{8}, milliseconds{30});
  int other = 0;
  thread_ = &other;
  use_ = {milliseconds{3}, {}};  // a younger thread
  const auto found = request(milliseconds{5}, milliseconds{20});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, milliseconds{5});
  EXPECT_EQ(found->waited, milliseconds{20});
}

TEST_F(RequestFinderTest, TheJobIsTakenForAServerAfterSomeRequests) {
  for (std::uint64_t i = 0; i < RequestFinder::kBefore; ++i) {
    EXPECT_EQ(finder_.quiet(), Duration::zero()) << i;
    request(milliseconds{8}, milliseconds{30});
  }
  EXPECT_EQ(finder_.quiet(), Duration::zero());
  request(milliseconds{8}, milliseconds{30});
  EXPECT_EQ(finder_.quiet(), milliseconds{2}) << "the least";
}

TEST_F(RequestFinderTest, SilenceMustOutlastTheLongestPauseWithinRequests) {
  for (int i = 0; i < 40; ++i) {
    sign(milliseconds{10});  // no allocation for so long
    request(milliseconds{2}, milliseconds{30});
  }
  EXPECT_GE(finder_.quiet(), milliseconds{19});
  EXPECT_LE(finder_.quiet(), milliseconds{20});
  for (int i = 0; i < 300; ++i) request(milliseconds{2}, milliseconds{30});
  EXPECT_LE(finder_.quiet(), milliseconds{3}) << "forgotten by and by";
  sign(seconds{60});
  EXPECT_EQ(finder_.quiet(), seconds{1}) << "the most";
}

// The real kernel.
TEST(ThreadUse, TheKernelTellsRunningFromWaiting) {
  const auto spin = [](Duration length) {
    const auto until = std::chrono::steady_clock::now() + length;
    while (std::chrono::steady_clock::now() < until) {
    }
  };
  const ThreadUse first = read_thread_use();
  std::this_thread::sleep_for(milliseconds{50});
  const auto begin = std::chrono::steady_clock::now();
  const ThreadUse slept = read_thread_use();
  EXPECT_LT(slept.ran - first.ran, milliseconds{40});
  spin(milliseconds{50});
  const ThreadUse after = read_thread_use();
  const Duration passed = std::chrono::steady_clock::now() - begin;
  // It spun all the time: on a core, or waiting for one (the kernel's counts may lag by a tick).
  const Duration used = (after.ran - slept.ran) + (after.delayed - slept.delayed);
  EXPECT_GT(after.ran, slept.ran);
  EXPECT_LE(used, passed + milliseconds{20});
}

}  // namespace
}  // namespace commensal::request_finder_test
