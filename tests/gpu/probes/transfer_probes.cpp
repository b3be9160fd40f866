// SPDX-License-Identifier: Apache-2.0
// Probes of the way between device and host: copies, pinned memory, kernels on host memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "driver.h"
#include "probe.h"

namespace probes {
namespace {

constexpr int kRounds = 12;

double gib_per_s(std::size_t bytes, double us) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB) / (us / 1e6);
}

// At most what is wanted, a sixteenth of the host's memory and a quarter of the device's budget.
std::size_t affordable(const Device& device, std::size_t wanted) {
  const auto host = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                    static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t bytes = std::min({wanted, host / 16, device.budget() / 4});
  return bytes / (2 * kMiB) * (2 * kMiB);
}

void copy_out(CUdeviceptr from, void* to, std::size_t bytes, CUstream stream) {
  CU(cuMemcpyDtoHAsync, to, from, bytes, stream);
}

void copy_in(void* from, CUdeviceptr to, std::size_t bytes, CUstream stream) {
  CU(cuMemcpyHtoDAsync, to, static_cast<const void*>(from), bytes, stream);
}

// Speeds of the same copy, again and again.
template <typename Copy>
std::vector<double> speeds(std::size_t bytes, Copy&& copy) {
  std::vector<double> result;
  copy();  // warm
  for (int round = 0; round < kRounds; ++round) {
    result.push_back(gib_per_s(bytes, timed_us(copy)));
  }
  return result;
}

std::size_t recommended_granularity(const Device& device, Place place) {
  const CUmemAllocationProp properties = properties_of(device, place);
  std::size_t bytes = 0;
  CU(cuMemGetAllocationGranularity, &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  return bytes;
}

// Touches anonymous memory with several threads, then registers it.
void register_with_threads(std::size_t bytes, unsigned threads, Answer& answer) {
  std::vector<double> touch, pin;
  for (int round = 0; round < 3; ++round) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw NotRun("the host has no memory left to pin");
    (void)::madvise(at, bytes, MADV_HUGEPAGE);
    touch.push_back(gib_per_s(bytes, timed_us([&] {
                                std::vector<std::thread> workers;
                                for (unsigned index = 0; index < threads; ++index) {
                                  workers.emplace_back([=] {
                                    const std::size_t part = bytes / threads;
                                    auto* const bytes_at = static_cast<volatile char*>(at);
                                    for (std::size_t offset = 0; offset < part; offset += 4096) {
                                      bytes_at[index * part + offset] = 1;
                                    }
                                  });
                                }
                                for (std::thread& worker : workers) worker.join();
                              })));
    pin.push_back(gib_per_s(bytes, timed_us([&] { CU(cuMemHostRegister, at, bytes, 0U); })));
    CU(cuMemHostUnregister, at);
    ::munmap(at, bytes);
  }
  answer.figure("first_touch_" + std::to_string(threads) + "_threads", "GiB/s", touch);
  answer.figure("register_after_" + std::to_string(threads) + "_threads", "GiB/s", pin);
}

// Reads and writes memory by all multiprocessors.
void measure_kernels(Device& device, Answer& answer, const std::string& label, CUdeviceptr at,
                     std::size_t bytes) {
  const Buffer out(device, 4096);
  const std::uint64_t count = bytes / 16;
  const auto blocks = static_cast<unsigned>(device.multiprocessors()) * 4U;
  const Stream stream;
  CUfunction const read = device.kernel("read_all");
  CUfunction const write = device.kernel("write_all");
  answer.figure(label + "_read", "GiB/s", speeds(bytes, [&] {
                  launch(read, blocks, 256, stream, at, count, out.address());
                  stream.wait();
                }));
  answer.figure(label + "_write", "GiB/s", speeds(bytes, [&] {
                  launch(write, blocks, 256, stream, at, count, 1U);
                  stream.wait();
                }));
}

// Matrix products without a pause, two in flight, as a job beside what is measured.
class ProductLoop {
 public:
  explicit ProductLoop(Device& device)
      : device_(device),
        multiply_(device.kernel("multiply")),
        left_(device, kBytes),
        right_(device, kBytes),
        product_(device, kBytes) {
    thread_ = std::thread([this] { go(); });
  }
  ~ProductLoop() {
    stop_.store(true);
    thread_.join();
  }
  ProductLoop(const ProductLoop&) = delete;
  ProductLoop& operator=(const ProductLoop&) = delete;

  [[nodiscard]] std::uint64_t done() const noexcept { return done_.load(); }
  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }

 private:
  static constexpr unsigned kSize = 2048;
  static constexpr std::size_t kBytes = std::size_t{kSize} * kSize * sizeof(float);

  void go() {
    try {
      device_.enter();
      const Stream stream;
      const Event first(CU_EVENT_DISABLE_TIMING);
      const Event second(CU_EVENT_DISABLE_TIMING);
      const std::array<const Event*, 2> events{&first, &second};
      for (std::size_t number = 0; !stop_.load(); ++number) {
        launch(multiply_, (kSize / 64) * (kSize / 64), 256, stream, left_.address(),
               right_.address(), product_.address(), kSize);
        CU(cuEventRecord, static_cast<CUevent>(*events[number % 2]), static_cast<CUstream>(stream));
        if (number == 0) continue;
        CU(cuEventSynchronize, static_cast<CUevent>(*events[(number + 1) % 2]));
        done_.fetch_add(1);
      }
      stream.wait();
    } catch (const std::exception&) {
      failed_.store(true);
    }
  }

  Device& device_;
  CUfunction multiply_;
  Buffer left_;
  Buffer right_;
  Buffer product_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> done_{0};
  std::thread thread_;
};

// Ways to bring memory to the host with a fingerprint of what arrived.
class Mover {
 public:
  static constexpr std::size_t kPiece = 32 * kMiB;

  Mover(Device& device, std::size_t bytes)
      : blocks_(static_cast<unsigned>(device.multiprocessors()) * 4U),
        hash_(device.kernel("hash_all")),
        source_(device, bytes / kPiece * kPiece),
        staging_(device, 2 * kPiece),
        sums_(device, 4096),
        host_(2 * kPiece) {
    CU(cuMemHostGetDevicePointer, &host_at_, host_.data(), 0U);
    CU(cuMemsetD32Async, source_.address(), 7U, source_.bytes() / 4, static_cast<CUstream>(ship_));
    ship_.wait();
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return source_.bytes(); }

  /// Copies alone.
  void copy() {
    each_piece([&](CUdeviceptr from, std::size_t slot) {
      copy_out(from, host_.as<char>() + slot * kPiece, kPiece, ship_);
    });
    ship_.wait();
  }

  /// Copies, and has a kernel read over the link what arrived.
  void copy_and_hash_there() {
    each_piece([&](CUdeviceptr from, std::size_t slot) {
      copy_out(from, host_.as<char>() + slot * kPiece, kPiece, ship_);
      hash(host_at_ + slot * kPiece, 0, ship_);
    });
    ship_.wait();
  }

  /// Copies on the device, reads the copy there, and ships that one.
  void stage_and_hash_here() {
    each_piece([&](CUdeviceptr from, std::size_t slot) {
      const Event& shipped = shipped_[slot];
      CU(cuStreamWaitEvent, static_cast<CUstream>(stage_), static_cast<CUevent>(shipped), 0U);
      const CUdeviceptr staged_at = staging_.address() + slot * kPiece;
      CU(cuMemcpyDtoDAsync, staged_at, from, kPiece, static_cast<CUstream>(stage_));
      hash(staged_at, 0, stage_);
      CU(cuEventRecord, static_cast<CUevent>(staged_[slot]), static_cast<CUstream>(stage_));
      CU(cuStreamWaitEvent, static_cast<CUstream>(ship_), static_cast<CUevent>(staged_[slot]), 0U);
      copy_out(staged_at, host_.as<char>() + slot * kPiece, kPiece, ship_);
      CU(cuEventRecord, static_cast<CUevent>(shipped), static_cast<CUstream>(ship_));
    });
    ship_.wait();
  }

  /// Whether the same bytes have the same fingerprint here, staged and on the host.
  bool hashes_agree() {
    stage_and_hash_here();
    CU(cuMemsetD32Async, sums_.address(), 0U, std::size_t{8}, static_cast<CUstream>(ship_));
    hash(source_.address(), 0, ship_);
    hash(staging_.address(), 1, ship_);
    hash(host_at_, 2, ship_);
    std::array<std::uint64_t, 3> sums{};
    CU(cuMemcpyDtoHAsync, static_cast<void*>(sums.data()), sums_.address(), sizeof(sums),
       static_cast<CUstream>(ship_));
    ship_.wait();
    return sums[0] != 0 && sums[0] == sums[1] && sums[0] == sums[2];
  }

 private:
  template <typename Move>
  void each_piece(Move move) {
    for (std::size_t piece = 0; piece * kPiece < bytes(); ++piece) {
      move(source_.address() + piece * kPiece, piece % 2);
    }
  }

  void hash(CUdeviceptr at, std::size_t slot, CUstream stream) {
    launch(hash_, blocks_, 256, stream, at, std::uint64_t{kPiece / 16},
           sums_.address() + slot * sizeof(std::uint64_t));
  }

  unsigned blocks_;
  CUfunction hash_;
  Buffer source_;
  Buffer staging_;
  Buffer sums_;
  Pinned host_;
  CUdeviceptr host_at_ = 0;
  Stream stage_;
  Stream ship_;
  std::array<Event, 2> staged_;
  std::array<Event, 2> shipped_;
};

// In turns: the loop alone, and with one pass after another beside it.
void move_beside(ProductLoop& loop, Mover& mover, Answer& answer, const std::string& name,
                 void (Mover::*pass)()) {
  constexpr double kWindowUs = 120'000;
  std::vector<double> alone, beside, moved;
  const auto rate = [&](auto&& meanwhile) {
    const std::uint64_t before = loop.done();
    const std::uint64_t start = now_ns();
    while (us_since(start) < kWindowUs) meanwhile();
    return static_cast<double>(loop.done() - before) / us_since(start) * 1e6;
  };
  for (int round = 0; round < 5; ++round) {
    alone.push_back(rate([] { sleep_for(std::chrono::milliseconds(1)); }));
    beside.push_back(rate(
        [&] { moved.push_back(gib_per_s(mover.bytes(), timed_us([&] { (mover.*pass)(); }))); }));
  }
  if (loop.failed()) throw std::runtime_error("the loop of products failed");
  answer.figure(name + "_beside_the_loop", "GiB/s", moved);
  answer.figure("loop_alone_before_" + name, "products/s", alone);
  answer.figure("loop_beside_" + name, "products/s", beside);
  answer.fact("loop_loses_percent_beside_" + name,
              (1 - median_of(beside) / median_of(alone)) * 100);
}

}  // namespace

void host_numa_memory(Device& device, Answer& answer) {
  const Place place = Place::kHostNuma;
  need(device, place, answer);
  answer.fact("host_numa_node", device.attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID));
  answer.fact("granularity_bytes", static_cast<double>(granularity(device, place)));
  answer.fact("recommended_granularity_bytes",
              static_cast<double>(recommended_granularity(device, place)));
  const std::size_t bytes = affordable(device, 512 * kMiB);
  std::vector<double> created;
  for (int round = 0; round < 5; ++round) {
    created.push_back(gib_per_s(bytes, timed_us([&] { const Chunk chunk(device, place, bytes); })));
  }
  answer.figure("create_and_release", "GiB/s", created);

  const Chunk chunk(device, place, bytes);
  Range range(device, bytes);
  range.map(chunk);
  range.allow(0, bytes);
  const Buffer buffer(device, bytes);
  const Stream stream;
  const auto copy = [&](CUdeviceptr to, CUdeviceptr from) {
    CU(cuMemcpyDtoDAsync, to, from, bytes, static_cast<CUstream>(stream));
    stream.wait();
  };
  answer.figure("device_to_host_numa", "GiB/s",
                speeds(bytes, [&] { copy(range.at(), buffer.address()); }));
  answer.figure("host_numa_to_device", "GiB/s",
                speeds(bytes, [&] { copy(buffer.address(), range.at()); }));
  const Pinned pinned(bytes);
  answer.figure("device_to_pinned", "GiB/s", speeds(bytes, [&] {
                  copy_out(buffer.address(), pinned.data(), bytes, stream);
                  stream.wait();
                }));
  answer.figure("pinned_to_device", "GiB/s", speeds(bytes, [&] {
                  copy_in(pinned.data(), buffer.address(), bytes, stream);
                  stream.wait();
                }));
}

void copy_ceilings(Device& device, Answer& answer) {
  const std::size_t bytes = affordable(device, 512 * kMiB);
  const Buffer first(device, bytes);
  const Buffer second(device, bytes);
  const Pinned out(bytes);
  const Pinned in(bytes);
  const Stream up;
  const Stream down;
  answer.figure("device_to_host", "GiB/s", speeds(bytes, [&] {
                  copy_out(first.address(), out.data(), bytes, down);
                  down.wait();
                }));
  answer.figure("host_to_device", "GiB/s", speeds(bytes, [&] {
                  copy_in(in.data(), second.address(), bytes, up);
                  up.wait();
                }));
  answer.figure("both_ways_sum", "GiB/s", speeds(2 * bytes, [&] {
                  copy_out(first.address(), out.data(), bytes, down);
                  copy_in(in.data(), second.address(), bytes, up);
                  down.wait();
                  up.wait();
                }));
  answer.figure("device_to_device", "GiB/s", speeds(bytes, [&] {
                  CU(cuMemcpyDtoDAsync, second.address(), first.address(), bytes,
                     static_cast<CUstream>(up));
                  up.wait();
                }));
  // In chunks of 32 MiB with an event each, as a pipeline that frees what has been copied.
  constexpr std::size_t kPiece = 32 * kMiB;
  if (bytes < kPiece) return;
  answer.figure("device_to_host_in_32_mib", "GiB/s", speeds(bytes / kPiece * kPiece, [&] {
                  std::vector<std::unique_ptr<Event>> events;
                  for (std::size_t offset = 0; offset + kPiece <= bytes; offset += kPiece) {
                    copy_out(first.address() + offset, out.as<char>() + offset, kPiece, down);
                    events.push_back(std::make_unique<Event>());
                    CU(cuEventRecord, static_cast<CUevent>(*events.back()),
                       static_cast<CUstream>(down));
                  }
                  for (const auto& event : events) {
                    CU(cuEventSynchronize, static_cast<CUevent>(*event));
                  }
                }));
}

void pinning_times(Device& device, Answer& answer) {
  const std::size_t bytes = affordable(device, 2 * kGiB);
  answer.fact("bytes", static_cast<double>(bytes));
  std::vector<double> allocated;
  for (int round = 0; round < 3; ++round) {
    allocated.push_back(gib_per_s(bytes, timed_us([&] { const Pinned pinned(bytes); })));
  }
  answer.figure("host_alloc_and_free", "GiB/s", allocated);
  for (const unsigned threads : {1U, 4U, 8U, 16U}) register_with_threads(bytes, threads, answer);
}

void kernels_on_host_memory(Device& device, Answer& answer) {
  const std::size_t bytes = affordable(device, 256 * kMiB);
  {
    const Pinned pinned(bytes);
    CUdeviceptr at = 0;
    CU(cuMemHostGetDevicePointer, &at, pinned.data(), 0U);
    measure_kernels(device, answer, "pinned", at, bytes);
  }
  {
    const Buffer buffer(device, bytes);
    measure_kernels(device, answer, "device", buffer.address(), bytes);
  }
  need(device, Place::kHostNuma, answer);
  const Chunk chunk(device, Place::kHostNuma, bytes);
  Range range(device, bytes);
  range.map(chunk);
  range.allow(0, bytes);
  measure_kernels(device, answer, "host_numa", range.at(), bytes);
}

void moving_beside_a_loop(Device& device, Answer& answer) {
  struct Way {
    const char* name;
    void (Mover::*pass)();
  };
  constexpr std::array kWays{Way{"copied", &Mover::copy},
                             Way{"copied_and_hashed_there", &Mover::copy_and_hash_there},
                             Way{"staged_and_hashed_here", &Mover::stage_and_hash_here}};
  Mover mover(device, std::max(affordable(device, 256 * kMiB), Mover::kPiece));
  answer.fact("hashes_agree", mover.hashes_agree());
  answer.fact("bytes", static_cast<double>(mover.bytes()));
  for (const Way& way : kWays) {
    answer.figure(std::string{way.name} + "_alone", "GiB/s",
                  speeds(mover.bytes(), [&] { (mover.*way.pass)(); }));
  }
  ProductLoop loop(device);
  for (const Way& way : kWays) move_beside(loop, mover, answer, way.name, way.pass);
}

}  // namespace probes
