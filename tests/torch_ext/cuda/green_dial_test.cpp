// SPDX-License-Identifier: Apache-2.0
// Work that moves to a part of a GPU's multiprocessors: on the simulated driver.
#include "torch_ext/cuda/green_dial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/allocator/cuda/cuda_machine.h"

namespace commensal::green_dial_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr MultiprocessorSizes kHopper{.total = 132, .least = 8, .step = 8};

TEST(MultiprocessorPart, IsNeverMoreThanTheShare) {
  EXPECT_EQ(part_for(0.3, kHopper).asked, 39U);
  EXPECT_EQ(part_for(0.3, kHopper).count, 32U);
  EXPECT_EQ(part_for(0.99, kHopper).count, 128U);
  EXPECT_EQ(part_for(16.0 / 132.0, kHopper).count, 16U) << "an exact share loses nothing";
}

TEST(MultiprocessorPart, IsAtLeastTheSmallestOne) {
  EXPECT_EQ(part_for(0.01, kHopper).asked, 1U);
  EXPECT_EQ(part_for(0.01, kHopper).count, 8U);
}

TEST(MultiprocessorPart, IsNoneWhereTheWholeDeviceIsMeant) {
  EXPECT_EQ(part_for(1.0, kHopper).asked, 132U);
  EXPECT_FALSE(part_for(1.0, kHopper).count.has_value());
  EXPECT_FALSE(part_for(0.5, {.total = 4, .least = 8, .step = 8}).count.has_value())
      << "smaller than the smallest part";
}

/// PyTorch's current stream, as a test sees it.
class FakeCurrentStream final : public CurrentStream {
 public:
  cudaStream_t stream = nullptr;
  std::vector<std::pair<cudaStream_t, cudaStream_t>> joined;
  bool broken = false;

  cudaStream_t get(int /*device*/) override { return stream; }
  void set(int /*device*/, cudaStream_t chosen) override { stream = chosen; }
  void join(int /*device*/, cudaStream_t one, cudaStream_t other) override {
    if (broken) throw std::runtime_error("CUDA error: an event\nbacktrace");
    joined.emplace_back(one, other);
  }
};

bool g_capturing = false;

class GreenDialTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!machine_.reason().empty()) GTEST_SKIP() << machine_.reason();
    if (!machine_.simulated()) GTEST_SKIP() << "needs the simulated driver: it fails on demand";
    machine_.enter();
    machine_.clear();
    g_capturing = false;
  }
  void TearDown() override {
    if (machine_.simulated()) machine_.clear();
  }
  MultiprocessorState follow(std::optional<double> share) {
    const auto state = dial_.follow(share);
    EXPECT_TRUE(state.has_value());
    return state.value_or(MultiprocessorState{});
  }

  CudaMachine& machine_ = CudaMachine::get();
  FakeCurrentStream streams_;
  GreenDial dial_{0, streams_, [] { return g_capturing; }};
};

TEST_F(GreenDialTest, AsksTheDriverNothingBeforeThereIsAShare) {
  EXPECT_EQ(follow(std::nullopt).total, 0U);
  EXPECT_EQ(machine_.calls("cuDeviceGetDevResource"), 0U);
  EXPECT_EQ(streams_.stream, nullptr);
}

TEST_F(GreenDialTest, MovesTheThreadAndTellsWhatTheDriverGranted) {
  const MultiprocessorState state = follow(0.3);
  EXPECT_EQ(state.asked, 39U);
  EXPECT_EQ(state.granted, 32U);
  EXPECT_EQ(state.total, 132U);
  EXPECT_EQ(state.reason, "");
  ASSERT_NE(streams_.stream, nullptr);
  EXPECT_THAT(streams_.joined, ElementsAre(Pair(nullptr, streams_.stream)));
}

TEST_F(GreenDialTest, TheStreamsWaitForEachOtherAtEachStepsEnd) {
  (void)follow(0.3);
  streams_.joined.clear();
  (void)follow(0.3);
  EXPECT_THAT(streams_.joined, ElementsAre(Pair(nullptr, streams_.stream)));
}

TEST_F(GreenDialTest, AnotherShareIsAnotherStreamAndTheFirstOneIsKept) {
  (void)follow(0.3);
  auto* const first = streams_.stream;
  EXPECT_EQ(follow(0.5).granted, 64U);
  EXPECT_NE(streams_.stream, first);
  (void)follow(0.3);
  EXPECT_EQ(streams_.stream, first);
  EXPECT_EQ(machine_.calls("cuGreenCtxCreate"), 2U);
  EXPECT_EQ(machine_.calls("cuGreenCtxDestroy"), 0U);
}

TEST_F(GreenDialTest, WithoutAShareTheThreadGoesBackToTheDefaultStream) {
  (void)follow(0.3);
  auto* const green = streams_.stream;
  streams_.joined.clear();
  const MultiprocessorState state = follow(std::nullopt);
  EXPECT_EQ(state.granted, 132U);
  EXPECT_EQ(streams_.stream, nullptr);
  EXPECT_THAT(streams_.joined, ElementsAre(Pair(green, nullptr)));
}

TEST_F(GreenDialTest, AStreamThatTheProgramChoseIsLeftAlone) {
  auto* const own = reinterpret_cast<cudaStream_t>(4096);
  streams_.stream = own;
  EXPECT_THAT(follow(0.3).reason, HasSubstr("a stream of its own"));
  EXPECT_EQ(streams_.stream, own);
  EXPECT_THAT(streams_.joined, IsEmpty());
  streams_.stream = nullptr;  // it is back
  EXPECT_EQ(follow(0.3).reason, "");
}

TEST_F(GreenDialTest, NothingIsAskedWhileAGraphMayBeCaptured) {
  g_capturing = true;
  EXPECT_FALSE(dial_.follow(0.3).has_value());
  EXPECT_EQ(machine_.calls("cuDeviceGetDevResource"), 0U);
  EXPECT_EQ(streams_.stream, nullptr);
}

TEST_F(GreenDialTest, EachCallThatFailsLeavesTheThreadWhereItWasAndIsNamed) {
  for (const char* const call :
       {"cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc",
        "cuGreenCtxCreate", "cuGreenCtxGetDevResource", "cuGreenCtxStreamCreate"}) {
    machine_.clear();
    GreenDial dial{0, streams_, [] { return false; }};
    machine_.fail(call, 1, CUDA_ERROR_NOT_SUPPORTED);
    const auto state = dial.follow(0.3);
    ASSERT_TRUE(state.has_value());
    EXPECT_THAT(state->reason, HasSubstr(call));
    EXPECT_THAT(state->reason, HasSubstr("CUDA_ERROR_NOT_SUPPORTED"));
    EXPECT_EQ(streams_.stream, nullptr);
    EXPECT_EQ(machine_.calls("cuGreenCtxCreate"),
              machine_.calls("cuGreenCtxDestroy") + (call == std::string("cuGreenCtxCreate")))
        << "nothing of it stays";
    // The same share is not tried again, another one is.
    EXPECT_EQ(dial.follow(0.3)->reason, state->reason);
    EXPECT_EQ(dial.follow(0.5)->granted, 64U);
    (void)dial.follow(std::nullopt);
  }
}

TEST_F(GreenDialTest, AFailedChangeBringsTheThreadBackToTheDefaultStream) {
  (void)follow(0.3);
  machine_.fail("cuGreenCtxCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const MultiprocessorState state = follow(0.5);
  EXPECT_THAT(state.reason, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ(state.granted, 132U);
  EXPECT_EQ(state.asked, 66U);
  EXPECT_EQ(streams_.stream, nullptr);
}

TEST_F(GreenDialTest, WhereStreamsCannotWaitTheThreadStays) {
  streams_.broken = true;
  const MultiprocessorState state = follow(0.3);
  EXPECT_EQ(state.reason, "CUDA error: an event") << "without the backtrace";
  EXPECT_EQ(streams_.stream, nullptr);
}

}  // namespace
}  // namespace commensal::green_dial_test
