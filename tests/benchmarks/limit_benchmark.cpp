// SPDX-License-Identifier: Apache-2.0
// What it takes to give memory back and to bring it back, beside what the kernel and the disk take
// for the same bytes. Each round does ours and the raw call in turn; one line of JSON a round.
//
//   limit_benchmark FOLDER MIB ROUNDS
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
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

/// Does both sides of every comparison, a round at a time.
class Rounds {
 public:
  Rounds(const std::string& folder, std::size_t size)
      : size_(size),
        source_(options_in(folder)),
        elastic_(source_, patient()),
        blocks_(size / kBlock),
        memory_(size),
        file_(folder, size) {
    if (source_.capacity(Tier::kHost) < Bytes{size}) {
      throw std::runtime_error("no slower tier for " + to_string(Bytes{size}) + " in " + folder +
                               ": " + source_.host_tier_reason());
    }
  }

  nlohmann::json run(std::uint64_t round) {
    nlohmann::json times;
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
    return times;
  }

 private:
  static HostMemorySource::Options options_in(const std::string& folder) {
    HostMemorySource::Options options;
    options.spill_folder = folder;
    return options;
  }
  static ElasticAllocatorOptions patient() {
    ElasticAllocatorOptions options;
    options.move_deadline = std::chrono::seconds{120};
    return options;
  }

  void allocate(std::uint64_t seed) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = elastic_.allocate(Bytes{kBlock});
      fill(blocks_[i], kBlock, seed + i);
    }
  }
  void free() {
    for (void* const block : blocks_) elastic_.deallocate(block);
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

  void ours_cached(nlohmann::json& times) {
    allocate(1);
    free();
    times["cached"]["ours"] = limit(kNone, Bytes{size_} - kNone);
    (void)limit(kAll, {});
  }
  void raw_cached(nlohmann::json& times) {
    fill(memory_.begin(), size_, 1);
    const auto begin = Steady::now();
    memory_.give_back();
    times["cached"]["raw"] = since(begin);
  }
  void ours_live(nlohmann::json& times, std::uint64_t round) {
    allocate(round);
    const AllocatorStats before = elastic_.stats();
    times["down"]["ours"] = limit(kNone, Bytes{size_} - kNone);
    times["up"]["ours"] = limit(kAll, Bytes{size_} - kNone);
    const AllocatorStats after = elastic_.stats();
    times["pauses"] = {
        {"count", after.moves - before.moves},
        {"seconds", std::chrono::duration<double>(after.total_pause - before.total_pause).count()}};
    for (std::size_t i = 0; i < blocks_.size(); ++i) check(blocks_[i], kBlock, round + i, room_);
    free();
    elastic_.release_cached();
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

  std::size_t size_;
  HostMemorySource source_;
  ElasticAllocator elastic_;
  std::vector<void*> blocks_;
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
