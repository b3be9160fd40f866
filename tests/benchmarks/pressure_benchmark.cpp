// SPDX-License-Identifier: Apache-2.0
// A job whose limit is below its working set: what each step then moves, reads and writes. Bytes
// and fences a step do not depend on how busy the machine is; times do.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"

namespace commensal {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20U;
constexpr std::size_t kLasting = 96;      // blocks that live as long as the job
constexpr std::size_t kTemporaries = 32;  // blocks of one step
constexpr Bytes kWorkingSet{(kLasting + kTemporaries) * kBlock};

/// What a step does to the lasting blocks; temporaries are always written.
enum class Use : std::uint8_t { kWrite, kRead, kWriteAThird, kUseHalf, kNoTemporaries };

/// Bytes that this process read from and wrote to disks, page faults included.
struct DiskBytes {
  double read = 0;
  double written = 0;

  static DiskBytes now() {
    std::ifstream file("/proc/self/io");
    DiskBytes bytes;
    std::string name;
    for (double value = 0; file >> name >> value;) {
      if (name == "read_bytes:") bytes.read = value;
      if (name == "write_bytes:") bytes.written = value;
    }
    return bytes;
  }
};

void write_pages(std::byte* block) {
  for (std::size_t i = 0; i < kBlock; i += 64) {
    block[i] = static_cast<std::byte>(std::to_integer<unsigned>(block[i]) + 1U);
  }
}
std::byte read_pages(const std::byte* block) {
  std::byte sum{};
  for (std::size_t i = 0; i < kBlock; i += 64) sum ^= block[i];
  return sum;
}

class Job {
 public:
  Job(ElasticAllocator& allocator, Use use)
      : allocator_(allocator),
        use_(use),
        temporaries_(use == Use::kNoTemporaries ? 0 : kTemporaries) {
    for (std::size_t i = 0; i < kLasting + kTemporaries - temporaries_.size(); ++i) {
      lasting_.push_back(take());
      write_pages(lasting_.back());
    }
  }
  ~Job() {
    for (std::byte* block : lasting_) allocator_.deallocate(block);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void step() {
    for (std::byte*& block : temporaries_) write_pages(block = take());
    const std::size_t used = use_ == Use::kUseHalf ? lasting_.size() / 2 : lasting_.size();
    for (std::size_t i = 0; i < used; ++i) {
      if (use_ != Use::kRead && (use_ != Use::kWriteAThird || i % 3 == 0)) {
        write_pages(lasting_[i]);
      } else {
        benchmark::DoNotOptimize(read_pages(lasting_[i]));
      }
    }
    for (std::byte* block : temporaries_) allocator_.deallocate(block);
    (void)allocator_.safe_point();
  }

 private:
  std::byte* take() { return static_cast<std::byte*>(allocator_.allocate(Bytes{kBlock})); }

  ElasticAllocator& allocator_;
  const Use use_;
  std::vector<std::byte*> temporaries_;
  std::vector<std::byte*> lasting_;
};

/// Steps under a limit of the working set divided by `tenths` / 10, after some to settle.
void steps_under_limit(benchmark::State& state, Use use, std::uint64_t tenths) {
  HostMemorySource source;
  if (source.capacity(Tier::kHost).is_zero()) {
    state.SkipWithError(("no slower tier: " + source.host_tier_reason()).c_str());
    return;
  }
  ElasticAllocator allocator(source, ElasticAllocatorOptions{});
  Job job(allocator, use);
  (void)allocator.set_limit(Bytes{kWorkingSet.count() * 10 / tenths});
  for (int i = 0; i < 5; ++i) job.step();
  const AllocatorStats before = allocator.stats();
  const DiskBytes disk_before = DiskBytes::now();
  for (auto _ : state) job.step();
  const AllocatorStats after = allocator.stats();
  const DiskBytes disk = DiskBytes::now();
  const double steps = static_cast<double>(state.iterations());
  const auto mib = [steps](double bytes) { return bytes / static_cast<double>(1U << 20U) / steps; };
  const auto bytes = [](Bytes amount) { return static_cast<double>(amount.count()); };
  const auto milliseconds = [steps](Duration time) {
    return std::chrono::duration<double, std::milli>(time).count() / steps;
  };
  state.counters["moved_mib"] =
      mib(bytes(after.moved_out + after.moved_in) - bytes(before.moved_out + before.moved_in));
  state.counters["disk_written_mib"] = mib(disk.written - disk_before.written);
  state.counters["disk_read_mib"] = mib(disk.read - disk_before.read);
  state.counters["fences"] = static_cast<double>(after.moves - before.moves) / steps;
  state.counters["paused_ms"] = milliseconds(after.total_pause - before.total_pause);
  state.counters["safe_point_ms"] = milliseconds(after.safe_point_wait - before.safe_point_wait);
  state.counters["deferred_mib"] = bytes(after.deferred) / static_cast<double>(1U << 20U);
}

constexpr std::array<std::pair<const char*, Use>, 5> kUses{{
    {"all written", Use::kWrite},
    {"all read", Use::kRead},
    {"a third written", Use::kWriteAThird},
    {"half used", Use::kUseHalf},
    {"no temporaries", Use::kNoTemporaries},
}};

void add_cases() {
  for (const auto& [name, use] : kUses) {
    for (const std::uint64_t tenths : {10U, 13U, 20U}) {
      const std::string ratio = std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
      benchmark::RegisterBenchmark((std::string(name) + "/" + ratio).c_str(), steps_under_limit,
                                   use, tenths)
          ->Iterations(40)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace commensal

int main(int argc, char** argv) {
  commensal::add_cases();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
