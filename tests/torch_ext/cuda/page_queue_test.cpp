// SPDX-License-Identifier: Apache-2.0
// A GPU that writes into shared memory when it has done its work: on the simulated driver.
#include "torch_ext/cuda/page_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "allocator/cuda/device_context.h"
#include "allocator/memory_source.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/pages.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/allocator/cuda/library_named.h"

namespace commensal::page_queue_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Before the simulation is opened.
const bool kTwoDevices = ::setenv("SIMULATED_CUDA_DEVICES", "2", 0) == 0;

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
    return std::make_unique<PageQueue>(0, page().queue_done, [] { return g_capturing; });
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

// A copy in a stream of its own, while the thread that waits uses another one.
TEST_F(PageQueueTest, TheWorkOfEveryStreamIsWaitedFor) {
  const auto queue = this->queue();
  HeldStream copies;
  HeldStream more;
  EXPECT_TRUE(queue->mark(1));
  copies.pull();
  EXPECT_FALSE(done_within(1, 30ms)) << "one of the two still works";
  more.pull();
  EXPECT_TRUE(done_within(1, 10s));
}

// Its twin: a mark in the stream of the thread that waits, as it was.
TEST_F(PageQueueTest, AMarkInOneStreamAloneIsPassedWhileAnotherOneWorks) {
  const auto queue = this->queue();  // the page is registered
  const HeldStream copies;
  const CudaDriver& driver = CudaDriver::get();
  CUdeviceptr page_address = 0;
  ASSERT_EQ(driver.cuMemHostGetDevicePointer(&page_address, &page(), 0), CUDA_SUCCESS);
  const CUdeviceptr done = page_address + offsetof(wire::JobPage, queue_done);
  CUstream current = nullptr;
  ASSERT_EQ(driver.cuStreamCreateWithPriority(&current, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuStreamWriteValue64(current, done, 1, CU_STREAM_WRITE_VALUE_DEFAULT),
            CUDA_SUCCESS);
  EXPECT_TRUE(done_within(1, 10s));
  EXPECT_EQ(driver.cuStreamDestroy(current), CUDA_SUCCESS);
  page().queue_done.store(0);  // as the queue left it
}

bool has_second() {
  try {
    const DeviceContext second(1);
    return true;
  } catch (const SourceError&) {
    return false;
  }
}

/// A held stream of the second device.
struct HeldElsewhere {
  HeldElsewhere() {
    const DeviceContext::Scope scope(context);
    held = std::make_unique<HeldStream>();
  }
  ~HeldElsewhere() {
    const DeviceContext::Scope scope(context);
    held.reset();
  }
  HeldElsewhere(const HeldElsewhere&) = delete;
  HeldElsewhere& operator=(const HeldElsewhere&) = delete;
  const DeviceContext context{1};
  std::unique_ptr<HeldStream> held;
};

TEST_F(PageQueueTest, TheWorkOfAFurtherDeviceIsWaitedFor) {
  if (!kTwoDevices || !has_second()) GTEST_SKIP() << "one device";
  const auto queue = this->queue();
  queue->add(1);
  HeldElsewhere work;
  EXPECT_TRUE(queue->mark(1));
  EXPECT_FALSE(done_within(1, 30ms)) << "the second device works";
  work.held->pull();
  EXPECT_TRUE(done_within(1, 10s));
}

// Its twin.
TEST_F(PageQueueTest, OfADeviceThatWasNotAddedNothingIsKnown) {
  if (!kTwoDevices || !has_second()) GTEST_SKIP() << "one device";
  const auto queue = this->queue();
  const HeldElsewhere work;
  EXPECT_TRUE(queue->mark(1));
  EXPECT_TRUE(done_within(1, 10s));
}

TEST_F(PageQueueTest, AFurtherDeviceThatCannotBeAddedIsNamedAndMarksGoOn) {
  if (!machine_.simulated()) GTEST_SKIP() << "a card's driver does not fail on demand";
  const auto queue = this->queue();
  machine_.fail("cuEventCreate", 1);
  EXPECT_THROW(queue->add(1), SourceError);
  EXPECT_TRUE(queue->mark(1));
  EXPECT_TRUE(done_within(1, 10s));
}

// What works on is what the program gave the device after the mark: it waits for none of it.
TEST_F(PageQueueTest, LaterWorkIsNotWaitedFor) {
  const auto queue = this->queue();
  EXPECT_TRUE(queue->mark(1));
  const HeldStream later;
  EXPECT_TRUE(done_within(1, 10s));
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
  const auto asked = [this] {
    return machine_.calls("cuCtxRecordEvent") + machine_.calls("cuStreamWriteValue64");
  };
  const std::uint64_t before = asked();
  g_capturing = true;
  EXPECT_FALSE(queue->mark(1));
  EXPECT_EQ(asked(), before);
  g_capturing = false;
  EXPECT_TRUE(queue->mark(1));
}

// F6: a library that captures by itself, on either device, in streams as CuPy and Warp make them.
TEST_F(PageQueueTest, ACaptureOfAnotherLibraryIsNotBroken) {
  const auto queue = this->queue();
  queue->add(1);
  for (const int device : {0, 1}) {
    const DeviceContext context(device);
    const DeviceContext::Scope scope(context);
    scope.check();
    CUstream stream = nullptr;
    ASSERT_EQ(CudaDriver::get().cuStreamCreateWithPriority(&stream, CU_STREAM_DEFAULT, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(machine_.symbol<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
                  stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
    std::thread([&] { EXPECT_FALSE(queue->mark(1)); }).join();
    CUgraph graph = nullptr;
    EXPECT_EQ(machine_.symbol<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph),
              CUDA_SUCCESS)
        << "the capture was harmed";
    EXPECT_EQ(machine_.symbol<CUresult(CUgraph)>("cuGraphDestroy")(graph), CUDA_SUCCESS);
    EXPECT_EQ(CudaDriver::get().cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  EXPECT_TRUE(queue->mark(2));
  EXPECT_TRUE(done_within(2, 10s));
}

// F6: in a stream of which the driver tells nothing.
TEST_F(PageQueueTest, NothingIsAskedWhileALibraryIsLoadedThatCapturesUnseen) {
  const auto queue = this->queue();
  EXPECT_TRUE(queue->mark(1));
  EXPECT_TRUE(done_within(1, 10s));
  auto library = std::make_unique<const LibraryNamed>("libonnxruntime_providers_cuda.so.1.22");
  CUstream stream = nullptr;
  ASSERT_EQ(CudaDriver::get().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(machine_.symbol<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
                stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_SUCCESS);
  std::thread([&] { EXPECT_FALSE(queue->mark(2)); }).join();
  CUgraph graph = nullptr;
  EXPECT_EQ(machine_.symbol<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph),
            CUDA_SUCCESS)
      << "the capture was harmed";
  EXPECT_EQ(machine_.symbol<CUresult(CUgraph)>("cuGraphDestroy")(graph), CUDA_SUCCESS);
  EXPECT_EQ(CudaDriver::get().cuStreamDestroy(stream), CUDA_SUCCESS);
  library.reset();
  EXPECT_TRUE(queue->mark(3));
  EXPECT_TRUE(done_within(3, 10s));
}

TEST_F(PageQueueTest, WhatTheDriverRefusesIsNamedAndLeavesNothing) {
  if (!machine_.simulated()) GTEST_SKIP() << "a card's driver does not fail on demand";
  machine_.fail("cuMemHostRegister", 1);
  EXPECT_THAT(refusal(), HasSubstr("cuMemHostRegister of the job's page"));
  machine_.fail("cuStreamCreateWithPriority", 1);
  EXPECT_THAT(refusal(), HasSubstr("cuStreamCreateWithPriority of the stream of marks"));
  machine_.fail("cuEventCreate", 1);
  EXPECT_THAT(refusal(), HasSubstr("cuEventCreate of marks"));
  machine_.fail("cuMemHostGetDevicePointer", 1);
  EXPECT_THAT(refusal(), HasSubstr("cuMemHostGetDevicePointer of the job's page"));
  const auto queue = this->queue();  // the page is not registered still
  for (const char* const call : {"cuCtxRecordEvent", "cuStreamWaitEvent", "cuStreamWriteValue64"}) {
    machine_.fail(call, 1);
    EXPECT_FALSE(queue->mark(1)) << call;
  }
  EXPECT_TRUE(queue->mark(2));
  EXPECT_TRUE(done_within(2, 10s));
}

}  // namespace
}  // namespace commensal::page_queue_test
