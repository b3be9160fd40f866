// SPDX-License-Identifier: Apache-2.0
// A GPU that writes into shared memory when it has done its work: on the simulated driver.
#include "torch_ext/cuda/page_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "allocator/memory_source.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/pages.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/torch_ext/cuda/fake_cuda_calls.h"

namespace commensal {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

bool g_capturing = false;

class PageQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!machine_.reason().empty()) GTEST_SKIP() << machine_.reason();
    machine_.enter();
    g_capturing = false;
  }
  void TearDown() override {
    if (machine_.simulated()) machine_.clear();
  }
  std::unique_ptr<PageQueue> queue() {
    return std::make_unique<PageQueue>(0, page().queue_done, calls_, [] { return g_capturing; });
  }
  wire::JobPage& page() { return *mapped_.as<wire::JobPage>(); }
  bool done_within(std::uint64_t number, Duration patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (page().queue_done.load() != number) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
  std::string refusal() {
    try {
      (void)queue();
    } catch (const SourceError& error) {
      return error.what();
    }
    return "no refusal";
  }

  CudaMachine& machine_ = CudaMachine::get();
  FakeCudaCalls calls_;
  wire::UniqueFd memory_ = wire::make_page_memfd("test");
  wire::MappedPage mapped_{memory_.get(), wire::kPageSize, true};
};

TEST_F(PageQueueTest, TheDeviceWritesOnceItHasDoneItsWork) {
  if (!machine_.simulated()) GTEST_SKIP() << "a card cannot be held";
  const auto queue = this->queue();
  machine_.hold();
  EXPECT_TRUE(queue->mark(1));
  EXPECT_FALSE(done_within(1, 30ms)) << "it has not come so far";
  EXPECT_TRUE(queue->mark(2));
  machine_.let_go();
  EXPECT_TRUE(done_within(2, 10s));
}

TEST_F(PageQueueTest, AnotherProcessSeesItThroughItsOwnMapping) {
  const auto queue = this->queue();
  const wire::MappedPage theirs{memory_.get(), wire::kPageSize, false};
  EXPECT_TRUE(queue->mark(7));
  EXPECT_TRUE(done_within(7, 10s));
  EXPECT_EQ(theirs.as<wire::JobPage>()->queue_done.load(), 7U);
}

TEST_F(PageQueueTest, NothingIsAskedDuringACapture) {
  if (!machine_.simulated()) GTEST_SKIP() << "calls of a card's driver are not counted";
  const auto queue = this->queue();
  const std::uint64_t before = machine_.calls("cuStreamWriteValue64");
  g_capturing = true;
  EXPECT_FALSE(queue->mark(1));
  EXPECT_EQ(machine_.calls("cuStreamWriteValue64"), before);
  g_capturing = false;
  EXPECT_TRUE(queue->mark(1));
}

TEST_F(PageQueueTest, WhatTheDriverRefusesIsNamedAndLeavesNothing) {
  if (!machine_.simulated()) GTEST_SKIP() << "a card's driver does not fail on demand";
  machine_.fail("cuMemHostRegister", 1);
  EXPECT_THAT(refusal(), HasSubstr("cuMemHostRegister of the job's page"));
  machine_.fail("cuMemHostGetDevicePointer", 1);
  EXPECT_THAT(refusal(), HasSubstr("cuMemHostGetDevicePointer of the job's page"));
  const auto queue = this->queue();  // the page is not registered still
  machine_.fail("cuStreamWriteValue64", 1);
  EXPECT_FALSE(queue->mark(1));
  EXPECT_TRUE(queue->mark(2));
  EXPECT_TRUE(done_within(2, 10s));
}

}  // namespace
}  // namespace commensal
