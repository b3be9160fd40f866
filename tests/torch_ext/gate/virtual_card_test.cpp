// SPDX-License-Identifier: Apache-2.0
// What the gate and the gap law make of a GPU's gaps, on a card in virtual time.
#include "tests/torch_ext/gate/virtual_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/torch_ext/gate/virtual_pair.h"
#include "tests/torch_ext/gate/virtual_shapes.h"

namespace commensal::virtual_card_test {
namespace {

using namespace std::chrono_literals;
using testing::CardTimes;
using testing::GuaranteedScript;
using ::testing::HasSubstr;
using testing::Judged;
using testing::Outcome;
using testing::Setting;
using testing::Shape;
using ::testing::ThrowsMessage;
using testing::VirtualCard;
using testing::VirtualPair;

using testing::lasts;

constexpr double kSlo = 0.01;

const CardTimes& card() {
  static const CardTimes times = CardTimes::read(VIRTUAL_CARD);
  return times;
}
Outcome run(const Shape& shape, const Setting& setting) {
  return VirtualPair(card(), shape.guaranteed, shape.opportunistic, setting).run();
}
Judged judged(const Shape& shape, const Setting& setting) {
  const Outcome alone = VirtualPair(card(), shape.guaranteed, {}, setting).run();
  return judge(shape, alone, run(shape, setting), kSlo, card());
}
bool holds(const Judged& judged) { return judged.median <= kSlo && judged.p99 <= 3 * kSlo; }

class GapLawOnACard : public ::testing::TestWithParam<Shape> {};

TEST_P(GapLawOnACard, UsesTheGapsAndHoldsTheObjective) {
  const Shape& shape = GetParam();
  const Judged got = judged(shape, {.lasts = lasts(shape)});
  RecordProperty("harvest", std::to_string(got.harvest));
  EXPECT_GE(got.harvest, shape.least) << "of " << got.oracle;
  EXPECT_LE(got.median, kSlo);
  EXPECT_LE(got.p99, 3 * kSlo);
  EXPECT_LE(got.settled, 2s) << "after the guaranteed job's arrival";
  if (shape.guaranteed.pause == GuaranteedScript::Pause::kLoader) {
    EXPECT_LE(got.opening, 200us);
  }
}

// F15: a few launches go before its length is known, then none does.
TEST(GraphOnACard, LongerThanTheGapsIsHeld) {
  Shape shape{"gaps of 4 ms, a graph of 20 ms",
              {.busy = 30ms, .wait = 6ms, .drains = 2ms, .jitter = 0.02},
              {{.op = 20ms, .ops = 1, .graph = true}}};
  const auto collisions = [](const Outcome& outcome) {
    return std::count_if(outcome.steps.begin(), outcome.steps.end(), [](const Outcome::Step& step) {
      return step.end > 1s && step.took > 40ms;
    });
  };
  const Outcome held = run(shape, {.lasts = 20s});
  EXPECT_EQ(collisions(held), 0);
  EXPECT_THAT(held.closed_by, ::testing::Contains(::testing::Key(std::string(kGraphHeld))));
  // The twin: an op of that length goes by the trickle, and costs the steps that it meets.
  shape.opportunistic.front().graph = false;
  EXPECT_GT(collisions(run(shape, {.lasts = 20s})), 0);
}

std::string name_of(const ::testing::TestParamInfo<Shape>& info) {
  std::string name;
  bool starts = true;
  for (const char c : info.param.name) {
    const bool word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (word) name += starts ? static_cast<char>(std::toupper(c)) : c;
    starts = !word;
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, GapLawOnACard, ::testing::ValuesIn(testing::shapes()), name_of);

// All shapes, and the laws that take minutes to learn: ./scripts/benchmark --only virtual_card.
TEST(RivalsOnACard, NoneThatHoldsTheObjectiveUsesMore) {
  const Shape shape = testing::shapes()[0];
  const Judged ours = judged(shape, {.lasts = lasts(shape)});
  for (const Setting& setting : testing::rivals(shape)) {
    if (setting.lasts > 20s) continue;
    const Judged rival = judged(shape, setting);
    EXPECT_TRUE(!holds(rival) || rival.harvest <= ours.harvest + 0.01)
        << setting.law << ": " << rival.harvest << ", ours " << ours.harvest;
  }
}

TEST(VirtualPairTest, IsTheSameEachTime) {
  const Shape shape = testing::shapes()[5];
  EXPECT_EQ(run(shape, {}), run(shape, {}));
}

class VirtualCardTest : public ::testing::Test {
 protected:
  Duration reached(VirtualCard::Event event) {
    const auto at = card_.reached(event);
    return at ? *at - begin_ : -1ns;
  }
  const CardTimes times_{.slice = 2ms, .change = 150us};
  const TimePoint begin_{std::chrono::hours{1}};
  VirtualCard card_{times_};
  const VirtualCard::Process first_ = card_.add_process();
  const VirtualCard::Process second_ = card_.add_process();
};

TEST_F(VirtualCardTest, OneProcessHasTheEngineForItself) {
  card_.kernel(first_, 5ms);
  const auto done = card_.record(first_);
  card_.advance(begin_ + 4999us);
  EXPECT_EQ(reached(done), -1ns);
  card_.advance(begin_ + 6ms);
  EXPECT_EQ(reached(done), 5ms);
  EXPECT_EQ(card_.ran(first_), 5ms);
}

TEST_F(VirtualCardTest, TwoHaveItInSlicesAndLoseTheChanges) {
  card_.kernel(first_, 3ms);
  card_.kernel(second_, 3ms);
  const auto first = card_.record(first_);
  const auto second = card_.record(second_);
  card_.advance(begin_ + 20ms);
  EXPECT_EQ(reached(first), 2ms + 150us + 2ms + 150us + 1ms);
  EXPECT_EQ(reached(second), 5300us + 150us + 1ms);
  EXPECT_EQ(card_.queued(first_) + card_.queued(second_), 0U);
}

TEST_F(VirtualCardTest, WhoRunsDryGivesTheEngineAtOnce) {
  card_.kernel(first_, 500us);
  card_.kernel(second_, 1ms);
  const auto done = card_.record(second_);
  card_.advance(begin_ + 5ms);
  EXPECT_EQ(reached(done), 500us + 150us + 1ms);
}

TEST_F(VirtualCardTest, CopiesLeaveTheEngineToOthers) {
  card_.copy(first_, VirtualCard::Way::kIn, 3ms);
  card_.kernel(first_, 1ms);
  card_.kernel(second_, 2ms);
  const auto first = card_.record(first_);
  const auto second = card_.record(second_);
  card_.advance(begin_ + 10ms);
  EXPECT_EQ(reached(second), 150us + 2ms);
  EXPECT_EQ(reached(first), 3ms + 150us + 1ms);
}

TEST_F(VirtualCardTest, TheCardWritesAWordBehindTheWork) {
  wire::Word word{0};
  card_.kernel(first_, 1ms);
  card_.write(first_, word, 7);
  card_.advance(begin_ + 999us);
  EXPECT_EQ(word.load(), 0U);
  card_.advance(begin_ + 1ms);
  EXPECT_EQ(word.load(), 7U);
}

TEST(CardFile, NamesWhatIsMissingOrHasNoUnit) {
  const auto path =
      std::filesystem::temp_directory_path() / ("card-" + std::to_string(::getpid()) + ".json");
  const auto read = [&](const char* text) {
    std::ofstream(path) << text;
    return [path] { (void)CardTimes::read(path.string()); };
  };
  EXPECT_THAT(read("{}"), ThrowsMessage<std::runtime_error>(HasSubstr("no value of slice")));
  EXPECT_THAT(read(R"({"slice": {"value": 2000}})"),
              ThrowsMessage<std::runtime_error>(HasSubstr("slice is not in us")));
  EXPECT_THAT(read(R"({"slice": {"value": "2", "unit": "us"}})"),
              ThrowsMessage<std::runtime_error>(HasSubstr("no value of slice")));
  EXPECT_THAT(read("[1"), ThrowsMessage<std::runtime_error>(HasSubstr("not a card file")));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace commensal::virtual_card_test
