// SPDX-License-Identifier: Apache-2.0
// Probes of the virtual-memory calls: what they take, whom they stall, what the memory can do.
#include <algorithm>
#include <array>
#include <atomic>
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

template <typename Call>
double timed_us(Call&& call) {
  const std::uint64_t start = now_ns();
  call();
  return us_since(start);
}

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
  struct Trip {
    std::uint64_t start;
    std::uint64_t end;
  };

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
  std::vector<Trip> stop() {
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
        const std::uint64_t start = now_ns();
        CU(cuMemsetD32Async, buffer_.address(), 1U, std::size_t{256},
           static_cast<CUstream>(stream));
        stream.wait();
        trips_.push_back({start, now_ns()});
      }
    } catch (const std::exception& error) {
      error_ = error.what();
    }
  }

  Device& device_;
  Buffer buffer_;
  std::atomic<bool> stop_{false};
  std::vector<Trip> trips_;
  std::string error_;
  std::thread thread_;
};

struct Operation {
  const char* name;
  std::uint64_t start;
  std::uint64_t end;
};

// Creates, maps, opens, unmaps and releases chunks, and notes when.
std::vector<Operation> churn(Device& device, std::size_t bytes, int rounds) {
  std::vector<Operation> done;
  const auto note = [&done](const char* name, auto&& call) {
    const std::uint64_t start = now_ns();
    call();
    done.push_back({name, start, now_ns()});
  };
  for (int round = 0; round < rounds; ++round) {
    Range range(device, bytes);
    std::unique_ptr<Chunk> chunk;
    note("create", [&] { chunk = std::make_unique<Chunk>(device, Place::kDevice, bytes); });
    note("map", [&] { range.map(*chunk); });
    note("set_access", [&] { range.allow(0, bytes); });
    sleep_for(std::chrono::milliseconds(1));
    note("unmap", [&] { range.unmap(0, bytes); });
    note("release", [&] { chunk.reset(); });
    sleep_for(std::chrono::milliseconds(1));
  }
  return done;
}

std::vector<double> trips_us(const std::vector<Traffic::Trip>& trips) {
  std::vector<double> result;
  for (const auto& trip : trips) {
    result.push_back(static_cast<double>(trip.end - trip.start) / 1000.0);
  }
  return result;
}

// The longest round trip that overlaps each operation of this name.
std::vector<double> trips_during(const char* name, const std::vector<Operation>& operations,
                                 const std::vector<Traffic::Trip>& trips) {
  std::vector<double> result;
  for (const Operation& operation : operations) {
    if (std::string_view{operation.name} != name) continue;
    std::uint64_t longest = 0;
    for (const auto& trip : trips) {
      if (trip.start < operation.end && operation.start < trip.end) {
        longest = std::max(longest, trip.end - trip.start);
      }
    }
    if (longest != 0) result.push_back(static_cast<double>(longest) / 1000.0);
  }
  return result;
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
    answer.figure("round_trip_undisturbed", "us", trips_us(traffic.stop()));
  }
  for (const std::size_t wanted : {2 * kMiB, 32 * kMiB, 256 * kMiB}) {
    if (wanted > device.budget() / 2) continue;
    Traffic traffic(device);
    const std::vector<Operation> operations = churn(device, wanted, 40);
    const auto trips = traffic.stop();
    for (const char* name : {"create", "map", "set_access", "unmap", "release"}) {
      const std::string label = std::string{name} + "_" + mib_text(wanted);
      std::vector<double> lengths;
      for (const Operation& operation : operations) {
        if (std::string_view{operation.name} == name) {
          lengths.push_back(static_cast<double>(operation.end - operation.start) / 1000.0);
        }
      }
      answer.figure(label, "us", lengths);
      answer.figure("round_trip_during_" + label, "us", trips_during(name, operations, trips));
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
    try {
      const Chunk chunk(device, place, bytes);
      Range range(device, bytes);
      range.map(chunk);
      range.allow(0, bytes);
      fill(range.at(), 5, kMiB);
      const CardUse during = use();
      // Signed: others may give memory back meanwhile.
      const auto mib = [](std::uint64_t more, std::uint64_t less) {
        return (static_cast<double>(more) - static_cast<double>(less)) / static_cast<double>(kMiB);
      };
      answer.fact(label + "_made_mib", static_cast<double>(bytes / kMiB));
      answer.fact(label + "_taken_from_the_card_mib", mib(before.free, during.free));
      if (during.own == 0) {
        answer.fact(label + "_counted_for_the_process_mib", "the process is not shown");
      } else {
        answer.fact(label + "_counted_for_the_process_mib", mib(during.own, before.own));
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

void access_in_one_call(Device& device, Answer& answer) {
  constexpr std::size_t kChunks = 64;
  constexpr std::size_t kBytes = kChunks * kChunkBytes;
  std::vector<double> once;
  std::vector<double> each;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Chunk>> chunks;
    for (std::size_t index = 0; index < kChunks; ++index) {
      chunks.push_back(std::make_unique<Chunk>(device, Place::kDevice, kChunkBytes));
    }
    for (const bool together : {true, false}) {
      Range range(device, kBytes);
      for (std::size_t index = 0; index < kChunks; ++index) {
        range.map(*chunks[index], index * kChunkBytes);
      }
      (together ? once : each).push_back(timed_us([&] {
        if (together) return range.allow(0, kBytes);
        for (std::size_t index = 0; index < kChunks; ++index) {
          range.allow(index * kChunkBytes, kChunkBytes);
        }
      }));
      range.unmap(0, kBytes);
    }
  }
  answer.figure("set_access_of_64_chunks_in_one_call", "us", once);
  answer.figure("set_access_of_64_chunks_one_by_one", "us", each);
}

}  // namespace probes
