// SPDX-License-Identifier: Apache-2.0
// What the second processes do.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

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

// The kernel of the loads, loaded and run once.
CUfunction warm_work(Device& device, const Page& page, const Stream& stream) {
  CUfunction const work = device.kernel("work");
  queue_load(work, page.load(), stream);
  stream.wait();
  return work;
}

// Kernels of the load that the page tells, two in flight, counted as they end. Each process does
// the same work in a kernel, however long that takes it: what it may use is the question.
void keep_working(Page& page) {
  Device device;
  const Stream stream;
  CUfunction const work = warm_work(device, page, stream);
  const Event first;
  const Event second;
  const std::array<const Event*, 2> events{&first, &second};
  begin(page);
  for (std::size_t number = 0; page.stop.load() == 0; ++number) {
    if (page.go.load() == 0) {  // told to rest
      sleep_for(std::chrono::microseconds(200));
      continue;
    }
    queue_load(work, page.load(), stream);
    CU(cuEventRecord, static_cast<CUevent>(*events[number % 2]), static_cast<CUstream>(stream));
    if (number == 0) continue;
    CU(cuEventSynchronize, static_cast<CUevent>(*events[(number + 1) % 2]));
    page.progress.fetch_add(1);
  }
  stream.wait();
}

// One kernel whenever `go` has a new number, which `progress` then gets; its end is noted.
void work_one_by_one(Page& page) {
  Device device;
  const Stream stream;
  CUfunction const work = warm_work(device, page, stream);
  page.ready.store(1);
  std::uint32_t last = 0;
  while (page.stop.load() == 0) {
    const std::uint32_t asked = page.go.load();
    if (asked == last) continue;
    last = asked;
    queue_load(work, page.load(), stream);
    while (TRY_CU(cuStreamQuery, static_cast<CUstream>(stream)) == CUDA_ERROR_NOT_READY) {
    }
    page.values[0] = now_ns();
    page.progress.store(asked);
  }
}

// Fills a little memory, waits for it, allocates and frees, again and again, and notes when: five
// times a turn, while it is told to go and there is room.
void keep_asking(Page& page) {
  constexpr std::size_t kBytes = 2 * kMiB;
  Device device;
  const Buffer buffer(device, kMiB);
  const Stream stream;
  begin(page);
  std::uint32_t noted = 0;
  while (page.stop.load() == 0) {
    sleep_for(std::chrono::microseconds(50));
    if (page.go.load() == 0 || noted + 5 > page.values.size()) continue;
    std::uint64_t* const times = &page.values[noted];
    CUdeviceptr made = 0;
    times[0] = now_ns();
    CU(cuMemsetD32Async, buffer.address(), 1U, std::size_t{256}, static_cast<CUstream>(stream));
    times[1] = now_ns();
    stream.wait();
    times[2] = now_ns();
    CU(cuMemAlloc, &made, kBytes);
    times[3] = now_ns();
    CU(cuMemFree, made);
    times[4] = now_ns();
    noted += 5;
    page.count.store(noted);
  }
}

// Imports chunks by the descriptors that were handed down, and changes their content. Once `go` is
// 1 it looks whether that is still there, once it is 2 it gives them up. See SharedChunk.
void import_chunks(Page& page) {
  constexpr std::size_t kWords = kMiB / sizeof(std::uint32_t);
  Device device;
  auto* const chunks = reinterpret_cast<SharedChunk*>(page.values.data());
  std::vector<std::unique_ptr<Chunk>> imported;
  std::vector<std::unique_ptr<Range>> ranges;
  const Stream stream;
  const auto check = [&](const Range& range, std::uint32_t wanted) {
    std::uint32_t word = 0;
    CU(cuMemcpyDtoHAsync, static_cast<void*>(&word), range.at(kMiB - sizeof(word)), sizeof(word),
       static_cast<CUstream>(stream));
    stream.wait();
    if (word != wanted) throw std::runtime_error("an imported chunk has another content");
  };
  for (std::uint32_t index = 0; index < page.count.load(); ++index) {
    SharedChunk& chunk = chunks[index];
    CUmemGenericAllocationHandle handle = 0;
    const std::uint64_t start = now_ns();
    const CUresult result =
        TRY_CU(cuMemImportFromShareableHandle, &handle,
               reinterpret_cast<void*>(static_cast<std::intptr_t>(chunk.file)), kDescriptor);
    chunk.imported_ns = now_ns() - start;
    ::close(static_cast<int>(chunk.file));  // it holds the memory, too
    chunk.result = static_cast<std::uint64_t>(result);
    if (result != CUDA_SUCCESS) continue;
    imported.push_back(std::make_unique<Chunk>(device, handle, chunk.bytes));
    ranges.push_back(std::make_unique<Range>(device, chunk.bytes));
    Range& range = *ranges.back();
    const Stretch mapping = stretch_of([&] {
      range.map(*imported.back());
      range.allow(0, chunk.bytes);
    });
    chunk.mapped_ns = mapping.end - mapping.start;
    check(range, SharedChunk::kMakers);
    CU(cuMemsetD32Async, range.at(), SharedChunk::kImporters, kWords,
       static_cast<CUstream>(stream));
    stream.wait();
  }
  begin(page);
  for (const auto& range : ranges) check(*range, SharedChunk::kImporters);
  page.progress.store(1);
  while (page.go.load() < 2 && page.stop.load() == 0) sleep_for(std::chrono::microseconds(100));
  ranges.clear();
  imported.clear();
  page.progress.store(2);
  while (page.stop.load() == 0) sleep_for(std::chrono::microseconds(100));
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
  if (role == "one-by-one") return work_one_by_one(page);
  if (role == "asking") return keep_asking(page);
  if (role == "importer") return import_chunks(page);
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
