// SPDX-License-Identifier: Apache-2.0
// Sleeping at another process's word.
#include "torch_ext/gate/doorbell.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "coordinator/wire/handover.h"
#include "coordinator/wire/pages.h"
#include "tests/torch_ext/sleeping_thread.h"

namespace commensal::doorbell_test {
namespace {

constexpr Duration kForLong = std::chrono::hours{1};

/// A thread that sleeps at a word of a page that it may only read, once.
class DoorbellTest : public ::testing::Test {
 protected:
  ~DoorbellTest() override {
    if (!thread_) return;
    generation_.fetch_add(1);
    while (!thread_->awake()) {  // whatever went wrong: it ends
      ring_own();
      std::this_thread::yield();
    }
    thread_->join();
  }
  void sleep(Duration time = kForLong) {
    const std::uint32_t generation = generation_.load();
    const Doorbell bell{&reader_.as<wire::JobPage>()->activity,
                        static_cast<std::uint32_t>(word_.load())};
    thread_.emplace(
        [this, generation, bell, time] { sleep_until_rung(generation_, generation, bell, time); });
  }
  [[nodiscard]] bool wakes() const { return thread_->wakes_within(std::chrono::seconds{20}); }
  /// Whether it sleeps on for as long as it was watched.
  [[nodiscard]] bool sleeps_on() const {
    return !thread_->wakes_within(std::chrono::milliseconds{20});
  }
  void ring_own() { ring(*reinterpret_cast<std::atomic<std::uint64_t>*>(&generation_)); }

  wire::UniqueFd fd_ = wire::make_page_memfd("test-bell");
  wire::MappedPage writer_{fd_.get(), wire::kPageSize, true};
  wire::MappedPage reader_{fd_.get(), wire::kPageSize, false};
  wire::Word& word_ = writer_.as<wire::JobPage>()->activity;
  alignas(8) std::atomic<std::uint32_t> generation_{0};
  std::optional<testing::SleepingThread> thread_;
};

TEST_F(DoorbellTest, WhoSleepsAtAPageIsWokenThroughAnotherMapping) {
  sleep();
  EXPECT_TRUE(sleeps_on());
  word_.store(2);
  EXPECT_TRUE(sleeps_on()) << "a change alone wakes nobody";
  ring(word_);
  EXPECT_TRUE(wakes());
}

TEST_F(DoorbellTest, AWordThatHasChangedMeanwhileIsNotSleptAt) {
  const Doorbell bell{&reader_.as<wire::JobPage>()->activity, 7};
  sleep_until_rung(generation_, 0, bell, kForLong);
  sleep_until_rung(generation_, 1, {&reader_.as<wire::JobPage>()->activity, 0}, kForLong);
  SUCCEED() << "or it would sleep for an hour";
}

TEST_F(DoorbellTest, TheTimeEndsASleepThatNobodyElseEnds) {
  sleep(std::chrono::milliseconds{1});
  EXPECT_TRUE(wakes());
}

TEST_F(DoorbellTest, ASleepWithoutABellEndsWithItsTime) {
  sleep_until_rung(generation_, 0, {}, std::chrono::milliseconds{1});
  EXPECT_FALSE(Doorbell{});
}

TEST_F(DoorbellTest, RingingWhereNobodySleepsDoesNothing) {
  ring(word_);
  EXPECT_EQ(word_.load(), 0U);
}

}  // namespace
}  // namespace commensal::doorbell_test
