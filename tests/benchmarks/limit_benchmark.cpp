// SPDX-License-Identifier: Apache-2.0
// What it takes to give memory back and to bring it back, beside what the kernel and the disk take
// for the same bytes. Each round does ours and the raw call in turn; one line of JSON a round.
//
//   limit_benchmark FOLDER MIB ROUNDS
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"

namespace commensal {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::size_t kBlock = std::size_t{8} << 20U;
constexpr std::size_t kCall = std::size_t{8} << 20U;  // of one raw read or write
constexpr std::size_t kHuge = std::size_t{2} << 20U;
constexpr Bytes kNone = 2_MiB;  // a limit that leaves nothing of what the blocks hold
constexpr Bytes kAll{UINT64_MAX};

double since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

[[noreturn]] void fail(const std::string& call) {
  throw std::system_error(errno, std::generic_category(), call);
}

/// Fills memory with bytes that no disk can make smaller; equal for equal seeds.
void fill(void* memory, std::size_t size, std::uint64_t seed) {
  auto* const words = static_cast<std::uint64_t*>(memory);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (std::size_t i = 0; i < size / sizeof(*words); ++i) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    words[i] = state;
  }
}

void check(const void* memory, std::size_t size, std::uint64_t seed, std::vector<std::byte>& room) {
  room.resize(size);
  fill(room.data(), size, seed);
  if (std::memcmp(memory, room.data(), size) != 0) throw std::runtime_error("a block was altered");
}

/// Memory as ours is: huge pages where the kernel gives them.
class RawMemory {
 public:
  explicit RawMemory(std::size_t size) : size_(size) {
    whole_ = ::mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole_ == MAP_FAILED) fail("mmap");
    const auto address = reinterpret_cast<std::uintptr_t>(whole_);
    begin_ = static_cast<std::byte*>(whole_) + (kHuge - address % kHuge) % kHuge;
    ::madvise(begin_, size, MADV_HUGEPAGE);
  }
  ~RawMemory() { ::munmap(whole_, size_ + kHuge); }
  RawMemory(const RawMemory&) = delete;
  RawMemory& operator=(const RawMemory&) = delete;

  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }
  void give_back() const {
    if (::madvise(begin_, size_, MADV_DONTNEED) != 0) fail("madvise");
  }

 private:
  std::size_t size_;
  void* whole_ = nullptr;
  std::byte* begin_ = nullptr;
};

/// A file past the page cache, with its disk blocks.
class RawFile {
 public:
  RawFile(const std::string& folder, std::size_t size)
      : size_(size), fd_(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600)) {
    if (fd_ < 0) fail("open " + folder);
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(size)) != 0) fail("fallocate");
  }
  ~RawFile() { ::close(fd_); }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  void write(const std::byte* from) const {
    for (std::size_t at = 0; at < size_; at += kCall) {
      if (::pwrite(fd_, from + at, kCall, static_cast<off_t>(at)) != kCall) fail("pwrite");
    }
  }
  void read(std::byte* to) const {
    for (std::size_t at = 0; at < size_; at += kCall) {
      if (::pread(fd_, to + at, kCall, static_cast<off_t>(at)) != kCall) fail("pread");
    }
  }

 private:
  std::size_t size_;
  int fd_;
};

/// An allocator of its own, and blocks that fill it.
class Elastic {
 public:
  /// @param watch  let the kernel note writes while memory is copied; false: fingerprints tell.
  Elastic(const std::string& folder, std::size_t size, bool watch)
      : size_(size),
        source_(options_in(folder, watch)),
        elastic_(source_, patient()),
        blocks_(size / kBlock) {
    if (source_.capacity(Tier::kHost) < Bytes{size}) {
      throw std::runtime_error("no slower tier for " + to_string(Bytes{size}) + " in " + folder +
                               ": " + source_.host_tier_reason());
    }
  }

  [[nodiscard]] bool watches() const noexcept { return source_.watches(Tier::kHost); }
  [[nodiscard]] AllocatorStats stats() const { return elastic_.stats(); }

  void allocate(std::uint64_t seed) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = elastic_.allocate(Bytes{kBlock});
      fill(blocks_[i], kBlock, seed + i);
    }
  }
  void free() {
    for (void* const block : blocks_) elastic_.deallocate(block);
  }
  void release() { elastic_.release_cached(); }
  void expect(std::uint64_t seed, std::vector<std::byte>& room) const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) check(blocks_[i], kBlock, seed + i, room);
  }
  /// Sets a limit; returns the seconds. At least `wanted` bytes must have changed sides.
  double limit(Bytes most, Bytes wanted) {
    const auto begin = Steady::now();
    const LimitTicket ticket = elastic_.set_limit(most);
    const double took = since(begin);
    if (!ticket.complete() || ticket.done < wanted) {
      throw std::runtime_error("the limit moved " + to_string(ticket.done) + " of " +
                               to_string(wanted) + ": " + ticket.reason);
    }
    return took;
  }
  double give_back() { return limit(kNone, Bytes{size_} - kNone); }
  double bring_back() { return limit(kAll, Bytes{size_} - kNone); }

  /// Moves everything while "the job runs", 32 MiB at a time: seconds, and how long threads stood
  /// still for each of the pieces.
  nlohmann::json ahead(Bytes most) {
    elastic_.expect_work_ahead(true);
    (void)elastic_.post_limit(most);
    std::vector<double> pauses;
    Bytes moved;
    const auto begin = Steady::now();
    for (bool more = true; more;) {
      const Duration before = elastic_.stats().total_pause;
      const AheadReport report = elastic_.work_ahead(kPiece);
      const Bytes now = report.moved_out + report.moved_in;
      moved += now;
      more = report.more;
      if (!now.is_zero()) pauses.push_back(seconds(elastic_.stats().total_pause - before));
    }
    const double took = since(begin);
    elastic_.expect_work_ahead(false);
    if (moved + kNone < Bytes{size_}) {
      throw std::runtime_error("only " + to_string(moved) + " moved ahead");
    }
    return {{"seconds", took}, {"pauses", pauses}};
  }
  /// Stops all threads for nothing, as often as is said; returns the seconds of each.
  std::vector<double> empty_stops(int count) {
    std::vector<double> stops;
    for (int i = 0; i < count; ++i) {
      const FenceResult fence = source_.fence(std::chrono::seconds{1});
      const auto begin = Steady::now();
      if (!fence.stopped) throw std::runtime_error("no stop");
      source_.unfence();
      stops.push_back(seconds(fence.took) + since(begin));
    }
    return stops;
  }

 private:
  static constexpr Bytes kPiece = 32_MiB;

  static double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
  }
  static HostMemorySource::Options options_in(const std::string& folder, bool watch) {
    HostMemorySource::Options options;
    options.spill_folder = folder;
    options.testing.watch = watch;
    return options;
  }
  static ElasticAllocatorOptions patient() {
    ElasticAllocatorOptions options;
    options.move_deadline = std::chrono::seconds{120};
    return options;
  }

  std::size_t size_;
  HostMemorySource source_;
  ElasticAllocator elastic_;
  std::vector<void*> blocks_;
};

/// Threads as a training job has them: one computes, others sleep. All must be stopped for a move.
class Bystanders {
 public:
  Bystanders() {
    threads_.emplace_back([this] {
      volatile double sum = 0.0;
      while (!end_) sum = sum + 1.0;
    });
    for (int i = 0; i < 7; ++i) {
      threads_.emplace_back([this] {
        std::unique_lock<std::mutex> lock(mutex_);
        ended_.wait(lock, [this] { return end_.load(); });
      });
    }
  }
  ~Bystanders() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      end_ = true;
    }
    ended_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Bystanders(const Bystanders&) = delete;
  Bystanders& operator=(const Bystanders&) = delete;

 private:
  std::atomic<bool> end_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<std::thread> threads_;
};

/// Does both sides of every comparison, a round at a time.
class Rounds {
 public:
  Rounds(const std::string& folder, std::size_t size)
      : size_(size),
        watched_(folder, size, true),
        hashed_(folder, size, false),
        memory_(size),
        file_(folder, size) {}

  nlohmann::json run(std::uint64_t round) {
    nlohmann::json times;
    times["watches"] = watched_.watches();
    // Whoever comes first meets the colder machine: take turns.
    for (const bool ours : {round % 2 == 0, round % 2 != 0}) {
      if (ours) {
        ours_cached(times);
        ours_live(times, round);
      } else {
        raw_cached(times);
        raw_live(times, round);
      }
    }
    const Bystanders bystanders;
    times["ahead"]["watched"] = ahead(watched_, round);
    times["ahead"]["hashed"] = ahead(hashed_, round);
    times["stops"] = watched_.empty_stops(100);
    return times;
  }

 private:
  void ours_cached(nlohmann::json& times) {
    watched_.allocate(1);
    watched_.free();
    times["cached"]["ours"] = watched_.give_back();
    (void)watched_.limit(kAll, {});
  }
  void raw_cached(nlohmann::json& times) {
    fill(memory_.begin(), size_, 1);
    const auto begin = Steady::now();
    memory_.give_back();
    times["cached"]["raw"] = since(begin);
  }
  void ours_live(nlohmann::json& times, std::uint64_t round) {
    watched_.allocate(round);
    const AllocatorStats before = watched_.stats();
    times["down"]["ours"] = watched_.give_back();
    times["up"]["ours"] = watched_.bring_back();
    const AllocatorStats after = watched_.stats();
    times["pauses"] = {
        {"count", after.moves - before.moves},
        {"seconds", std::chrono::duration<double>(after.total_pause - before.total_pause).count()}};
    watched_.expect(round, room_);
    watched_.free();
    watched_.release();
  }
  void raw_live(nlohmann::json& times, std::uint64_t round) {
    fill(memory_.begin(), size_, round);
    auto begin = Steady::now();
    file_.write(memory_.begin());
    times["down"]["raw"] = since(begin);
    memory_.give_back();
    begin = Steady::now();
    file_.read(memory_.begin());
    times["up"]["raw"] = since(begin);
    check(memory_.begin(), size_, round, room_);
    memory_.give_back();
  }
  nlohmann::json ahead(Elastic& elastic, std::uint64_t round) {
    elastic.allocate(round);
    nlohmann::json times;
    times["down"] = elastic.ahead(kNone);
    times["up"] = elastic.ahead(kAll);
    elastic.expect(round, room_);
    elastic.free();
    elastic.release();
    return times;
  }

  std::size_t size_;
  Elastic watched_;
  Elastic hashed_;
  RawMemory memory_;
  RawFile file_;
  std::vector<std::byte> room_;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 4) throw std::runtime_error("usage: limit_benchmark FOLDER MIB ROUNDS");
  const std::size_t size = std::stoul(arguments[2]) << 20U;
  if (size == 0 || size % kBlock != 0) throw std::runtime_error("MIB must be a multiple of 8");
  Rounds rounds(arguments[1], size);
  const std::uint64_t count = std::stoul(arguments[3]);
  (void)rounds.run(0);  // the files' first blocks and the first segments are another matter
  for (std::uint64_t round = 1; round <= count; ++round) {
    std::cout << rounds.run(round) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace commensal

int main(int argc, char** argv) {
  try {
    return commensal::run(std::vector<std::string>(argv, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "limit_benchmark: " << error.what() << '\n';
    return 1;
  }
}
