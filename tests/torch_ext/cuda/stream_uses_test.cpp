// SPDX-License-Identifier: Apache-2.0
// A freed block is served again once every stream that was recorded for it has come past.
#include "torch_ext/cuda/stream_uses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch_ext/cuda/fake_cuda_calls.h"

namespace commensal::stream_uses_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

void* block(std::uintptr_t number) { return reinterpret_cast<void*>(number * 4096); }

class StreamUsesTest : public ::testing::Test {
 protected:
  static StreamUses::Stream stream(std::uintptr_t number) {
    return {0, FakeCudaCalls::handle(number)};
  }
  FakeCudaCalls calls_;
  std::vector<void*> done_;
  StreamUses uses_{calls_, [this](void* freed) { done_.push_back(freed); }};
};

TEST_F(StreamUsesTest, ABlockThatNoOtherStreamUsesIsNotHeldBack) {
  EXPECT_FALSE(uses_.freed(block(1), false));
  uses_.record(block(2), stream(7));
  EXPECT_TRUE(uses_.any_recorded());
  EXPECT_FALSE(uses_.freed(block(1), false));
  EXPECT_EQ(calls_.calls, 0);
  EXPECT_TRUE(uses_.idle());
}

TEST_F(StreamUsesTest, IsHeldBackUntilItsStreamHasComePast) {
  uses_.record(block(1), stream(7));
  EXPECT_TRUE(uses_.freed(block(1), false));
  EXPECT_FALSE(uses_.any_recorded());
  EXPECT_THAT(uses_.waiting(), ElementsAre(block(1)));
  uses_.process(false);
  EXPECT_THAT(done_, IsEmpty());
  calls_.pass(FakeCudaCalls::handle(7));
  uses_.process(false);
  EXPECT_THAT(done_, ElementsAre(block(1)));
  EXPECT_TRUE(uses_.idle());
  EXPECT_EQ(calls_.kept(), 0U);
}

TEST_F(StreamUsesTest, OfAllItsStreams) {
  uses_.record(block(1), stream(7));
  uses_.record(block(1), stream(8));
  uses_.record(block(1), stream(7));  // once more is no other
  EXPECT_TRUE(uses_.freed(block(1), false));
  EXPECT_EQ(calls_.kept(), 2U);
  calls_.pass(FakeCudaCalls::handle(8));
  uses_.process(false);
  EXPECT_THAT(done_, IsEmpty());
  calls_.pass(FakeCudaCalls::handle(7));
  uses_.process(false);
  EXPECT_THAT(done_, ElementsAre(block(1)));
}

TEST_F(StreamUsesTest, ALateOneHoldsUpNoOther) {
  uses_.record(block(1), stream(7));
  uses_.record(block(2), stream(8));
  EXPECT_TRUE(uses_.freed(block(1), false));
  EXPECT_TRUE(uses_.freed(block(2), false));
  calls_.pass(FakeCudaCalls::handle(8));
  uses_.process(false);
  EXPECT_THAT(done_, ElementsAre(block(2)));
}

TEST_F(StreamUsesTest, DuringACaptureNothingReachesTheRuntime) {
  uses_.record(block(1), stream(7));
  EXPECT_TRUE(uses_.freed(block(1), true));
  uses_.process(true);
  uses_.drain(true);
  EXPECT_EQ(calls_.calls, 0);
  EXPECT_THAT(done_, IsEmpty());
  uses_.process(false);  // marked now: what came into the stream meanwhile counts too
  EXPECT_EQ(calls_.kept(), 1U);
  EXPECT_THAT(done_, IsEmpty());
  calls_.pass(FakeCudaCalls::handle(7));
  uses_.process(false);
  EXPECT_THAT(done_, ElementsAre(block(1)));
}

TEST_F(StreamUsesTest, DrainWaits) {
  for (const std::uintptr_t number : {1U, 2U}) {
    uses_.record(block(number), stream(7));
    EXPECT_TRUE(uses_.freed(block(number), false));
  }
  uses_.drain(false);
  EXPECT_EQ(calls_.waits, 2);
  EXPECT_THAT(done_, UnorderedElementsAre(block(1), block(2)));
}

TEST_F(StreamUsesTest, AFreeThatCannotMarkHoldsTheBlockBackUntilItCan) {
  uses_.record(block(1), stream(7));
  calls_.broken = true;
  EXPECT_TRUE(uses_.freed(block(1), false));
  EXPECT_THROW(uses_.process(false), std::runtime_error);
  EXPECT_THAT(uses_.waiting(), ElementsAre(block(1)));
  calls_.broken = false;
  uses_.process(false);
  EXPECT_THAT(done_, IsEmpty());
  calls_.pass(FakeCudaCalls::handle(7));
  uses_.process(false);
  EXPECT_THAT(done_, ElementsAre(block(1)));
}

TEST_F(StreamUsesTest, AnAddressThatComesBackIsANewBlock) {
  uses_.record(block(1), stream(7));
  EXPECT_TRUE(uses_.freed(block(1), false));
  calls_.pass(FakeCudaCalls::handle(7));
  uses_.process(false);
  EXPECT_FALSE(uses_.freed(block(1), false));
}

TEST(StreamUsesEnd, ForgetsItsMarks) {
  FakeCudaCalls calls;
  {
    StreamUses uses(calls, [](void*) {});
    uses.record(block(1), {0, FakeCudaCalls::handle(7)});
    EXPECT_TRUE(uses.freed(block(1), false));
    EXPECT_EQ(calls.kept(), 1U);
  }
  EXPECT_EQ(calls.kept(), 0U);
}

}  // namespace
}  // namespace commensal::stream_uses_test
