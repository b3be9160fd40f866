// SPDX-License-Identifier: Apache-2.0
// Probes of the virtual-memory calls: what they take, whom they stall, what the memory can do.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "driver.h"
#include "monitor.h"
#include "probe.h"

namespace probes {
namespace {

constexpr std::size_t kChunkBytes = 2 * kMiB;  // the granularity of every card so far
constexpr unsigned kBlocks = 64;
constexpr unsigned kThreads = 256;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::string mib_text(std::size_t bytes) { return std::to_string(bytes / kMiB) + "_mib"; }

// Copies words out of device memory.
std::vector<std::uint32_t> words_at(CUdeviceptr address, std::size_t count) {
  std::vector<std::uint32_t> words(count);
  const Stream stream;
  CU(cuMemcpyDtoHAsync, static_cast<void*>(words.data()), address, count * sizeof(std::uint32_t),
     static_cast<CUstream>(stream));
  stream.wait();
  return words;
}

bool all_are(const std::vector<std::uint32_t>& words, std::uint32_t wanted) {
  return std::all_of(words.begin(), words.end(),
                     [wanted](std::uint32_t word) { return word == wanted; });
}

void fill(CUdeviceptr address, std::uint32_t word, std::size_t bytes) {
  const Stream stream;
  CU(cuMemsetD32Async, address, word, bytes / sizeof(std::uint32_t), static_cast<CUstream>(stream));
  stream.wait();
}

template <typename Value>
void ask_pointer(Answer& answer, const std::string& label, CUpointer_attribute which,
                 const char* name, CUdeviceptr address) {
  Value value{};
  const CUresult result = TRY_CU(cuPointerGetAttribute, static_cast<void*>(&value), which, address);
  if (result == CUDA_SUCCESS) {
    answer.fact(label + "_" + name, static_cast<double>(value));
  } else {
    answer.fact(label + "_" + name, name_of(result));
  }
}

void ask_pointer_attributes(Answer& answer, const std::string& label, CUdeviceptr address) {
  ask_pointer<unsigned>(answer, label, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "memory_type", address);
  ask_pointer<int>(answer, label, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "device_ordinal", address);
  ask_pointer<unsigned>(answer, label, CU_POINTER_ATTRIBUTE_IS_MANAGED, "is_managed", address);
  ask_pointer<int>(answer, label, CU_POINTER_ATTRIBUTE_MAPPED, "mapped", address);
  CUdeviceptr seen = 0;
  const CUresult result = TRY_CU(cuPointerGetAttribute, static_cast<void*>(&seen),
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
  answer.fact(label + "_device_pointer", result != CUDA_SUCCESS ? name_of(result)
                                         : seen == address      ? "same"
                                                                : "another");
}

// Adds 1 to words and sums up floats by atomics; says whether the results are right.
void run_kernels_on(Device& device, Answer& answer, const std::string& label, CUdeviceptr address) {
  constexpr std::uint64_t kWords = 1024;
  constexpr std::size_t kAtomicOffset = kMiB;
  const Stream stream;
  fill(address, 7, kMiB);
  launch(device.kernel("add_one"), kBlocks, kThreads, stream, address, kWords);
  stream.wait();
  answer.fact(label + "_kernel_writes", all_are(words_at(address, kWords), 8));

  fill(address + kAtomicOffset, 0, kMiB);
  constexpr unsigned kSlots = 32;
  launch(device.kernel("add_atomically"), kBlocks, kThreads, stream, address + kAtomicOffset,
         kSlots);
  stream.wait();
  std::array<float, kSlots> sums{};
  CU(cuMemcpyDtoHAsync, static_cast<void*>(sums.data()), address + kAtomicOffset, sizeof(sums),
     static_cast<CUstream>(stream));
  stream.wait();
  const float wanted = kBlocks * kThreads / kSlots;
  answer.fact(label + "_float_atomics_right",
              std::all_of(sums.begin(), sums.end(), [&](float sum) { return sum == wanted; }));
}

// Whether the CPU may be given access, and then reads what the device has written.
void ask_cpu_access(Answer& answer, const std::string& label, Range& range, Place place) {
  const CUresult allowed = range.allow_host(0, range.bytes(), place);
  answer.fact(label + "_cpu_access",
              allowed == CUDA_SUCCESS ? std::string{"allowed"} : name_of(allowed));
  if (allowed != CUDA_SUCCESS) return;
  // The address is the same for the CPU.
  const auto* const words = reinterpret_cast<const volatile std::uint32_t*>(range.at());
  answer.fact(label + "_cpu_reads", words[17] == 5);
}

void describe_chunk(Device& device, Answer& answer, Place place) {
  const std::string label = name_of(place);
  std::size_t bytes = 0;
  try {
    bytes = rounded_up(kChunkBytes, granularity(device, place));
    answer.fact(label + "_granularity_bytes", static_cast<double>(granularity(device, place)));
    const Chunk chunk(device, place, bytes);
    answer.fact(label + "_create", "allowed");
    Range range(device, bytes);
    range.map(chunk);
    range.allow(0, bytes);
    answer.fact(label + "_device_access", "allowed");
    ask_pointer_attributes(answer, label, range.at());
    fill(range.at(), 5, kMiB);
    answer.fact(label + "_copies_right", all_are(words_at(range.at(), 1024), 5));
    if (place != Place::kDevice) ask_cpu_access(answer, label, range, place);
    run_kernels_on(device, answer, label, range.at());
  } catch (const DriverError& error) {
    answer.fact(label + "_refused", error.what());
  }
}

// Round trips of a small fill on a stream of its own, noted with their times.
class Traffic {
 public:
  explicit Traffic(Device& device) : device_(device), buffer_(device, kMiB) {
    thread_ = std::thread([this] { go(); });
  }
  ~Traffic() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  /// @throws std::runtime_error if a call failed meanwhile.
  std::vector<Stretch> stop() {
    stop_.store(true);
    thread_.join();
    if (!error_.empty()) throw std::runtime_error(error_);
    return std::move(trips_);
  }

 private:
  void go() {
    try {
      device_.enter();
      const Stream stream;
      while (!stop_.load()) {
        trips_.push_back(stretch_of([&] {
          CU(cuMemsetD32Async, buffer_.address(), 1U, std::size_t{256},
             static_cast<CUstream>(stream));
          stream.wait();
        }));
      }
    } catch (const std::exception& error) {
      error_ = error.what();
    }
  }

  Device& device_;
  Buffer buffer_;
  std::atomic<bool> stop_{false};
  std::vector<Stretch> trips_;
  std::string error_;
  std::thread thread_;
};

// When each call of one name ran.
using Calls = std::map<std::string, std::vector<Stretch>>;

// Creates, maps, opens, unmaps and releases chunks, and notes when.
Calls churn(Device& device, std::size_t bytes, int rounds) {
  Calls calls;
  for (int round = 0; round < rounds; ++round) {
    Range range(device, bytes);
    std::unique_ptr<Chunk> chunk;
    calls["create"].push_back(
        stretch_of([&] { chunk = std::make_unique<Chunk>(device, Place::kDevice, bytes); }));
    calls["map"].push_back(stretch_of([&] { range.map(*chunk); }));
    calls["set_access"].push_back(stretch_of([&] { range.allow(0, bytes); }));
    sleep_for(std::chrono::milliseconds(1));
    calls["unmap"].push_back(stretch_of([&] { range.unmap(0, bytes); }));
    calls["release"].push_back(stretch_of([&] { chunk.reset(); }));
    sleep_for(std::chrono::milliseconds(1));
  }
  return calls;
}

// How long unmap and release take while a kernel of 20 ms runs on memory of its own.
void unmap_beside_a_kernel(Device& device, Answer& answer) {
  Worker worker(device);
  const Stream busy;
  std::vector<double> unmaps;
  std::vector<double> releases;
  for (int round = 0; round < 10; ++round) {
    Range range(device, kChunkBytes);
    auto chunk = std::make_unique<Chunk>(device, Place::kDevice, kChunkBytes);
    range.map(*chunk);
    range.allow(0, kChunkBytes);
    worker.queue(busy, 20'000);
    unmaps.push_back(timed_us([&] { range.unmap(0, kChunkBytes); }));
    releases.push_back(timed_us([&] { chunk.reset(); }));
    busy.wait();
  }
  answer.figure("unmap_beside_a_20_ms_kernel", "us", unmaps);
  answer.figure("release_beside_a_20_ms_kernel", "us", releases);
}

}  // namespace

void host_located_chunk(Device& device, Answer& answer) {
  std::string missing;
  for (const Place place : {Place::kHostNuma, Place::kHost, Place::kDevice}) {
    try {
      describe_chunk(device, answer, place);
    } catch (const NotRun& reason) {
      missing = reason.what();  // the kernels; the other places have answers too
    }
  }
  if (!missing.empty()) throw NotRun(missing);
}

void stall_of_other_streams(Device& device, Answer& answer) {
  {
    Traffic traffic(device);
    sleep_for(std::chrono::milliseconds(300));
    answer.figure("round_trip_undisturbed", "us", lengths(traffic.stop()));
  }
  for (const std::size_t wanted : {2 * kMiB, 32 * kMiB, 256 * kMiB}) {
    if (wanted > device.budget() / 2) continue;
    Traffic traffic(device);
    const Calls calls = churn(device, wanted, 40);
    const std::vector<Stretch> trips = traffic.stop();
    for (const auto& [name, stretches] : calls) {
      const std::string label = name + "_" + mib_text(wanted);
      answer.figure(label, "us", lengths(stretches));
      answer.figure("round_trip_during_" + label, "us", longest_during(stretches, trips));
    }
  }
  unmap_beside_a_kernel(device, answer);
}

void creating_and_clearing(Device& device, Answer& answer) {
  constexpr std::uint32_t kPattern = 0xA5A5A5A5U;
  for (const std::size_t bytes :
       {2 * kMiB, 20 * kMiB, 64 * kMiB, 256 * kMiB, 1024 * kMiB, 4096 * kMiB}) {
    if (bytes > device.budget() / 2) continue;
    std::vector<double> created;
    std::vector<double> opened;
    bool zero = true;
    for (int round = 0; round < 6; ++round) {
      Range range(device, bytes);
      std::unique_ptr<Chunk> chunk;
      created.push_back(
          timed_us([&] { chunk = std::make_unique<Chunk>(device, Place::kDevice, bytes); }));
      range.map(*chunk);
      opened.push_back(timed_us([&] { range.allow(0, bytes); }));
      // From the second round on the card has seen the pattern in this memory, most likely.
      zero = zero && all_are(words_at(range.at(), kMiB / sizeof(std::uint32_t)), 0);
      zero = zero && all_are(words_at(range.at(bytes - kMiB), kMiB / sizeof(std::uint32_t)), 0);
      fill(range.at(), kPattern, bytes);
      range.unmap(0, bytes);
    }
    answer.fact(mib_text(bytes) + "_comes_as_zeros", zero);
    answer.figure("create_" + mib_text(bytes), "us", created);
    answer.figure("set_access_" + mib_text(bytes), "us", opened);
  }
}

void remap_under_a_graph(Device& device, Answer& answer) {
  const Place place = Place::kHostNuma;
  need(device, place, answer);
  const std::size_t bytes = rounded_up(
      kChunkBytes, std::max(granularity(device, place), granularity(device, Place::kDevice)));
  const Chunk on_device(device, Place::kDevice, bytes);
  Chunk on_host(device, place, bytes);
  Range range(device, bytes);
  const Buffer out(device, kMiB);
  const auto place_chunk = [&](const Chunk& chunk) {
    range.map(chunk);
    range.allow(0, bytes);
  };
  place_chunk(on_device);
  fill(range.at(), 1, kMiB);

  const Stream stream;
  const auto replayed = [&](CUgraphExec graph) {
    CU(cuGraphLaunch, graph, static_cast<CUstream>(stream));
    stream.wait();
    return words_at(out.address(), 1024);
  };
  const auto capture = [&](auto&& body) {
    CU(cuStreamBeginCapture, static_cast<CUstream>(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
    body();
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture, static_cast<CUstream>(stream), &graph);
    CUgraphExec executable = nullptr;
    CU(cuGraphInstantiate, &executable, graph, 0ULL);
    CU(cuGraphDestroy, graph);
    return executable;
  };
  const auto copy_out = [&] {
    CU(cuMemcpyDtoDAsync, out.address(), range.at(), kMiB, static_cast<CUstream>(stream));
  };
  // That a replay is refused is an answer too.
  const auto try_remaps = [&](const std::string& label, CUgraphExec graph, std::uint32_t added) {
    try {
      fill(range.at(), 1, kMiB);
      answer.fact(label + "_as_captured", all_are(replayed(graph), 1 + added));
      range.unmap(0, bytes);
      place_chunk(on_host);
      fill(range.at(), 10, kMiB);
      answer.fact(label + "_on_host_chunk", all_are(replayed(graph), 10 + added));
      range.unmap(0, bytes);
      place_chunk(on_device);
      answer.fact(label + "_back_on_device", all_are(replayed(graph), 1 + added + added));
      CU(cuGraphExecDestroy, graph);
    } catch (const DriverError& error) {
      answer.fact(label + "_refused", error.what());
    }
  };
  try_remaps("copy_node", capture(copy_out), 0);
  CUfunction const add_one = device.kernel("add_one");
  try_remaps("kernel_node", capture([&] {
               launch(add_one, kBlocks, kThreads, stream, range.at(), std::uint64_t{1024});
               copy_out();
             }),
             1);
}

void who_counts_host_chunks(Device& device, Answer& answer) {
  const auto use = [&] {
    const std::optional<CardUse> told = card_use(device.uuid());
    if (!told) throw NotRun("NVML does not tell what processes hold");
    return *told;
  };
  for (const Place place : {Place::kDevice, Place::kHostNuma, Place::kHost}) {
    const std::string label = name_of(place);
    const std::size_t bytes = rounded_up(std::min<std::size_t>(1024 * kMiB, device.budget() / 4),
                                         granularity(device, place));
    const CardUse before = use();
    // Signed: others may give memory back meanwhile.
    const auto mib = [](std::uint64_t more, std::uint64_t less) {
      return (static_cast<double>(more) - static_cast<double>(less)) / static_cast<double>(kMiB);
    };
    try {
      CardUse during{};
      {
        const Chunk chunk(device, place, bytes);
        Range range(device, bytes);
        range.map(chunk);
        range.allow(0, bytes);
        fill(range.at(), 5, kMiB);
        during = use();
      }
      const CardUse after = use();
      answer.fact(label + "_made_mib", static_cast<double>(bytes / kMiB));
      answer.fact(label + "_taken_from_the_card_mib", mib(before.free, during.free));
      answer.fact(label + "_given_back_to_the_card_mib", mib(after.free, during.free));
      if (during.own == 0) {
        answer.fact(label + "_counted_for_the_process_mib", "the process is not shown");
      } else {
        answer.fact(label + "_counted_for_the_process_mib", mib(during.own, before.own));
        answer.fact(label + "_no_longer_counted_for_it_mib", mib(during.own, after.own));
      }
    } catch (const DriverError& error) {
      answer.fact(label + "_refused", error.what());
    }
  }
}

void mapping_times(Device& device, Answer& answer) {
  for (std::size_t bytes = 2 * kMiB; bytes <= 1024 * kMiB; bytes *= 2) {
    if (bytes > device.budget() / 2) break;
    const int rounds = bytes >= 256 * kMiB ? 8 : 24;
    std::vector<double> create, map, allow, unmap, release;
    for (int round = 0; round < rounds; ++round) {
      Range range(device, bytes);
      std::unique_ptr<Chunk> chunk;
      create.push_back(
          timed_us([&] { chunk = std::make_unique<Chunk>(device, Place::kDevice, bytes); }));
      map.push_back(timed_us([&] { range.map(*chunk); }));
      allow.push_back(timed_us([&] { range.allow(0, bytes); }));
      unmap.push_back(timed_us([&] { range.unmap(0, bytes); }));
      release.push_back(timed_us([&] { chunk.reset(); }));
    }
    answer.figure("create_" + mib_text(bytes), "us", create);
    answer.figure("map_" + mib_text(bytes), "us", map);
    answer.figure("set_access_" + mib_text(bytes), "us", allow);
    answer.figure("unmap_" + mib_text(bytes), "us", unmap);
    answer.figure("release_" + mib_text(bytes), "us", release);
  }
}

void many_chunks_in_one_call(Device& device, Answer& answer) {
  for (const std::size_t count : {64U, 4U, 16U, 256U}) {
    const std::size_t bytes = count * kChunkBytes;
    if (count > 64 && bytes > device.budget()) continue;
    std::vector<std::unique_ptr<Chunk>> chunks;
    for (std::size_t index = 0; index < count; ++index) {
      chunks.push_back(std::make_unique<Chunk>(device, Place::kDevice, kChunkBytes));
    }
    std::array<std::vector<double>, 2> allowed, unmapped;
    for (std::size_t round = 0; round < 24; ++round) {
      const bool together = round % 2 == 0;
      Range range(device, bytes);
      for (std::size_t index = 0; index < count; ++index) {
        range.map(*chunks[index], index * kChunkBytes);
      }
      const std::size_t piece = together ? bytes : kChunkBytes;
      allowed[round % 2].push_back(timed_us([&] {
        for (std::size_t at = 0; at < bytes; at += piece) range.allow(at, piece);
      }));
      unmapped[round % 2].push_back(timed_us([&] {
        for (std::size_t at = 0; at < bytes; at += piece) range.unmap(at, piece);
      }));
    }
    const std::string chunks_text = std::to_string(count) + "_chunks_";
    answer.figure("set_access_of_" + chunks_text + "in_one_call", "us", allowed[0]);
    answer.figure("set_access_of_" + chunks_text + "one_by_one", "us", allowed[1]);
    answer.figure("unmap_of_" + chunks_text + "in_one_call", "us", unmapped[0]);
    answer.figure("unmap_of_" + chunks_text + "one_by_one", "us", unmapped[1]);
  }
}

}  // namespace probes
