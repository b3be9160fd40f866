// SPDX-License-Identifier: Apache-2.0
// Many threads on the simulated driver at once: for the sanitizers, and for contents and ledger.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::stress_test {
namespace {

constexpr std::size_t kChunk = 2UL << 20;

using Stress = DriverTest;

/// One thread's life: chunks come, are filled through a stream, move to other addresses, go.
void move_chunks(CUcontext context, unsigned seed) {
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  std::mt19937 random(seed);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc right{};
  right.location = properties.location;
  right.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, 8 * kChunk, 0, 0, 0), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kChunk, &properties, 0), CUDA_SUCCESS);
  std::uint32_t expected = 0;
  for (unsigned step = 0; step < 60; ++step) {
    const CUdeviceptr at = range + (random() % 8) * kChunk;
    ASSERT_EQ(cuMemMap(at, kChunk, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemSetAccess(at, kChunk, &right, 1), CUDA_SUCCESS);
    std::uint32_t seen = 0;
    if (step > 0) {
      ASSERT_EQ(cuMemcpyDtoHAsync(&seen, at + 8192, 4, stream), CUDA_SUCCESS);
      ASSERT_EQ(seen, expected) << "seed " << seed << " step " << step;
    }
    expected = static_cast<std::uint32_t>(random());
    ASSERT_EQ(cuMemsetD32Async(at, expected, kChunk / 4, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    ASSERT_EQ(cuMemUnmap(at, kChunk), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(range, 8 * kChunk), CUDA_SUCCESS);
}

TEST_F(Stress, ThreadsMoveChunksOfTheirOwn) {
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(move_chunks, context_, seed);
  for (std::thread& thread : threads) thread.join();
}

// Streams in a ring, each waiting for the one before: the sum goes round through device memory.
TEST_F(Stress, EventsOrderStreamsAcrossThreads) {
  constexpr std::size_t kStreams = 4;
  const Allocated memory(4096);
  std::vector<CUstream> streams;
  std::vector<CUevent> events;
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams.push_back(make_stream(i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    events.push_back(make_event());
  }
  for (unsigned round = 0; round < 50; ++round) {
    for (std::size_t i = 0; i < kStreams; ++i) {
      const std::size_t before = (i + kStreams - 1) % kStreams;
      ASSERT_EQ(cuStreamWaitEvent(streams[i], events[before], 0), CUDA_SUCCESS);
      ASSERT_EQ(cuMemcpyDtoDAsync(memory.at(4 * (i + 1)), memory.at(4 * i), 4, streams[i]),
                CUDA_SUCCESS);
      ASSERT_EQ(cuEventRecord(events[i], streams[i]), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuStreamWaitEvent(streams[0], events[kStreams - 1], 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD32Async(memory.at(), round, 1, streams[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(events[0], streams[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(events[kStreams - 1], streams[0]), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  std::uint32_t last = 0;
  EXPECT_EQ(cuMemcpyDtoH(&last, memory.at(4 * kStreams), 4), CUDA_SUCCESS);
  EXPECT_EQ(last, 48U);  // what round 48 wrote and round 49 carried round
  for (CUstream stream : streams) EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  for (CUevent event : events) EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

// Threads capture and launch while others allocate; thread-local captures do not hinder them.
TEST_F(Stress, CapturesBesideAllocations) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([this] {
      ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      const Allocated memory(4096);
      CUstream stream = make_stream();
      for (unsigned round = 1; round <= 20; ++round) {
        ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
        ASSERT_EQ(cuMemsetD32Async(memory.at(), round, 1, stream), CUDA_SUCCESS);
        CUgraph graph = nullptr;
        ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
        CUgraphExec executable = nullptr;
        ASSERT_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuGraphLaunch(executable, stream), CUDA_SUCCESS);
        std::uint32_t seen = 0;
        ASSERT_EQ(cuMemcpyDtoHAsync(&seen, memory.at(), 4, stream), CUDA_SUCCESS);
        ASSERT_EQ(seen, round);
        ASSERT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
        ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
      }
      ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    });
    threads.emplace_back([this] {
      ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
      ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      for (int round = 0; round < 40; ++round) {
        CUdeviceptr address = 0;
        ASSERT_EQ(cuMemAlloc(&address, 1 << 20), CUDA_SUCCESS);
        CUstream stream = make_stream();
        ASSERT_EQ(cuMemsetD8Async(address, 1, 1 << 20, stream), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
        ASSERT_EQ(cuMemFree(address), CUDA_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace commensal::simulated_cuda::stress_test
