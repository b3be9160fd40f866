// SPDX-License-Identifier: Apache-2.0
// Where in the step an op is, from the sequence of ops alone.
#include "torch_ext/op_positions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace commensal::op_positions_test {
namespace {

using std::chrono::microseconds;

constexpr std::uint64_t kBatch = 1;
constexpr std::uint64_t kOptimizer = 2;

/// An op of a made-up network: what it is called, and how long it really takes.
struct Op {
  char name;
  Duration takes;
};
using Ops = std::vector<Op>;

/// Layers that look alike and differ in size: multiply, add, activate.
Ops layers(int count, int first_us = 100) {
  Ops ops;
  for (int layer = 0; layer < count; ++layer) {
    ops.push_back({'m', microseconds{first_us << layer}});
    ops.push_back({'a', microseconds{10 << layer}});
    ops.push_back({'r', microseconds{5 << layer}});
  }
  return ops;
}

Ops operator+(Ops first, const Ops& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class OpPositionsTest : public ::testing::Test {
 protected:
  void border(std::uint64_t kind) { border_ = (++borders_ << 8U) | kind; }

  /// Runs ops as a thread does. @return for each whether its place foretold what it took.
  std::vector<bool> run(const Ops& ops) {
    std::vector<bool> right;
    for (const Op& op : ops) {
      OpDuration* const here = positions_->next(cursor_, name_of(op.name), border_);
      right.push_back(here != nullptr && here->predicted() == op.takes);
      if (here != nullptr) here->record(op.takes);
    }
    return right;
  }
  int wrong(const Ops& ops) {
    const std::vector<bool> right = run(ops);
    return static_cast<int>(std::count(right.begin(), right.end(), false));
  }
  /// A training step: a batch comes, forward, backward, optimizer.
  int wrong_in_step(const Ops& forward = layers(8)) {
    border(kBatch);
    int count = wrong(forward + Ops{{'l', microseconds{7}}} + layers(8, 200));
    border(kOptimizer);
    return count +
           wrong({{'o', microseconds{50}}, {'o', microseconds{80}}, {'o', microseconds{3}}});
  }

  const std::unique_ptr<OpPositions> positions_ = std::make_unique<OpPositions>();
  OpCursor cursor_;
  std::uint64_t border_ = 0;
  std::uint64_t borders_ = 0;
  /// Always the same address for a name: the tables lose a place now and then, and which one is a
  /// matter of the addresses.
  static const void* name_of(char name) {
    constexpr std::uintptr_t kSomewhere = 0x7F12'3456'0000;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nobody looks behind it
    return reinterpret_cast<const void*>(kSomewhere + 16 * static_cast<unsigned char>(name));
  }
};

TEST_F(OpPositionsTest, TheSameOpAtAnotherPlaceIsAnotherOp) {
  EXPECT_EQ(wrong_in_step(), 52) << "nothing is known in the first step";
  EXPECT_EQ(wrong_in_step(), 0) << "everything in the second";
  EXPECT_EQ(wrong_in_step(), 0);
}

TEST_F(OpPositionsTest, ByNameAloneMostAreWrong) {
  OpDuration by_name[256];
  int wrong = 0;
  for (int step = 0; step < 3; ++step) {
    for (const Op& op : layers(8)) {
      OpDuration& known = by_name[static_cast<unsigned char>(op.name)];
      if (step == 2 && known.predicted() != op.takes) ++wrong;
      known.record(op.takes);
    }
  }
  EXPECT_GT(wrong, 16) << "of 24";
}

TEST_F(OpPositionsTest, AnOpMoreCostsAFewGuesses) {
  for (int i = 0; i < 3; ++i) (void)wrong_in_step();
  Ops longer = layers(8);
  longer.insert(longer.begin() + 7, {'x', microseconds{1}});
  EXPECT_LE(wrong_in_step(longer), 4);
  EXPECT_EQ(wrong_in_step(), 0) << "what is known stays known";
}

TEST_F(OpPositionsTest, AnOpLessCostsAFewGuesses) {
  for (int i = 0; i < 3; ++i) (void)wrong_in_step();
  Ops shorter = layers(8);
  shorter.erase(shorter.begin() + 7);
  EXPECT_LE(wrong_in_step(shorter), 4);
  EXPECT_EQ(wrong_in_step(), 0);
}

TEST_F(OpPositionsTest, AnEvaluationSharesItsForwardPass) {
  for (int i = 0; i < 3; ++i) (void)wrong_in_step();
  const Ops forward = layers(8);
  for (int batch = 0; batch < 3; ++batch) {
    border(kBatch);
    EXPECT_EQ(wrong(forward), 0);
    EXPECT_LE(wrong({{'e', microseconds{9}}, {'i', microseconds{1}}}), batch == 0 ? 2 : 0);
  }
  EXPECT_EQ(wrong_in_step(), 0) << "and the training goes on as if nothing had been";
}

TEST_F(OpPositionsTest, ASecondOptimizerIsLearntOnce) {
  for (int i = 0; i < 3; ++i) (void)wrong_in_step();
  const Ops second{{'p', microseconds{60}}, {'q', microseconds{90}}};
  border(kOptimizer);
  EXPECT_EQ(wrong(second), 2);
  EXPECT_EQ(wrong_in_step(), 0);
  border(kOptimizer);
  EXPECT_EQ(wrong(second), 0);
}

TEST_F(OpPositionsTest, ALoopWithoutBordersClosesByItself) {
  const Ops loop = layers(6) + Ops{{'z', microseconds{2}}};
  for (std::size_t ops = 0; ops <= OpPositions::kLongest + loop.size(); ops += loop.size()) {
    (void)run(loop);
  }
  for (int i = 0; i < 3; ++i) (void)run(loop);
  int count = 0;
  for (int i = 0; i < 10; ++i) count += wrong(loop);
  EXPECT_LE(count, 10 * 4) << "of " << 10 * loop.size();
}

TEST_F(OpPositionsTest, AMissingBorderIsCaughtUpWithin) {
  for (int i = 0; i < 3; ++i) (void)wrong_in_step();
  // The hooks of an optimizer in a compiled step say nothing: backward and optimizer in one.
  border(kBatch);
  (void)run(layers(8) + Ops{{'l', microseconds{7}}} + layers(8, 200));
  EXPECT_EQ(wrong_in_step(), 0);
}

TEST_F(OpPositionsTest, MemoryIsBoundedAndOldPlacesGiveWay) {
  static_assert(sizeof(OpPositions) <= (768U << 10U) + 256);
  const Ops first = layers(8);
  border(kBatch);
  (void)run(first);
  std::mt19937 dice(7);
  // As many different steps as there are places, twice: the first one has long been forgotten.
  int remembered = 0;
  for (std::size_t step = 0; step < 2 * OpPositions::kSets * OpPositions::kWays / 24; ++step) {
    border(kBatch);
    Ops other;
    for (int i = 0; i < 24; ++i)
      other.push_back({static_cast<char>(dice() % 128), microseconds{1}});
    (void)run(other);
    border(kBatch);
    remembered += wrong(other) == 0 ? 1 : 0;
  }
  EXPECT_GT(remembered, 1000) << "new places find room";
}

TEST_F(OpPositionsTest, AStepLargerThanTheTableKeepsWhatItHas) {
  Ops huge;
  std::mt19937 dice(7);
  for (std::size_t i = 0; i < 2 * OpPositions::kSets * OpPositions::kWays; ++i) {
    huge.push_back({static_cast<char>(dice() % 128), microseconds{1 + i}});
  }
  for (int step = 0; step < 3; ++step) {
    border(kBatch);
    (void)run(huge);
  }
  border(kBatch);
  EXPECT_LT(wrong(huge), static_cast<int>(huge.size() * 3 / 4)) << "it does not chase its own tail";
}

TEST_F(OpPositionsTest, ThreadsOfOneJobShareWhatIsKnown) {
  for (int i = 0; i < 2; ++i) (void)wrong_in_step();
  std::thread([this] {
    cursor_ = OpCursor{};
    EXPECT_EQ(wrong_in_step(), 0);
  }).join();
}

TEST_F(OpPositionsTest, ThreadsAtOnceNeverTearAPlaceApart) {
  std::vector<std::thread> threads;
  for (unsigned int seed = 0; seed < 4; ++seed) {
    threads.emplace_back([this, seed] {
      std::mt19937 dice(seed);
      OpCursor cursor;
      for (std::uint64_t i = 0; i < 50'000; ++i) {
        OpDuration* const here = positions_->next(
            cursor, name_of(static_cast<char>('a' + dice() % 8)), (i / 16) << 8U | dice() % 2);
        if (here != nullptr) here->record(microseconds{3});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  (void)wrong_in_step();
  EXPECT_EQ(wrong_in_step(), 0);
}

}  // namespace
}  // namespace commensal::op_positions_test
