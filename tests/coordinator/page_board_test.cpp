// SPDX-License-Identifier: Apache-2.0
// The state between one writer and many readers, requests the other way, and the node's status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/page/board.h"
#include "coordinator/page/node_status.h"
#include "coordinator/page/request_box.h"

namespace commensal::page::page_board_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kLong = 60s;  // of what comes, and does at once on a machine with nothing else to do

TEST(PageBoardTest, OnlyWhatIsNewMakesAVersion) {
  Board board{[] {}, 1};
  EXPECT_EQ(board.fresh(0ms)->version, 0U);
  board.put({{"jobs", "[1]"}, {"nodes", "[]"}});
  board.put({{"jobs", "[1]"}});
  const auto first = board.fresh(0ms);
  EXPECT_EQ(first->version, 1U);
  board.put({{"jobs", "[2]"}, {"nodes", "[]"}});
  const auto second = board.fresh(0ms);
  EXPECT_EQ(second->version, 2U);
  EXPECT_EQ(json::parse(second->json()),
            json({{"version", 2}, {"jobs", {2}}, {"nodes", json::array()}}));
  EXPECT_EQ(json::parse(second->json(1)), json({{"version", 2}, {"jobs", {2}}}));
  EXPECT_EQ(json::parse(second->json(2)), json({{"version", 2}}));
  EXPECT_EQ(json::parse(first->json())["jobs"], json({1})) << "a snapshot never changes";
}

TEST(PageBoardTest, AQuestionWakesTheWriterAndWaitsForItsAnswer) {
  std::promise<void> woken;
  Board board{[&] { woken.set_value(); }, 1};
  auto reader = std::async(std::launch::async, [&] { return board.fresh(kLong); });
  woken.get_future().wait();
  const std::uint64_t question = board.asked();
  EXPECT_EQ(question, 1U);
  board.put({{"jobs", "[]"}});
  board.answered(question);
  EXPECT_EQ(reader.get()->version, 1U);
}

TEST(PageBoardTest, WithoutAnAnswerWhatIsThereMustDo) {
  Board board{[] {}, 1};
  board.put({{"jobs", "[]"}});
  EXPECT_EQ(board.fresh(1ms)->version, 1U);
  EXPECT_EQ(board.newer(1, 1ms), nullptr);
}

TEST(PageBoardTest, AListenerHearsOfTheNextVersion) {
  Board board{[] {}, 1};
  auto reader = std::async(std::launch::async, [&] { return board.newer(0, kLong); });
  board.put({{"jobs", "[]"}});
  EXPECT_EQ(reader.get()->version, 1U);
}

TEST(PageBoardTest, NoMoreListenThanMay) {
  int woken = 0;
  Board board{[&] { ++woken; }, 2};
  auto one = board.listen();
  {
    auto two = board.listen();
    EXPECT_TRUE(two);
    EXPECT_FALSE(board.listen());
    EXPECT_EQ(board.listeners(), 2);
    const Board::Listener moved = *std::move(two);
    EXPECT_EQ(board.listeners(), 2);
  }
  EXPECT_EQ(board.listeners(), 1);
  EXPECT_EQ(woken, 2);
  EXPECT_TRUE(board.listen());
}

TEST(PageBoardTest, ClosingLetsEverybodyGo) {
  Board board{[] {}, 1};
  auto asks = std::async(std::launch::async, [&] { return board.fresh(kLong); });
  auto listens = std::async(std::launch::async, [&] { return board.newer(0, kLong); });
  board.close();
  EXPECT_EQ(asks.get()->version, 0U);
  EXPECT_EQ(listens.get(), nullptr);
  EXPECT_FALSE(board.listen());
  EXPECT_TRUE(board.closed());
}

TEST(PageBoardTest, ManyReadersSeeVersionsGrow) {
  Board board{[] {}, 1};
  std::vector<std::future<bool>> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(std::async(std::launch::async, [&] {
      std::uint64_t seen = 0;
      while (seen < 200) {
        const auto snapshot = board.newer(seen, kLong);
        if (!snapshot || snapshot->version <= seen) return false;
        seen = snapshot->version;
        if (*snapshot->parts.at("n").text != std::to_string(seen)) return false;
      }
      return true;
    }));
  }
  for (int i = 1; i <= 200; ++i) board.put({{"n", std::to_string(i)}});
  for (auto& reader : readers) EXPECT_TRUE(reader.get());
}

TEST(PageRequestBoxTest, ARequestIsAnsweredByWhoTookIt) {
  std::promise<void> woken;
  RequestBox box{[&] { woken.set_value(); }, 4};
  auto asks = std::async(std::launch::async, [&] { return box.ask({{"type", "cancel"}}, kLong); });
  woken.get_future().wait();
  const auto requests = box.take();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].second, json({{"type", "cancel"}}));
  EXPECT_TRUE(box.take().empty()) << "taken once";
  box.answer(requests[0].first, {{"id", "7"}});
  EXPECT_EQ(asks.get(), json({{"id", "7"}}));
}

TEST(PageRequestBoxTest, WhatNobodyTookIsNotDoneLater) {
  RequestBox box{[] {}, 4};
  EXPECT_EQ(box.ask({{"type", "cancel"}}, 1ms), std::nullopt);
  EXPECT_TRUE(box.take().empty());
}

TEST(PageRequestBoxTest, ALateAnswerIsForNobody) {
  std::vector<RequestBox::Request> taken;
  RequestBox* there = nullptr;
  RequestBox box{[&] { taken = there->take(); }, 4};
  there = &box;
  EXPECT_EQ(box.ask(json::object(), 1ms), std::nullopt);
  ASSERT_EQ(taken.size(), 1U);
  box.answer(taken[0].first, json::object());
}

TEST(PageRequestBoxTest, SoManyWaitAndNoMore) {
  std::atomic<int> woken = 0;
  RequestBox box{[&] { ++woken; }, 2};
  std::vector<std::future<std::optional<json>>> asking;
  for (int i = 0; i < 2; ++i) {
    asking.push_back(
        std::async(std::launch::async, [&] { return box.ask(json::object(), kLong); }));
  }
  while (woken < 2) std::this_thread::yield();
  EXPECT_EQ(box.ask(json::object(), kLong), std::nullopt);
  box.close();
  for (auto& one : asking) EXPECT_EQ(one.get(), std::nullopt);
  EXPECT_EQ(box.ask(json::object(), kLong), std::nullopt);
}

class PageNodeStatusTest : public ::testing::Test {
 protected:
  [[nodiscard]] json part() { return json::parse(*board_.fresh(0ms)->parts.at("node").text); }

  Board board_{[] {}, 1};
  int asked_ = 0;
  std::string status_ = R"({"jobs": []})";
  NodeStatus node_{board_,
                   [this] {
                     ++asked_;
                     if (status_.empty()) throw std::runtime_error("nobody listens on x.sock");
                     return status_;
                   },
                   2s, "n1"};
  TimePoint now_{100s};
};

TEST_F(PageNodeStatusTest, IsAskedAtOnceAndThenOnceAPeriod) {
  node_.refresh(now_);
  node_.refresh(now_ + 1999ms);
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(part(), json::parse(R"({"name": "n1", "status": {"jobs": []}, "problem": ""})"));
  node_.refresh(now_ + 2s);
  EXPECT_EQ(asked_, 2);
  EXPECT_EQ(board_.fresh(0ms)->version, 1U) << "nothing new";
}

TEST_F(PageNodeStatusTest, SaysWhyThereIsNone) {
  status_ = "";
  node_.refresh(now_);
  EXPECT_EQ(
      part(),
      json::parse(R"({"name": "n1", "status": null, "problem": "nobody listens on x.sock"})"));
  status_ = "no JSON";
  node_.refresh(now_ + 2s);
  EXPECT_EQ(part()["status"], nullptr);
  EXPECT_NE(part()["problem"], "");
  status_ = R"({"jobs": []})";
  node_.refresh(now_ + 4s);
  EXPECT_EQ(part()["problem"], "");
}

TEST(PageNodeStatusThreadsTest, OneAsksTheOthersGoOn) {
  Board board{[] {}, 1};
  std::promise<void> asked;
  std::promise<void> go;
  NodeStatus node{board,
                  [&] {
                    asked.set_value();
                    go.get_future().wait();
                    return std::string{"{}"};
                  },
                  0s};
  auto slow = std::async(std::launch::async, [&] { node.refresh(TimePoint{1s}); });
  asked.get_future().wait();
  node.refresh(TimePoint{5s});  // does not wait, does not ask: a second call would throw
  go.set_value();
  slow.get();
  EXPECT_EQ(board.fresh(0ms)->version, 1U);
}

}  // namespace
}  // namespace commensal::page::page_board_test
