// SPDX-License-Identifier: Apache-2.0
// Probes of the gate's means: noise of steps, draining the queue, words that streams write and
// await.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>

#include "child.h"
#include "driver.h"
#include "probe.h"
#include "rates.h"

namespace probes {
namespace {

// A step as of a training job: kernels of 100 us each, back to back.
double step_us(Worker& worker, const Stream& stream) {
  const std::uint64_t start = now_ns();
  for (int kernel = 0; kernel < 20; ++kernel) worker.queue(stream, 100);
  stream.wait();
  return us_since(start);
}

std::vector<double> block_of_steps(Worker& worker, const Stream& stream) {
  std::vector<double> steps;
  for (int step = 0; step < 150; ++step) steps.push_back(step_us(worker, stream));
  return steps;
}

// Half the width of the 95 % interval of the median, by resampling with a fixed seed.
double half_width(const std::vector<double>& values) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::size_t> pick(0, values.size() - 1);
  std::vector<double> medians;
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> sample;
    for (std::size_t index = 0; index < values.size(); ++index) {
      sample.push_back(values[pick(random)]);
    }
    medians.push_back(median_of(std::move(sample)));
  }
  std::sort(medians.begin(), medians.end());
  return (quantile(medians, 0.975) - quantile(medians, 0.025)) / 2;
}

// Keeps kernels worth `in_flight_us` queued for a while, then stops; returns how long the rest
// took.
double drain_us(Worker& worker, const Stream& stream, double in_flight_us) {
  constexpr std::size_t kDepth = 8;
  std::vector<std::unique_ptr<Event>> events;
  for (std::size_t slot = 0; slot < kDepth; ++slot) events.push_back(std::make_unique<Event>());
  const auto queue = [&](std::size_t number) {
    worker.queue(stream, in_flight_us / kDepth);
    CU(cuEventRecord, static_cast<CUevent>(*events[number % kDepth]),
       static_cast<CUstream>(stream));
  };
  for (std::size_t number = 0; number < kDepth; ++number) queue(number);
  for (std::size_t number = kDepth; number < 4 * kDepth; ++number) {
    CU(cuEventSynchronize, static_cast<CUevent>(*events[number % kDepth]));
    queue(number);
  }
  const std::uint64_t closed = now_ns();
  stream.wait();
  return us_since(closed);
}

// The words of a shared page, for the device.
class DeviceWords {
 public:
  explicit DeviceWords(Page& page) : page_(page) {
    CU(cuMemHostRegister, static_cast<void*>(page_.words.data()), sizeof(page_.words),
       static_cast<unsigned>(CU_MEMHOSTREGISTER_DEVICEMAP));
    CU(cuMemHostGetDevicePointer, &address_, static_cast<void*>(page_.words.data()), 0U);
  }
  ~DeviceWords() { (void)Driver::get().cuMemHostUnregister(page_.words.data()); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;

  [[nodiscard]] CUdeviceptr address(std::size_t index) const noexcept {
    return address_ + index * sizeof(std::uint32_t);
  }
  [[nodiscard]] std::uint32_t read(std::size_t index) const noexcept {
    return std::atomic_ref(page_.words[index]).load();
  }
  void write(std::size_t index, std::uint32_t value) noexcept {
    std::atomic_ref(page_.words[index]).store(value);
  }
  /// Spins until the word has the value. @throws std::runtime_error after two seconds.
  void await(std::size_t index, std::uint32_t value) const {
    const std::uint64_t start = now_ns();
    while (read(index) != value) {
      if (now_ns() - start > 2'000'000'000U) throw std::runtime_error("a word never came");
    }
  }
  /// The same, for a word that only grows.
  void await_at_least(std::size_t index, std::uint32_t value) const {
    const std::uint64_t start = now_ns();
    while (read(index) < value) {
      if (now_ns() - start > 2'000'000'000U) throw std::runtime_error("a word never came");
    }
  }

 private:
  Page& page_;
  CUdeviceptr address_ = 0;
};

constexpr std::size_t kTold = 0;   // word that the device writes
constexpr std::size_t kGate = 16;  // word that a stream waits for, on a cache line of its own
constexpr std::size_t kBegun = 32;

void write_in_a_capture(const DeviceWords& words, Answer& answer) {
  const Stream stream;
  CU(cuStreamBeginCapture, static_cast<CUstream>(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
  const CUresult written =
      TRY_CU(cuStreamWriteValue32, static_cast<CUstream>(stream), words.address(kTold), 77U, 0U);
  CUgraph graph = nullptr;
  const CUresult ended = TRY_CU(cuStreamEndCapture, static_cast<CUstream>(stream), &graph);
  answer.fact("write_in_a_capture",
              written == CUDA_SUCCESS ? std::string{"allowed"} : name_of(written));
  answer.fact("capture_afterwards",
              ended == CUDA_SUCCESS ? std::string{"ends well"} : name_of(ended));
  if (written != CUDA_SUCCESS || ended != CUDA_SUCCESS) return;
  CUgraphExec executable = nullptr;
  CU(cuGraphInstantiate, &executable, graph, 0ULL);
  CU(cuGraphLaunch, executable, static_cast<CUstream>(stream));
  stream.wait();
  answer.fact("replay_writes_the_word", words.read(kTold) == 77U);
  CU(cuGraphExecDestroy, executable);
  CU(cuGraphDestroy, graph);
}

// A stream of pieces, each behind a wait for an open gate: what a thread issues ahead.
class GatedPieces {
 public:
  static constexpr std::uint32_t kPieces = 20;
  static constexpr double kPieceUs = 200;

  /// @param worker  null: the pieces are words alone.
  GatedPieces(DeviceWords& words, Worker* worker) : words_(words), worker_(worker) {}
  ~GatedPieces() { words_.write(kGate, 1); }  // else the driver waits for what is queued
  GatedPieces(const GatedPieces&) = delete;
  GatedPieces& operator=(const GatedPieces&) = delete;

  /// Queues all pieces. @return the result of the first call that was refused.
  CUresult queue(CUstream stream) {
    for (std::uint32_t number = 1; number <= kPieces; ++number) {
      CUresult result = TRY_CU(cuStreamWaitValue32, stream, words_.address(kGate), 1U,
                               static_cast<unsigned>(CU_STREAM_WAIT_VALUE_GEQ));
      if (result != CUDA_SUCCESS) return result;
      result = TRY_CU(cuStreamWriteValue32, stream, words_.address(kBegun), number, 0U);
      if (result != CUDA_SUCCESS) return result;
      if (worker_ != nullptr) worker_->queue(stream, kPieceUs);
      CU(cuStreamWriteValue32, stream, words_.address(kTold), number, 0U);
    }
    return CUDA_SUCCESS;
  }

  /// Opens and closes the gate of what `issue` queues into the stream.
  template <typename Issue>
  void measure(Answer& answer, const std::string& label, CUstream stream, Issue issue) {
    std::vector<double> opened, quiet, begun_after_closing;
    bool held = true;
    for (int round = 0; round < 30; ++round) {
      for (const std::size_t word : {kGate, kBegun, kTold}) words_.write(word, 0);
      if (const CUresult result = issue(); result != CUDA_SUCCESS) {
        answer.fact(label + "_refused", name_of(result));
        return;
      }
      sleep_for(std::chrono::microseconds(500));
      held = held && words_.read(kBegun) == 0;
      const std::uint64_t opening = now_ns();
      words_.write(kGate, 1);
      words_.await_at_least(kBegun, 1);
      opened.push_back(us_since(opening));
      if (worker_ != nullptr) close(quiet, begun_after_closing);
      words_.write(kGate, 1);
      CU(cuStreamSynchronize, stream);
    }
    answer.fact(label + "_holds_while_closed", held);
    answer.fact(label + "_does_all_in_the_end", words_.read(kTold) == kPieces);
    answer.figure(label + "_open_to_work_begun", "us", opened);
    if (worker_ == nullptr) return;
    answer.figure(label + "_close_to_quiet", "us", quiet);
    answer.figure(label + "_pieces_begun_after_closing", "pieces", begun_after_closing);
  }

 private:
  // In the middle of a piece; the stream is quiet once nothing has changed for two milliseconds.
  void close(std::vector<double>& quiet, std::vector<double>& begun_after_closing) {
    constexpr std::uint64_t kQuietNs = 2'000'000;
    words_.await_at_least(kBegun, 5);
    const std::uint64_t begun = words_.read(kBegun);
    const std::uint64_t closing = now_ns();
    words_.write(kGate, 0);
    std::uint64_t changed = closing;
    std::uint32_t told = words_.read(kTold);
    while (now_ns() - changed < kQuietNs) {
      const std::uint32_t now_told = words_.read(kTold);
      if (now_told == told) continue;
      told = now_told;
      changed = now_ns();
    }
    quiet.push_back(static_cast<double>(changed - closing) / 1000.0);
    begun_after_closing.push_back(static_cast<double>(words_.read(kBegun) - begun));
  }

  DeviceWords& words_;
  Worker* worker_;
};

void gate_in_a_graph(GatedPieces& pieces, Answer& answer) {
  const Stream stream;
  CU(cuStreamBeginCapture, static_cast<CUstream>(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
  const CUresult queued = pieces.queue(stream);
  CUgraph graph = nullptr;
  const CUresult ended = TRY_CU(cuStreamEndCapture, static_cast<CUstream>(stream), &graph);
  answer.fact("wait_in_a_capture", queued == CUDA_SUCCESS ? "allowed" : name_of(queued));
  answer.fact("capture_afterwards", ended == CUDA_SUCCESS ? "ends well" : name_of(ended));
  if (queued != CUDA_SUCCESS || ended != CUDA_SUCCESS) return;
  CUgraphExec executable = nullptr;
  CU(cuGraphInstantiate, &executable, graph, 0ULL);
  CU(cuGraphDestroy, graph);
  pieces.measure(answer, "graph", stream,
                 [&] { return TRY_CU(cuGraphLaunch, executable, static_cast<CUstream>(stream)); });
  CU(cuGraphExecDestroy, executable);
}

}  // namespace

void noise_of_steps(Device& device, Answer& answer) {
  Worker worker(device);
  const Stream stream;
  const std::uint64_t start = now_ns();
  while (us_since(start) < 2e6) (void)step_us(worker, stream);  // clocks settle
  std::vector<double> all;
  std::vector<double> differences;
  for (int pair = 0; pair < 20; ++pair) {
    const std::vector<double> first = block_of_steps(worker, stream);
    const std::vector<double> second = block_of_steps(worker, stream);
    differences.push_back((median_of(second) / median_of(first) - 1) * 100);
    all.insert(all.end(), first.begin(), first.end());
  }
  const double middle = median_of(differences);
  const double width = half_width(differences);
  answer.figure("step", "us", all);
  answer.figure("difference_of_equal_blocks", "%", differences);
  answer.fact("interval_half_width_percent", width);
  answer.fact("one_percent_is_measurable", std::abs(middle) + width <= 0.5);
}

void draining_the_queue(Device& device, Answer& answer) {
  Worker worker(device);
  const Stream stream;
  for (const double in_flight_us : {100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0}) {
    std::vector<double> drained;
    for (int round = 0; round < 60; ++round) {
      drained.push_back(drain_us(worker, stream, in_flight_us));
    }
    answer.figure("drain_of_" + std::to_string(static_cast<int>(in_flight_us)) + "_us_in_flight",
                  "us", drained);
  }
}

void completion_written_to_memory(Device& device, Answer& answer) {
  constexpr std::uint32_t kWrites = 4000;
  answer.fact("stream_memory_operations",
              device.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0);
  SharedPage page;
  const DeviceWords words(*page);
  Child reader("reader", page);
  reader.wait_ready();
  const Stream stream;
  std::vector<std::uint64_t> told(kWrites + 1);
  std::vector<double> calls;
  for (std::uint32_t number = 1; number <= kWrites; ++number) {
    told[number] = now_ns();
    CU(cuStreamWriteValue32, static_cast<CUstream>(stream), words.address(kTold), number, 0U);
    calls.push_back(us_since(told[number]));
    words.await(kTold, number);
    sleep_for(std::chrono::microseconds(20));
  }
  reader.finish();
  std::vector<double> latencies;
  for (std::uint32_t number = 1; number <= kWrites; ++number) {
    const std::uint64_t seen = page->values[number];
    if (seen != 0) latencies.push_back(static_cast<double>(seen - told[number]) / 1000.0);
  }
  answer.figure("write_to_reader_in_another_process", "us", latencies);
  answer.figure("cpu_per_write", "us", calls);

  // What it replaces: an event, asked again and again in the same process.
  const Event event;
  std::vector<double> events;
  for (int round = 0; round < 1000; ++round) {
    const std::uint64_t start = now_ns();
    CU(cuEventRecord, static_cast<CUevent>(event), static_cast<CUstream>(stream));
    while (TRY_CU(cuEventQuery, static_cast<CUevent>(event)) == CUDA_ERROR_NOT_READY) {
    }
    events.push_back(us_since(start));
  }
  answer.figure("event_recorded_to_seen", "us", events);
  write_in_a_capture(words, answer);
}

void gate_by_a_waiting_stream(Device& device, Answer& answer) {
  SharedPage page;
  DeviceWords words(*page);
  const Stream stream;
  std::vector<double> opened;
  for (std::uint32_t number = 1; number <= 1000; ++number) {
    CU(cuStreamWaitValue32, static_cast<CUstream>(stream), words.address(kGate), number,
       static_cast<unsigned>(CU_STREAM_WAIT_VALUE_EQ));
    CU(cuStreamWriteValue32, static_cast<CUstream>(stream), words.address(kTold), number, 0U);
    sleep_for(std::chrono::microseconds(200));
    const std::uint64_t open = now_ns();
    words.write(kGate, number);
    words.await(kTold, number);
    opened.push_back(us_since(open));
  }
  answer.figure("open_to_work_seen", "us", opened);

  SharedPage other;
  other->give(Worker(device).load(1000));
  Child neighbour("work", other);
  neighbour.wait_ready();
  other->go.store(1);
  std::vector<double> alone;
  std::vector<double> beside;
  const auto rate = [&other] { return rate_of(*other, std::chrono::milliseconds(500)); };
  (void)rate();
  for (std::uint32_t round = 0; round < 8; ++round) {
    alone.push_back(rate());
    CU(cuStreamWaitValue32, static_cast<CUstream>(stream), words.address(kGate), 5000U + round,
       static_cast<unsigned>(CU_STREAM_WAIT_VALUE_EQ));
    beside.push_back(rate());
    words.write(kGate, 5000U + round);
    stream.wait();
  }
  neighbour.finish();
  answer.figure("neighbour_alone", "kernels/s", alone);
  answer.figure("neighbour_beside_a_waiting_context", "kernels/s", beside);
  answer.fact("neighbour_loses_percent", (1 - median_of(beside) / median_of(alone)) * 100);
}

void gates_in_default_stream_and_graph(Device& device, Answer& answer) {
  SharedPage page;
  DeviceWords words(*page);
  std::unique_ptr<Worker> worker;
  std::string missing;
  try {
    worker = std::make_unique<Worker>(device);
  } catch (const NotRun& reason) {
    missing = reason.what();  // opening has an answer without
  }
  GatedPieces pieces(words, worker.get());
  const Stream own;
  pieces.measure(answer, "own_stream", own, [&] { return pieces.queue(own); });
  CUstream const legacy = CU_STREAM_LEGACY;
  pieces.measure(answer, "legacy_stream", legacy, [&] { return pieces.queue(legacy); });
  gate_in_a_graph(pieces, answer);
  if (!missing.empty()) throw NotRun(missing);
}

}  // namespace probes
