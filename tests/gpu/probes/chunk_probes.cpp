// SPDX-License-Identifier: Apache-2.0
// Probes of chunks and other processes: who waits while chunks are made on the host, how fast they
// are made, and whether another process can have one.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <iterator>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "driver.h"
#include "probe.h"

namespace probes {
namespace {

std::string mib_text(std::size_t bytes) { return std::to_string(bytes / kMiB) + "_mib"; }

// A sixteenth of the host's memory.
std::size_t host_budget() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) / 16;
}

double gib_per_s(std::size_t bytes, double us) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB) / (us / 1e6);
}

// Anonymous memory, touched; unmapped with the object.
class OwnPages {
 public:
  explicit OwnPages(std::size_t bytes)
      : bytes_(bytes),
        at_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (at_ == MAP_FAILED) throw NotRun("the host has no memory left to pin");
    (void)::madvise(at_, bytes_, MADV_HUGEPAGE);
    std::memset(at_, 1, bytes_);
  }
  ~OwnPages() { ::munmap(at_, bytes_); }
  OwnPages(const OwnPages&) = delete;
  OwnPages& operator=(const OwnPages&) = delete;
  [[nodiscard]] void* data() const noexcept { return at_; }

 private:
  std::size_t bytes_;
  void* at_;
};

// What the child of role "asking" does, and when it did it.
using Turns = std::map<std::string, std::vector<Stretch>>;

Turns turns_of(const Page& page) {
  Turns turns;
  for (std::uint32_t at = 0; at + 5 <= page.count.load(); at += 5) {
    const std::uint64_t* const times = &page.values[at];
    turns["launch"].push_back({times[0], times[1]});
    turns["round_trip"].push_back({times[0], times[2]});
    turns["allocation"].push_back({times[2], times[3]});
    turns["free"].push_back({times[3], times[4]});
  }
  return turns;
}

// When each call of one name ran, by name and size.
using Calls = std::map<std::string, std::vector<Stretch>>;

constexpr std::chrono::milliseconds kBetween{2};
constexpr int kRounds = 6;

void make_and_release(Device& device, Page& other, std::size_t bytes, Calls& calls) {
  other.go.store(1);
  for (int round = 0; round < kRounds; ++round) {
    Range range(device, bytes);
    std::unique_ptr<Chunk> chunk;
    calls["making_" + mib_text(bytes)].push_back(
        stretch_of([&] { chunk = std::make_unique<Chunk>(device, Place::kHostNuma, bytes); }));
    sleep_for(kBetween);
    calls["mapping_" + mib_text(bytes)].push_back(stretch_of([&] {
      range.map(*chunk);
      range.allow(0, bytes);
    }));
    sleep_for(kBetween);
    calls["releasing_" + mib_text(bytes)].push_back(stretch_of([&] {
      range.unmap(0, bytes);
      chunk.reset();
    }));
    sleep_for(kBetween);
  }
  other.go.store(0);
}

void register_and_unregister(Page& other, std::size_t bytes, Calls& calls) {
  const OwnPages pages(bytes);  // touching them is no call of the driver
  other.go.store(1);
  for (int round = 0; round < kRounds; ++round) {
    calls["registering_" + mib_text(bytes)].push_back(
        stretch_of([&] { CU(cuMemHostRegister, pages.data(), bytes, 0U); }));
    sleep_for(kBetween);
    calls["unregistering_" + mib_text(bytes)].push_back(
        stretch_of([&] { CU(cuMemHostUnregister, pages.data()); }));
    sleep_for(kBetween);
  }
  other.go.store(0);
}

// Does something in several threads that begin together.
struct Threads {
  std::vector<Stretch> calls;  // of all of them
  double together_us;          // from the first beginning to the last end

  template <typename Call>  // gets the number of the thread, returns its calls' times
  Threads(const Device& device, unsigned count, Call call) {
    std::latch all_there(count);
    std::vector<std::future<std::vector<Stretch>>> results;
    for (unsigned thread = 0; thread < count; ++thread) {
      results.push_back(std::async(std::launch::async, [&, thread] {
        all_there.arrive_and_wait();
        device.enter();
        return call(thread);
      }));
    }
    for (auto& result : results) result.wait();  // none may outlive what it refers to
    for (auto& result : results) {
      const std::vector<Stretch> part = result.get();
      calls.insert(calls.end(), part.begin(), part.end());
    }
    const auto first = std::min_element(
        calls.begin(), calls.end(), [](auto& one, auto& other) { return one.start < other.start; });
    const auto last = std::max_element(calls.begin(), calls.end(),
                                       [](auto& one, auto& other) { return one.end < other.end; });
    together_us = Stretch{first->start, last->end}.us();
  }
};

void make_with_threads(const Device& device, Answer& answer, std::size_t size, unsigned threads,
                       std::size_t bytes_a_thread) {
  using Handles = std::vector<CUmemGenericAllocationHandle>;
  const CUmemAllocationProp properties = properties_of(device, Place::kHostNuma);
  std::vector<double> created, create_calls, freed;
  for (int round = 0; round < 3; ++round) {
    std::vector<Handles> handles(threads, Handles(bytes_a_thread / size));
    const Threads making(device, threads, [&](unsigned thread) {
      std::vector<Stretch> calls;
      for (CUmemGenericAllocationHandle& handle : handles[thread]) {
        calls.push_back(stretch_of([&] { CU(cuMemCreate, &handle, size, &properties, 0ULL); }));
      }
      return calls;
    });
    const Threads freeing(device, threads, [&](unsigned thread) {
      std::vector<Stretch> calls;
      for (const CUmemGenericAllocationHandle handle : handles[thread]) {
        calls.push_back(stretch_of([&] { CU(cuMemRelease, handle); }));
      }
      return calls;
    });
    created.push_back(gib_per_s(threads * bytes_a_thread, making.together_us));
    freed.push_back(gib_per_s(threads * bytes_a_thread, freeing.together_us));
    const std::vector<double> each = lengths(making.calls);
    create_calls.insert(create_calls.end(), each.begin(), each.end());
  }
  const std::string label = mib_text(size) + "_by_" + std::to_string(threads) + "_threads";
  answer.figure("create_" + label, "GiB/s", created);
  answer.figure("create_call_" + label, "us", create_calls);
  answer.figure("free_" + label, "GiB/s", freed);
}

// A chunk that may be exported, mapped here and filled.
class Exported {
 public:
  Exported(Device& device, std::unique_ptr<Chunk> chunk, std::vector<double>& times)
      : chunk_(std::move(chunk)), range_(device, chunk_->bytes()) {
    range_.map(*chunk_);
    range_.allow(0, chunk_->bytes());
    CU(cuMemsetD32Async, range_.at(), SharedChunk::kMakers, kMiB / sizeof(std::uint32_t),
       static_cast<CUstream>(stream_));
    stream_.wait();
    times.push_back(timed_us([&] {
      CU(cuMemExportToShareableHandle, static_cast<void*>(&file_), chunk_->handle(), kDescriptor,
         0ULL);
    }));
    ::fcntl(file_, F_SETFD, 0);  // the child gets it
  }
  ~Exported() { ::close(file_); }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;

  [[nodiscard]] SharedChunk shared() const {
    return {static_cast<std::uint64_t>(file_), chunk_->bytes(), 0, 0, 0};
  }
  /// A word of its content.
  [[nodiscard]] std::uint32_t word() const {
    std::uint32_t word = 0;
    CU(cuMemcpyDtoHAsync, static_cast<void*>(&word), range_.at(), sizeof(word),
       static_cast<CUstream>(stream_));
    stream_.wait();
    return word;
  }

 private:
  std::unique_ptr<Chunk> chunk_;
  Range range_;
  Stream stream_;
  int file_ = -1;
};

// A chunk on the host that may be exported; null, and a fact, where the driver makes none.
std::unique_ptr<Chunk> shareable_host_chunk(Device& device, Answer& answer) {
  CUmemAllocationProp properties = properties_of(device, Place::kHostNuma);
  properties.requestedHandleTypes = kDescriptor;
  CUmemGenericAllocationHandle handle = 0;
  constexpr std::size_t kBytes = 2 * kMiB;
  const CUresult made = TRY_CU(cuMemCreate, &handle, kBytes, &properties, 0ULL);
  answer.fact("host_numa_with_a_descriptor", made == CUDA_SUCCESS ? "allowed" : name_of(made));
  return made == CUDA_SUCCESS ? std::make_unique<Chunk>(device, handle, kBytes) : nullptr;
}

void await_progress(Page& page, Child& child, std::uint64_t wanted) {
  const std::uint64_t start = now_ns();
  while (page.progress.load() < wanted && us_since(start) < 5e6) {
    sleep_for(std::chrono::microseconds(100));
  }
  if (page.progress.load() >= wanted) return;
  child.finish();  // in its own words, if it failed
  throw std::runtime_error("the second process did not answer");
}

double mib(std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

}  // namespace

void stall_of_another_process(Device& device, Answer& answer) {
  SharedPage page;
  Child other("asking", page);
  other.wait_ready();
  Calls calls;
  page->go.store(1);
  calls["nothing"].push_back(stretch_of([] { sleep_for(std::chrono::milliseconds(200)); }));
  page->go.store(0);
  std::string missing;
  try {
    need(device, Place::kHostNuma, answer);
  } catch (const NotRun& reason) {
    missing = reason.what();
  }
  for (const std::size_t bytes : {16 * kMiB, 64 * kMiB, 256 * kMiB}) {
    if (bytes > host_budget()) continue;
    if (missing.empty()) make_and_release(device, *page, bytes, calls);
    register_and_unregister(*page, bytes, calls);
  }
  other.finish();
  const Turns turns = turns_of(*page);
  for (const auto& [call, stretches] : calls) {
    if (call != "nothing") answer.figure(call, "us", lengths(stretches));
    for (const auto& [turn, times] : turns) {
      const std::string label = "other_process_" + turn;
      if (call == "nothing") {
        const std::uint64_t until = stretches.front().end;
        std::vector<Stretch> undisturbed;
        std::copy_if(times.begin(), times.end(), std::back_inserter(undisturbed),
                     [until](const Stretch& time) { return time.end < until; });
        answer.figure(label + "_undisturbed", "us", lengths(undisturbed));
      } else {
        answer.figure(label + "_while_" + call, "us", longest_during(stretches, times));
      }
    }
  }
  if (!missing.empty()) throw NotRun(missing);
}

void making_host_chunks(Device& device, Answer& answer) {
  need(device, Place::kHostNuma, answer);
  constexpr std::size_t kBytesAThread = 64 * kMiB;
  for (const std::size_t size : {2 * kMiB, 16 * kMiB, 64 * kMiB}) {
    if (size % granularity(device, Place::kHostNuma) != 0) continue;
    for (const unsigned threads : {1U, 2U, 4U, 8U}) {
      if (threads * kBytesAThread > host_budget()) continue;
      make_with_threads(device, answer, size, threads, kBytesAThread);
    }
  }
}

void handing_chunks_over(Device& device, Answer& answer) {
  std::vector<std::unique_ptr<Exported>> chunks;
  std::size_t on_device = 0;
  for (const auto& [bytes, count] : {std::pair{2 * kMiB, 16}, {16 * kMiB, 8}, {128 * kMiB, 4}}) {
    if (bytes * static_cast<std::size_t>(count) > device.budget() / 2) continue;
    std::vector<double> exported;
    for (int index = 0; index < count; ++index) {
      chunks.push_back(std::make_unique<Exported>(
          device, std::make_unique<Chunk>(device, Place::kDevice, bytes), exported));
      on_device += bytes;
    }
    answer.figure("export_" + mib_text(bytes), "us", exported);
  }
  const std::size_t device_chunks = chunks.size();
  if (auto chunk = shareable_host_chunk(device, answer)) {
    try {
      std::vector<double> exported;
      chunks.push_back(std::make_unique<Exported>(device, std::move(chunk), exported));
      answer.figure("export_host_numa_2_mib", "us", exported);
    } catch (const DriverError& error) {
      answer.fact("host_numa_export", error.what());
    }
  }
  SharedPage page;
  auto* const shared = reinterpret_cast<SharedChunk*>(page->values.data());
  for (std::size_t index = 0; index < chunks.size(); ++index) {
    shared[index] = chunks[index]->shared();
  }
  page->count.store(static_cast<std::uint32_t>(chunks.size()));
  Child importer("importer", page);
  importer.wait_ready();

  std::map<std::size_t, std::array<std::vector<double>, 2>> times;
  bool seen = true;
  for (std::size_t index = 0; index < chunks.size(); ++index) {
    const auto result = static_cast<CUresult>(shared[index].result);
    if (index >= device_chunks) {
      answer.fact("host_numa_import", result == CUDA_SUCCESS ? "allowed" : name_of(result));
    } else if (result != CUDA_SUCCESS) {
      throw DriverError("cuMemImportFromShareableHandle", result);
    }
    if (result != CUDA_SUCCESS) continue;
    seen = seen && chunks[index]->word() == SharedChunk::kImporters;
    if (index >= device_chunks) continue;
    auto& [imported, mapped] = times[shared[index].bytes];
    imported.push_back(static_cast<double>(shared[index].imported_ns) / 1000.0);
    mapped.push_back(static_cast<double>(shared[index].mapped_ns) / 1000.0);
  }
  answer.fact("each_sees_what_the_other_writes", seen);
  for (const auto& [bytes, both] : times) {
    answer.figure("import_" + mib_text(bytes), "us", both[0]);
    answer.figure("map_and_set_access_of_imported_" + mib_text(bytes), "us", both[1]);
  }

  // The maker gives its chunks up: they stay while another process has them.
  const std::size_t free_before = device.memory_free();
  chunks.clear();
  const std::size_t free_without_maker = device.memory_free();
  page->go.store(1);
  await_progress(*page, importer, 1);  // it has looked
  answer.fact("content_stays_when_the_maker_releases", true);
  page->go.store(2);
  await_progress(*page, importer, 2);
  const std::size_t free_at_last = device.memory_free();
  importer.finish();
  answer.fact("exported_mib", mib(on_device));
  answer.fact("free_when_the_maker_has_released_mib", mib(free_without_maker) - mib(free_before));
  answer.fact("free_when_both_have_released_mib", mib(free_at_last) - mib(free_before));
}

}  // namespace probes
