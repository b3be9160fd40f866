// SPDX-License-Identifier: Apache-2.0
// What the second processes do.
#include <sys/mman.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "child.h"
#include "device.h"
#include "driver.h"

namespace probes {
namespace {

constexpr double kWorkUs = 1000;

void begin(Page& page) {
  page.ready.store(1);
  while (page.go.load() == 0 && page.stop.load() == 0) {
    sleep_for(std::chrono::microseconds(100));
  }
}

// Notes when each new number in the first word is seen.
void read_words(Page& page) {
  page.ready.store(1);
  std::uint32_t last = 0;
  while (page.stop.load() == 0) {
    const std::uint32_t value = std::atomic_ref(page.words[0]).load();
    if (value == last) continue;
    last = value;
    if (value < page.values.size()) page.values[value] = now_ns();
  }
}

// Kernels of 1 ms, two in flight, counted as they end.
void keep_working(Page& page) {
  Device device;
  Worker worker(device);
  const Stream stream;
  const Event first;
  const Event second;
  const std::array<const Event*, 2> events{&first, &second};
  begin(page);
  for (std::size_t number = 0; page.stop.load() == 0; ++number) {
    if (page.go.load() == 0) {  // told to rest
      sleep_for(std::chrono::microseconds(200));
      continue;
    }
    worker.queue(stream, kWorkUs);
    CU(cuEventRecord, static_cast<CUevent>(*events[number % 2]), static_cast<CUstream>(stream));
    if (number == 0) continue;
    CU(cuEventSynchronize, static_cast<CUevent>(*events[(number + 1) % 2]));
    page.progress.fetch_add(1);
  }
  stream.wait();
}

// One kernel that notes its own pauses; they are handed over when it has ended.
void spin_and_note(Page& page) {
  constexpr std::uint64_t kSpinNs = 1'500'000'000U;
  constexpr std::uint64_t kPauseNs = 10'000U;
  Device device;
  CUfunction const spin = device.kernel("spin");
  constexpr unsigned kPauses = 8000;
  const Pinned pauses(sizeof(std::uint64_t) * 2 * kPauses);
  const Pinned count(sizeof(unsigned));
  *count.as<volatile unsigned>() = 0;
  CUdeviceptr pauses_at = 0;
  CUdeviceptr count_at = 0;
  CU(cuMemHostGetDevicePointer, &pauses_at, pauses.data(), 0U);
  CU(cuMemHostGetDevicePointer, &count_at, count.data(), 0U);
  const Stream stream;
  begin(page);
  const auto blocks = static_cast<unsigned>(device.multiprocessors());
  launch(spin, blocks, 64, stream, kSpinNs, kPauseNs, pauses_at, kPauses, count_at);
  stream.wait();
  const unsigned noted = *count.as<volatile unsigned>();
  std::memcpy(page.values.data(), pauses.data(), sizeof(std::uint64_t) * 2 * noted);
  page.count.store(2 * noted);
  page.done.store(1);
}

// A step now and then, and memory of several kinds whose content is checked at the end.
class Keeper {
 public:
  Keeper(bool registered, bool host_numa) : buffer_(device_, 64 * kMiB) {
    fill(buffer_.address());
    if (registered) {
      void* const at =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (at == MAP_FAILED) throw std::runtime_error("mmap failed");
      CU(cuMemHostRegister, at, kBytes, static_cast<unsigned>(CU_MEMHOSTREGISTER_DEVICEMAP));
      CU(cuMemHostGetDevicePointer, &registered_, at, 0U);
      fill(registered_);
    }
    if (host_numa) {
      chunk_ = std::make_unique<Chunk>(device_, Place::kHostNuma, kBytes);
      range_ = std::make_unique<Range>(device_, kBytes);
      range_->map(*chunk_);
      range_->allow(0, kBytes);
      fill(range_->at());
    }
  }

  void run(Page& page) {
    const Stream stream;
    begin(page);
    while (page.stop.load() == 0) {
      CU(cuMemsetD32Async, scratch_.address(), 1U, kMiB / 4, static_cast<CUstream>(stream));
      stream.wait();
      page.progress.fetch_add(1);
    }
    check(buffer_.address(), "device memory");
    if (registered_ != 0) check(registered_, "registered memory");
    if (range_) check(range_->at(), "host-located memory");
  }

 private:
  static constexpr std::size_t kBytes = 32 * kMiB;
  static constexpr std::uint32_t kPattern = 0x5EED5EEDU;

  static void fill(CUdeviceptr at) {
    const Stream stream;
    CU(cuMemsetD32Async, at, kPattern, kBytes / 4, static_cast<CUstream>(stream));
    stream.wait();
  }

  static void check(CUdeviceptr at, const char* what) {
    std::vector<std::uint32_t> words(kBytes / 4);
    const Stream stream;
    CU(cuMemcpyDtoHAsync, static_cast<void*>(words.data()), at, kBytes,
       static_cast<CUstream>(stream));
    stream.wait();
    for (const std::uint32_t word : words) {
      if (word != kPattern) throw std::runtime_error(std::string{what} + " has changed");
    }
  }

  Device device_;
  Buffer buffer_;
  Buffer scratch_{device_, kMiB};
  CUdeviceptr registered_ = 0;
  std::unique_ptr<Chunk> chunk_;
  std::unique_ptr<Range> range_;
};

void act(const std::string& role, Page& page) {
  if (role == "reader") return read_words(page);
  if (role == "work") return keep_working(page);
  if (role == "spin") return spin_and_note(page);
  if (role == "keeper") return Keeper(false, false).run(page);
  if (role == "keeper-registered") return Keeper(true, false).run(page);
  if (role == "keeper-host-numa") return Keeper(false, true).run(page);
  throw std::runtime_error("no such role: " + role);
}

}  // namespace

int run_role(const std::string& role, int page_file) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing outlives the probe
  const SharedPage page(page_file);
  try {
    act(role, *page);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(page->error.data(), page->error.size(), "%s", error.what());
    return 1;
  }
}

}  // namespace probes
