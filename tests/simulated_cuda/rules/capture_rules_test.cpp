// SPDX-License-Identifier: Apache-2.0
// The documented rules of stream capture and of the graphs that come out of it.
#include <thread>

#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::capture_rules_test {
namespace {

class CaptureRules : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    stream_ = make_stream();
    side_ = make_stream();
    event_ = make_event();
    ASSERT_EQ(cuMemAlloc(&memory_, 1 << 16), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cuMemFree(memory_), CUDA_SUCCESS);
    EXPECT_EQ(cuEventDestroy(event_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(side_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }

  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    ASSERT_EQ(cuStreamBeginCapture(stream_, mode), CUDA_SUCCESS);
  }

  CUresult end() {
    CUgraph graph = nullptr;
    const CUresult result = cuStreamEndCapture(stream_, &graph);
    EXPECT_EQ(graph == nullptr, result != CUDA_SUCCESS);
    if (graph != nullptr) {
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    }
    return result;
  }

  CUresult set_word(CUstream stream, unsigned value, std::size_t word = 0) {
    return cuMemsetD32Async(memory_ + 4 * word, value, 1, stream);
  }

  std::uint32_t word(std::size_t at = 0) {
    std::uint32_t value = 0;
    EXPECT_EQ(cuMemcpyDtoH(&value, memory_ + 4 * at, 4), CUDA_SUCCESS);
    return value;
  }

  CUstreamCaptureStatus status(CUstream stream) {
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(stream, &found), CUDA_SUCCESS);
    return found;
  }

  /// Every test of a call that a capture forbids goes alike.
  template <typename Call>
  void expect_forbidden(Call call, CUresult expected = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
    begin();
    EXPECT_EQ(call(), expected);
    expect_invalidated();
  }

  void expect_invalidated() {
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(set_word(stream_, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(set_word(stream_, 1), CUDA_SUCCESS);  // the stream is itself again
  }

  CUstream stream_ = nullptr;
  CUstream side_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr memory_ = 0;
};

// "When a stream is in capture mode, all operations pushed into the stream will not be executed,
// but will instead be captured into a graph".
TEST_F(CaptureRules, CapturedWorkIsNotDone) {
  EXPECT_EQ(cuMemsetD32(memory_, 1, 1), CUDA_SUCCESS);
  begin();
  EXPECT_EQ(set_word(stream_, 2), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(word(), 1U);
  std::size_t nodes = 0;
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 1U);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// Each launch of the graph repeats the work, with the memory as it is then.
TEST_F(CaptureRules, ALaunchRepeatsTheWork) {
  Pinned source(4);
  begin();
  EXPECT_EQ(cuMemcpyHtoDAsync(memory_, source.as(), 4, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoDAsync(memory_ + 4, memory_, 4, stream_), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);  // the executable does not need it
  for (std::uint32_t value : {5U, 6U}) {
    *source.as<std::uint32_t>() = value;
    EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(word(1), value);
  }
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
}

// A launched graph lives until it is done, even if its executable is destroyed meanwhile.
TEST_F(CaptureRules, ADestroyedExecutableStillFinishes) {
  begin();
  EXPECT_EQ(set_word(stream_, 21), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
  {
    Plug plug(stream_);
    EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  EXPECT_EQ(word(), 21U);
}

// cuStreamBeginCapture: "may not be initiated if stream is CU_STREAM_LEGACY"; "may only be
// initiated if the stream is not already in capture mode".
TEST_F(CaptureRules, BeginsOnAStreamThatMay) {
  EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  begin();
  EXPECT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(end(), CUDA_SUCCESS);
  EXPECT_EQ(end(), CUDA_ERROR_ILLEGAL_STATE);
}

// cuStreamGetCaptureInfo: an id "unique over the lifetime of the process".
TEST_F(CaptureRules, EachCaptureHasAnIdOfItsOwn) {
  cuuint64_t ids[2] = {};
  for (cuuint64_t& id : ids) {
    begin();
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamGetCaptureInfo(stream_, &found, &id, nullptr, nullptr, nullptr, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(found, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(end(), CUDA_SUCCESS);
  }
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
}

// "If mode is not RELAXED, cuStreamEndCapture must be called from the same thread".
TEST_F(CaptureRules, EndsInTheThreadThatBegan) {
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] {
    (void)cuCtxSetCurrent(context_);
    CUgraph graph = nullptr;
    elsewhere = cuStreamEndCapture(stream_, &graph);
  }).join();
  EXPECT_EQ(elsewhere, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  (void)end();
}

TEST_F(CaptureRules, ARelaxedCaptureEndsInAnyThread) {
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(set_word(stream_, 1), CUDA_SUCCESS);
  std::thread([&] {
    (void)cuCtxSetCurrent(context_);
    EXPECT_EQ(end(), CUDA_SUCCESS);
  }).join();
}

// A side stream joins by an event and must come back before the end.
TEST_F(CaptureRules, ASideStreamJoinsByAnEvent) {
  CUevent back = make_event();
  begin();
  EXPECT_EQ(set_word(stream_, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_SUCCESS);
  EXPECT_EQ(status(side_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(set_word(side_, 2, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(back, side_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(stream_, back, 0), CUDA_SUCCESS);
  EXPECT_EQ(end(), CUDA_SUCCESS);
  EXPECT_EQ(status(side_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cuEventDestroy(back), CUDA_SUCCESS);
}

TEST_F(CaptureRules, UnjoinedWorkFailsTheCapture) {
  begin();
  EXPECT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_SUCCESS);
  EXPECT_EQ(set_word(side_, 2), CUDA_SUCCESS);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

// "Capture must be ended on the same stream in which it was initiated".
TEST_F(CaptureRules, EndsOnTheStreamWhereItBegan) {
  begin();
  EXPECT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(side_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// Work inside a capture cannot depend on work outside.
TEST_F(CaptureRules, DependsOnNothingOutside) {
  EXPECT_EQ(cuEventRecord(event_, side_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event_), CUDA_SUCCESS);
  expect_forbidden([&] { return cuStreamWaitEvent(stream_, event_, 0); },
                   CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

// Two captures cannot become one.
TEST_F(CaptureRules, DoesNotMergeWithAnother) {
  begin();
  ASSERT_EQ(cuStreamBeginCapture(side_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event_, side_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(stream_, event_, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(side_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// "It is invalid to synchronize or query the execution status of a stream which is being
// captured".
TEST_F(CaptureRules, ACapturingStreamIsNotSynchronized) {
  expect_forbidden([&] { return cuStreamSynchronize(stream_); });
}

TEST_F(CaptureRules, ACapturingStreamIsNotQueried) {
  expect_forbidden([&] { return cuStreamQuery(stream_); });
}

// "... or a captured event, because they do not represent items scheduled for execution".
TEST_F(CaptureRules, ACapturedEventIsNotQueried) {
  begin();
  EXPECT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_CAPTURED_EVENT);
  (void)end();
  EXPECT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);  // recorded anew, it is free
  EXPECT_EQ(cuEventSynchronize(event_), CUDA_SUCCESS);
}

// "... of a broader handle which encompasses an active stream capture, such as a device or
// context handle".
TEST_F(CaptureRules, TheContextIsNotSynchronized) {
  expect_forbidden([] { return cuCtxSynchronize(); });
}

// cuCtxRecordEvent: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "if the specified context has a stream
// in the capture mode. In such a case, the call will invalidate all the conflicting captures."
TEST_F(CaptureRules, NoEventOfTheContextIsRecorded) {
  expect_forbidden([this] { return cuCtxRecordEvent(context_, event_); });
}

// "When any stream in the same context is being captured, and it was not created with
// CU_STREAM_NON_BLOCKING, any attempted use of the legacy stream is invalid."
TEST_F(CaptureRules, TheLegacyStreamIsNotUsedBesideABlockingOne) {
  CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(set_word(nullptr, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(set_word(nullptr, 1), CUDA_SUCCESS);  // beside a non-blocking one it may
  EXPECT_EQ(end(), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(blocking), CUDA_SUCCESS);
}

// cuThreadExchangeStreamCaptureMode: "some actions, such as a call to cudaMalloc, may be unsafe".
TEST_F(CaptureRules, NothingIsAllocatedMeanwhile) {
  expect_forbidden([] {
    CUdeviceptr address = 0;
    return cuMemAlloc(&address, 4096);
  });
}

TEST_F(CaptureRules, NothingIsFreedMeanwhile) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAlloc(&address, 4096), CUDA_SUCCESS);
  expect_forbidden([&] { return cuMemFree(address); });
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
}

TEST_F(CaptureRules, NothingIsPinnedMeanwhile) {
  expect_forbidden([] {
    void* address = nullptr;
    return cuMemHostAlloc(&address, 4096, 0);
  });
}

TEST_F(CaptureRules, NoEventIsQueriedMeanwhile) {
  EXPECT_EQ(cuEventRecord(event_, side_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event_), CUDA_SUCCESS);
  expect_forbidden([&] { return cuEventQuery(event_); });
}

TEST_F(CaptureRules, NothingIsCopiedSynchronouslyMeanwhile) {
  begin();
  std::uint32_t value = 0;
  const CUresult copied = cuMemcpyDtoH(&value, memory_, 4);
  if (passed_on_a_card(copied)) {  // H200, driver 580: the capture goes on
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(end(), CUDA_SUCCESS);
    return;
  }
  EXPECT_EQ(copied, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated();
}

// GLOBAL: "prohibited from potentially unsafe API calls ... if any other thread has a concurrent
// capture sequence initiated with GLOBAL".
TEST_F(CaptureRules, AGlobalCaptureForbidsOtherThreads) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] {
    (void)cuCtxSetCurrent(context_);
    CUdeviceptr address = 0;
    elsewhere = cuMemAlloc(&address, 4096);
  }).join();
  EXPECT_EQ(elsewhere, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// THREAD_LOCAL: "Concurrent capture sequences in other threads are ignored"; the same for a
// capture that is thread-local, seen from other threads.
TEST_F(CaptureRules, AThreadLocalCaptureForbidsItsThreadAlone) {
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  std::thread([&] {
    (void)cuCtxSetCurrent(context_);
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// RELAXED, of the capture or of the thread: "not prohibited from potentially unsafe API calls".
TEST_F(CaptureRules, ARelaxedThreadMay) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);  // "the default mode"
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

TEST_F(CaptureRules, ARelaxedCaptureForbidsNothingUnsafe) {
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

// Host functions and values are captured as nodes.
TEST_F(CaptureRules, HostFunctionsAndValuesBecomeNodes) {
  Pinned word(4);
  int called = 0;
  begin();
  EXPECT_EQ(cuLaunchHostFunc(
                stream_, [](void* data) { ++*static_cast<int*>(data); }, &called),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWriteValue32(stream_, word.device(), 3, 0), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(called, 0);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(called, 2);
  EXPECT_EQ(*word.as<std::uint32_t>(), 3U);
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// A wait for a value is captured too, and holds up each launch until the value is there.
TEST_F(CaptureRules, AWaitInAGraphHoldsUpEachLaunch) {
  Pinned gate(4);
  begin();
  EXPECT_EQ(cuStreamWaitValue32(stream_, gate.device(), 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  EXPECT_EQ(set_word(stream_, 4), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  for (int launch = 0; launch < 2; ++launch) {
    __atomic_store_n(gate.as<std::uint32_t>(), 0U, __ATOMIC_SEQ_CST);
    EXPECT_EQ(set_word(stream_, 3), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(word(), 3U);
    __atomic_store_n(gate.as<std::uint32_t>(), 1U, __ATOMIC_SEQ_CST);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(word(), 4U);
  }
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
}

// CU_EVENT_RECORD_EXTERNAL: "captured in the graph as an external event node"; each launch records
// the event. "This flag is invalid outside of stream capture": a card calls that an illegal state.
TEST_F(CaptureRules, AnExternalEventIsRecordedByEachLaunch) {
  EXPECT_EQ(cuEventRecordWithFlags(event_, stream_, CU_EVENT_RECORD_EXTERNAL),
            CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS);  // nothing was recorded
  begin();
  EXPECT_EQ(set_word(stream_, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecordWithFlags(event_, stream_, CU_EVENT_RECORD_EXTERNAL), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS);  // not recorded yet
  {
    Plug plug(stream_);
    EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(side_), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(cuEventSynchronize(event_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(side_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// cuStreamIsCapturing on the legacy stream: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT while a blocking
// stream captures; "the blocking stream capture is not invalidated".
TEST_F(CaptureRules, AskingTheLegacyStreamHarmsNothing) {
  CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &found), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(blocking), CUDA_SUCCESS);
}

// The manual does not say what a launch into a capturing stream does; a card refuses it.
TEST_F(CaptureRules, NoGraphIsLaunchedIntoACapture) {
  begin();
  EXPECT_EQ(set_word(stream_, 31), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
  expect_forbidden([&] { return cuGraphLaunch(executable, stream_); });
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(word(), 1U);                                        // of what came after the capture
  EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);  // no harm to the executable
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(word(), 31U);
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

}  // namespace
}  // namespace commensal::simulated_cuda::capture_rules_test
