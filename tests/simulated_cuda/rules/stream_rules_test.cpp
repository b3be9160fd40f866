// SPDX-License-Identifier: Apache-2.0
// The documented rules of streams, events, host functions and memory operations of streams.
#include <atomic>
#include <thread>

#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::stream_rules_test {
namespace {

class StreamRules : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    first_ = make_stream();
    second_ = make_stream();
  }
  void TearDown() override {
    EXPECT_EQ(cuStreamDestroy(first_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(second_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }

  CUstream first_ = nullptr;
  CUstream second_ = nullptr;
};

// Work of one stream is done in order.
TEST_F(StreamRules, AStreamKeepsItsOrder) {
  const Allocated memory(4096);
  Pinned result(4);
  for (unsigned i = 1; i <= 50; ++i) {
    EXPECT_EQ(cuMemsetD32Async(memory.at(), i, 1, first_), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemcpyDtoHAsync(result.as(), memory.at(), 4, first_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
  EXPECT_EQ(*result.as<std::uint32_t>(), 50U);
}

// cuStreamQuery: CUDA_ERROR_NOT_READY while work is outstanding.
TEST_F(StreamRules, AQuerySaysWhetherWorkIsOutstanding) {
  EXPECT_EQ(cuStreamQuery(first_), CUDA_SUCCESS);
  {
    Plug plug(first_);
    EXPECT_EQ(cuStreamQuery(first_), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(second_), CUDA_SUCCESS);  // the other goes on
  }
  EXPECT_EQ(cuStreamQuery(first_), CUDA_SUCCESS);
}

// cuCtxRecordEvent: "captures in hEvent all the activities of the context", whatever the stream.
TEST_F(StreamRules, AnEventOfTheContextWaitsForAllStreams) {
  const CUevent event = make_event();
  EXPECT_EQ(cuCtxRecordEvent(context_, event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);  // nothing to do
  {
    Plug plug(second_);
    EXPECT_EQ(cuCtxRecordEvent(context_, event), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);  // the other goes on
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// ... "at the time of this call. Uses of hCtx after this call do not modify hEvent."
TEST_F(StreamRules, AnEventOfTheContextIsNotHeldUpByLaterWork) {
  const CUevent event = make_event();
  EXPECT_EQ(cuCtxRecordEvent(context_, event), CUDA_SUCCESS);
  const Plug plug(first_);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// Streams made with CU_STREAM_NON_BLOCKING do not wait for each other nor for the default stream.
TEST_F(StreamRules, NonBlockingStreamsAreIndependentOfTheDefaultStream) {
  const Allocated memory(4096);
  Plug plug(first_);
  EXPECT_EQ(cuMemsetD8(memory.at(), 1, 16), CUDA_SUCCESS);  // on the default stream, waits for it
  EXPECT_EQ(cuStreamQuery(first_), CUDA_ERROR_NOT_READY);
}

// A wait for a value holds up the legacy default stream, and with it the blocking streams alone.
TEST_F(StreamRules, AWaitInTheLegacyDefaultStreamHoldsUpBlockingStreams) {
  const Allocated memory(4096);
  CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  {
    Plug plug(CU_STREAM_LEGACY);
    EXPECT_EQ(cuMemsetD8Async(memory.at(), 1, 16, blocking), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuMemsetD8Async(memory.at(16), 1, 16, first_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);  // a non-blocking one goes on
  }
  EXPECT_EQ(cuStreamSynchronize(blocking), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(blocking), CUDA_SUCCESS);
}

// The legacy default stream waits for all blocking streams, and they wait for it.
TEST_F(StreamRules, TheLegacyDefaultStreamWaitsForBlockingStreams) {
  const Allocated memory(4096);
  CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  CUstream other = make_stream(CU_STREAM_DEFAULT);
  {
    Plug plug(blocking);
    EXPECT_EQ(cuMemsetD8Async(memory.at(), 1, 16, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);  // behind `blocking`
    EXPECT_EQ(cuMemsetD8Async(memory.at(16), 1, 16, other), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_NOT_READY);  // behind the default stream
  }
  EXPECT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(blocking), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(other), CUDA_SUCCESS);
}

// The per-thread default stream is a stream of its own for each thread.
TEST_F(StreamRules, EachThreadHasItsDefaultStream) {
  const Allocated memory(4096);
  Plug plug(CU_STREAM_PER_THREAD);
  EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  CUresult elsewhere = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    (void)cuCtxSetCurrent(context_);
    elsewhere = cuStreamQuery(CU_STREAM_PER_THREAD);
  }).join();
  EXPECT_EQ(elsewhere, CUDA_SUCCESS);
}

// cuStreamDestroy: "in case the device is still doing work in the stream ... the function will
// return immediately and the resources will be released once the device has completed all work".
TEST_F(StreamRules, ADestroyedStreamStillDoesItsWork) {
  const Allocated memory(4096);
  CUstream stream = make_stream();
  CUevent event = make_event();
  Pinned word(4);
  EXPECT_EQ(cuStreamWaitValue32(stream, word.device(), 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(memory.at(), 7, 1, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  __atomic_store_n(word.as<std::uint32_t>(), 1U, __ATOMIC_SEQ_CST);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  std::uint8_t seen = 0;
  EXPECT_EQ(cuMemcpyDtoH(&seen, memory.at(), 1), CUDA_SUCCESS);
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// cuStreamCreateWithPriority: "if the given numerical priority is outside the numerical range it
// will automatically be clamped".
TEST_F(StreamRules, PrioritiesAreClamped) {
  int least = 0;
  int greatest = 0;
  ASSERT_EQ(cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest - 100),
            CUDA_SUCCESS);
  int priority = 0;
  EXPECT_EQ(cuStreamGetPriority(stream, &priority), CUDA_SUCCESS);
  EXPECT_EQ(priority, greatest);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamCreate(&stream, 0x40), CUDA_ERROR_INVALID_VALUE);
}

// cuEventQuery: CUDA_SUCCESS for an event that was never recorded.
TEST_F(StreamRules, AnUnrecordedEventIsComplete) {
  CUevent event = make_event();
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(first_, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(first_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// An event stands for the work before its latest record.
TEST_F(StreamRules, AnEventStandsForTheWorkBeforeIt) {
  CUevent event = make_event();
  EXPECT_EQ(cuEventRecord(event, first_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  {
    Plug plug(first_);
    EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);  // recorded before the plug
    EXPECT_EQ(cuEventRecord(event, first_), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// cuStreamWaitEvent orders work of two streams; it "uses the most recent call to cuEventRecord at
// the time of the call": a later record does not matter.
TEST_F(StreamRules, AStreamWaitsForAnEventOfAnother) {
  const Allocated memory(4096);
  CUevent event = make_event();
  {
    Plug plug(first_);
    EXPECT_EQ(cuMemsetD32Async(memory.at(), 1, 1, first_), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(event, first_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(second_, event, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD32Async(memory.at(), 2, 1, second_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(second_), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(cuStreamSynchronize(second_), CUDA_SUCCESS);
  std::uint32_t seen = 0;
  EXPECT_EQ(cuMemcpyDtoH(&seen, memory.at(), 4), CUDA_SUCCESS);
  EXPECT_EQ(seen, 2U);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// cuEventElapsedTime: CUDA_ERROR_INVALID_HANDLE without timing or before a record,
// CUDA_ERROR_NOT_READY before the work is done.
TEST_F(StreamRules, ElapsedTimeNeedsTwoRecordedEventsWithTiming) {
  CUevent begin = make_event(CU_EVENT_DEFAULT);
  CUevent end = make_event(CU_EVENT_DEFAULT);
  CUevent untimed = make_event(CU_EVENT_DISABLE_TIMING);
  float milliseconds = -1;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventRecord(begin, first_), CUDA_SUCCESS);
  {
    Plug plug(first_);
    EXPECT_EQ(cuEventRecord(end, first_), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cuEventRecord(untimed, first_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, untimed), CUDA_ERROR_INVALID_HANDLE);
  for (CUevent event : {begin, end, untimed}) EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// cuLaunchHostFunc: called "after currently enqueued work and will block work added after it".
TEST_F(StreamRules, AHostFunctionRunsInItsPlace) {
  struct Seen {
    Pinned word{4};
    std::atomic<std::uint32_t> in_function{0};
  } seen;
  const Allocated memory(4096);
  EXPECT_EQ(cuMemsetD32Async(memory.at(), 9, 1, first_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(seen.word.as(), memory.at(), 4, first_), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchHostFunc(
                first_,
                [](void* data) {
                  auto* got = static_cast<Seen*>(data);
                  got->in_function = *got->word.as<std::uint32_t>();
                },
                &seen),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
  EXPECT_EQ(seen.in_function, 9U);
}

// cuLaunchHostFunc: "The host function must not make any CUDA API calls ... may result in
// CUDA_ERROR_NOT_PERMITTED".
TEST_F(StreamRules, AHostFunctionMakesNoCudaCalls) {
  if (!simulated()) GTEST_SKIP() << "a card may, but need not, refuse";
  std::atomic<CUresult> result{CUDA_SUCCESS};
  EXPECT_EQ(cuLaunchHostFunc(
                first_,
                [](void* data) {
                  std::size_t free = 0;
                  std::size_t total = 0;
                  *static_cast<std::atomic<CUresult>*>(data) = cuMemGetInfo(&free, &total);
                },
                &result),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
  EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
}

// cuStreamWriteValue32: written when the stream gets there, to device or registered memory.
TEST_F(StreamRules, AStreamWritesAValue) {
  Pinned words(16);
  {
    Plug plug(first_);
    EXPECT_EQ(cuStreamWriteValue32(first_, words.device(), 11, 0), CUDA_SUCCESS);
    EXPECT_EQ(__atomic_load_n(words.as<std::uint32_t>(), __ATOMIC_SEQ_CST), 0U);
  }
  EXPECT_EQ(__atomic_load_n(words.as<std::uint32_t>(), __ATOMIC_SEQ_CST), 11U);
  EXPECT_EQ(cuStreamWriteValue64(first_, words.device() + 8, 1ULL << 40, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
  EXPECT_EQ(__atomic_load_n(words.as<std::uint64_t>() + 1, __ATOMIC_SEQ_CST), 1ULL << 40);
}

// Stream memory operations need aligned memory that the device can reach.
TEST_F(StreamRules, ValuesAreAlignedAndInReach) {
  Pinned words(16);
  std::uint32_t local = 0;
  EXPECT_EQ(cuStreamWriteValue32(first_, words.device() + 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32(first_, reinterpret_cast<CUdeviceptr>(&local), 1, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(first_, words.device() + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

// cuStreamWaitValue32: "by default, (int32_t)(*addr - value) >= 0, a cyclic greater-or-equal".
TEST_F(StreamRules, AWaitForAValueIsCyclic) {
  Pinned word(4);
  auto* value = word.as<std::uint32_t>();
  __atomic_store_n(value, 0xffff'fff0U, __ATOMIC_SEQ_CST);
  EXPECT_EQ(cuStreamWaitValue32(first_, word.device(), 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(first_), CUDA_ERROR_NOT_READY);
  __atomic_store_n(value, 6U, __ATOMIC_SEQ_CST);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
}

// CU_STREAM_WAIT_VALUE_AND: "(*addr & value) != 0".
TEST_F(StreamRules, AWaitForABit) {
  Pinned word(4);
  auto* value = word.as<std::uint32_t>();
  __atomic_store_n(value, 3U, __ATOMIC_SEQ_CST);
  EXPECT_EQ(cuStreamWaitValue32(first_, word.device(), 4, CU_STREAM_WAIT_VALUE_AND), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(first_), CUDA_ERROR_NOT_READY);
  __atomic_store_n(value, 12U, __ATOMIC_SEQ_CST);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
}

// One stream can wait for what another writes.
TEST_F(StreamRules, StreamsMeetAtAValue) {
  Pinned word(4);
  EXPECT_EQ(cuStreamWaitValue32(second_, word.device(), 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(second_), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamWriteValue32(first_, word.device(), 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(second_), CUDA_SUCCESS);
}

// Kernels: a launch with an empty grid or block, or more than 1024 threads, is invalid.
TEST_F(StreamRules, LaunchesHaveAShape) {
  if (!simulated()) GTEST_SKIP() << "needs a compiled kernel on a card";
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, "any"), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&kernel, module, "any"), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(kernel, 0, 1, 1, 1, 1, 1, 0, first_, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(kernel, 1, 1, 1, 2048, 1, 1, 0, first_, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, first_, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(first_), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

}  // namespace
}  // namespace commensal::simulated_cuda::stream_rules_test
