// SPDX-License-Identifier: Apache-2.0
// Probes of events that stand for a whole context: with many streams, behind a full queue.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "driver.h"
#include "probe.h"

namespace probes {
namespace {

void await_event(const Event& event) {
  while (TRY_CU(cuEventQuery, static_cast<CUevent>(event)) == CUDA_ERROR_NOT_READY) {
  }
}

void record_context(const Device& device, const Event& event) {
  CU(cuCtxRecordEvent, device.context(), static_cast<CUevent>(event));
}

// An event of the context, against one event a stream.
// @param worker  null: what keeps a stream busy is a fill, not a kernel.
void record_with_streams(Device& device, Worker* worker, Answer& answer, std::size_t count) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  for (std::size_t index = 0; index < count; ++index) {
    streams.push_back(std::make_unique<Stream>());
    events.push_back(std::make_unique<Event>(CU_EVENT_DISABLE_TIMING));
  }
  const Event whole(CU_EVENT_DISABLE_TIMING);
  const Buffer buffer(device, 64 * 1024);
  const auto make_busy = [&] {
    for (const auto& stream : streams) {
      if (worker != nullptr) {
        worker->queue(*stream, 20);
      } else {
        CU(cuMemsetD32Async, buffer.address(), 1U, buffer.bytes() / 4,
           static_cast<CUstream>(*stream));
      }
    }
  };
  for (const bool busy : {false, true}) {
    std::vector<double> calls, seen, each;
    for (int round = 0; round < 60; ++round) {
      if (busy) make_busy();
      const std::uint64_t start = now_ns();
      record_context(device, whole);
      calls.push_back(us_since(start));
      await_event(whole);
      seen.push_back(us_since(start));
      for (const auto& stream : streams) stream->wait();
      if (busy) make_busy();
      each.push_back(timed_us([&] {
        for (std::size_t index = 0; index < count; ++index) {
          CU(cuEventRecord, static_cast<CUevent>(*events[index]),
             static_cast<CUstream>(*streams[index]));
        }
      }));
      for (const auto& stream : streams) stream->wait();
    }
    const std::string with =
        "_with_" + std::to_string(count) + (busy ? "_busy_streams" : "_idle_streams");
    answer.figure("record_of_the_context" + with, "us", calls);
    answer.figure("record_to_seen" + with, "us", seen);
    answer.figure("record_of_an_event_each" + with, "us", each);
  }
}

}  // namespace

void recording_a_context(Device& device, Answer& answer) {
  std::unique_ptr<Worker> worker;
  std::string missing;
  try {
    worker = std::make_unique<Worker>(device);
  } catch (const NotRun& reason) {
    missing = reason.what();
  }
  answer.fact("busy_with", worker ? "kernels of 20 us" : "fills of 64 KiB: " + missing);
  for (const std::size_t count : {4U, 32U, 128U}) {
    record_with_streams(device, worker.get(), answer, count);
  }
}

void fence_behind_launches(Device& device, Answer& answer) {
  constexpr double kKernelUs = 50;
  Worker worker(device);
  const Stream stream;
  const Event last(CU_EVENT_DISABLE_TIMING);
  const Event fence(CU_EVENT_DISABLE_TIMING);
  for (const int queued : {1, 64, 256, 1024}) {
    std::vector<double> issued, recorded, drained, late;
    for (int round = 0; round < 8; ++round) {
      const std::uint64_t start = now_ns();
      for (int index = 0; index < queued; ++index) worker.queue(stream, kKernelUs);
      issued.push_back(us_since(start) / queued);
      CU(cuEventRecord, static_cast<CUevent>(last), static_cast<CUstream>(stream));
      const std::uint64_t asked = now_ns();
      record_context(device, fence);
      recorded.push_back(us_since(asked));
      await_event(last);
      const std::uint64_t ended = now_ns();
      await_event(fence);
      drained.push_back(us_since(asked) / 1000);
      late.push_back(us_since(ended));
    }
    const std::string with = "_behind_" + std::to_string(queued) + "_launches";
    answer.figure("launch" + with, "us", issued);
    answer.figure("record" + with, "us", recorded);
    answer.figure("fence" + with, "ms", drained);
    answer.figure("fence_after_the_last_kernel" + with, "us", late);
  }
  // Behind a long kernel: how far the CPU runs ahead before a launch has to wait.
  constexpr int kMost = 8192;
  std::vector<double> ahead;
  for (int round = 0; round < 3; ++round) {
    worker.queue(stream, 200'000);
    int launches = 0;
    while (launches < kMost && timed_us([&] { worker.queue(stream, 1); }) < 5000) ++launches;
    ahead.push_back(launches);
    stream.wait();
  }
  answer.figure("launches_before_one_waits", "launches", ahead);
  answer.fact("launches_before_one_waits_at_most", kMost);
}

}  // namespace probes
