// SPDX-License-Identifier: Apache-2.0
// Allocate, touch and free: the elastic allocator beside malloc, and beside a new mapping each time
// (which is what malloc does for large blocks). Names are KIND/CASE; allocator.py makes the table.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"

namespace commensal {
namespace {

ElasticAllocator& elastic() {
  // Never destroyed, as in a training process.
  static auto& source = *new HostMemorySource;
  static auto& allocator = *new ElasticAllocator(source, ElasticAllocatorOptions{});
  return allocator;
}

struct Elastic {
  static constexpr const char* kName = "elastic";
  static void* allocate(std::size_t size) { return elastic().allocate(Bytes{size}); }
  static void free(void* block, std::size_t) { elastic().deallocate(block); }
};

/// What PyTorch's default allocator calls; the C library adapts its thresholds as it sees fit.
struct Malloc {
  static constexpr const char* kName = "malloc";
  static void* allocate(std::size_t size) {
    void* block = nullptr;
    return posix_memalign(&block, 64, size) == 0 ? block : nullptr;
  }
  static void free(void* block, std::size_t) { std::free(block); }
};

/// A new mapping each time for blocks of 128 KiB and more: the C library's first threshold.
struct Mapping {
  static constexpr const char* kName = "mmap";
  static constexpr std::size_t kThreshold = std::size_t{128} * 1024;
  static void* allocate(std::size_t size) {
    if (size < kThreshold) return Malloc::allocate(size);
    void* const block =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? nullptr : block;
  }
  static void free(void* block, std::size_t size) {
    if (size < kThreshold) {
      Malloc::free(block, size);
    } else {
      munmap(block, size);
    }
  }
};

/// Writes one byte a page: what a first use costs.
void touch(void* block, std::size_t size) {
  auto* const bytes = static_cast<volatile std::byte*>(block);
  for (std::size_t i = 0; i < size; i += 4096) bytes[i] = std::byte{1};
}

/// One block, taken and given back.
template <typename Kind>
void one_block(benchmark::State& state, std::size_t size) {
  Kind::free(Kind::allocate(size), size);  // the first one makes pools and ranges
  for (auto _ : state) {
    void* const block = Kind::allocate(size);
    touch(block, size);
    benchmark::DoNotOptimize(block);
    Kind::free(block, size);
  }
}

/// The blocks of a training step: taken in one order and given back in the opposite one.
template <typename Kind>
void training_step(benchmark::State& state) {
  std::mt19937_64 random{7};
  std::vector<std::size_t> sizes(200);
  for (std::size_t& size : sizes) {
    size = std::size_t{64} << (random() % 16);  // 64 B to 2 MiB
  }
  std::vector<void*> blocks(sizes.size());
  const auto step = [&] {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      blocks[i] = Kind::allocate(sizes[i]);
      touch(blocks[i], sizes[i]);
    }
    for (std::size_t i = blocks.size(); i-- > 0;) Kind::free(blocks[i], sizes[i]);
  };
  step();  // a first step is another matter
  for (auto _ : state) step();
}

constexpr std::array<std::pair<const char*, std::size_t>, 4> kSizes{{
    {"one block of 256 B", 256},
    {"one block of 64 KiB", std::size_t{64} << 10U},
    {"one block of 1 MiB", std::size_t{1} << 20U},
    {"one block of 16 MiB", std::size_t{16} << 20U},
}};

template <typename Kind>
void add_cases() {
  const std::string kind{Kind::kName};
  for (const auto& [name, size] : kSizes) {
    benchmark::RegisterBenchmark((kind + "/" + name).c_str(), one_block<Kind>, size)->UseRealTime();
  }
  benchmark::RegisterBenchmark((kind + "/a training step of 200 blocks").c_str(),
                               training_step<Kind>)
      ->UseRealTime();
}

}  // namespace
}  // namespace commensal

int main(int argc, char** argv) {
  commensal::add_cases<commensal::Elastic>();
  commensal::add_cases<commensal::Malloc>();
  commensal::add_cases<commensal::Mapping>();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
