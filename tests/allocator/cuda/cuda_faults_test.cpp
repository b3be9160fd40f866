// SPDX-License-Identifier: Apache-2.0
// Every driver call fails once at every position of start, allocation, shrink, grow and park:
// nothing is lost, the driver's ledger is what the allocator says, and a retry succeeds.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/elastic_allocator.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::cuda_faults_test {
namespace {

// Small chunks: the calls are the same, the bytes fewer. Before the driver is opened.
const int kSmallChunks = ::setenv("SIMULATED_CUDA_GRANULARITY", "65536", 0);

CudaMachine& machine() { return CudaMachine::get(); }

TEST(CudaStartFaults, EveryDriverCallThatFailsLeavesNothingBehindAndARetrySucceeds) {
  COMMENSAL_NEEDS_SIMULATION();
  ASSERT_EQ(kSmallChunks, 0);
  machine().enter();
  std::size_t failures = 0;
  std::size_t survived = 0;
  for (const std::string& function : CudaMachine::functions()) {
    for (std::uint64_t position = 1;; ++position) {
      machine().clear();
      const Bytes before = machine().used();
      machine().fail(function, position);
      try {
        const CudaMemorySource source;
        if (machine().calls(function) >= position) ++survived;  // what can be done without
      } catch (const SourceError& error) {
        EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_UNKNOWN"), std::string::npos)
            << error.what();
      }
      const bool failed = machine().calls(function) >= position;
      const std::string where = function + " " + std::to_string(position);
      machine().clear();
      EXPECT_EQ(machine().used(), before) << where;
      {
        CudaMemorySource source;
        EXPECT_EQ(source.host_tier_reason(), "") << where;
        EXPECT_EQ(source.fingerprint_reason(), "") << where;
        const MemoryHandle handle = source.create(Tier::kDevice, source.granularity());
        source.release(handle);
      }
      EXPECT_EQ(machine().used(), before) << where;
      if (!failed) break;
      ++failures;
    }
  }
  EXPECT_GT(failures, 30U);
  EXPECT_GT(survived, 0U);
  EXPECT_GT(failures, survived);
}

/// Something that the allocator does, and how to tell that it was done in the end. `unit` is a
/// chunk.
struct Scenario {
  const char* name;
  std::function<void(ElasticAllocator&, PatternedBlocks&, Bytes unit)> prepare;
  std::function<void(ElasticAllocator&, PatternedBlocks&, Bytes unit)> act;
  std::function<bool(const AllocatorStats&, Bytes unit)> done;

  friend std::ostream& operator<<(std::ostream& out, const Scenario& scenario) {
    return out << scenario.name;
  }
};

std::vector<Scenario> scenarios() {
  const auto nothing = [](ElasticAllocator&, PatternedBlocks&, Bytes) {};
  const auto fill = [](ElasticAllocator&, PatternedBlocks& blocks, Bytes unit) {
    (void)blocks.add(unit * 2);
    (void)blocks.add(unit);
    (void)blocks.add(Bytes{1000});
    blocks.remove(blocks.add(unit * 2));
  };
  const auto fill_and_shrink = [fill](ElasticAllocator& allocator, PatternedBlocks& blocks,
                                      Bytes unit) {
    fill(allocator, blocks, unit);
    (void)allocator.set_limit(0_B);
  };
  const auto allocate = [](ElasticAllocator&, PatternedBlocks& blocks, Bytes unit) {
    while (blocks.entries().size() < 2) {
      if (blocks.add(unit * 3) == nullptr) return;
    }
  };
  const auto both = [](const AllocatorStats& stats, Bytes unit) { return stats.live == unit * 6; };
  const auto all_back = [](const AllocatorStats& stats, Bytes) {
    return stats.host + stats.parked == 0_B;
  };
  return {
      {"Allocate", nothing, allocate, both},
      {"AllocateOnTheSlowerTier",
       [](ElasticAllocator& allocator, PatternedBlocks&, Bytes unit) {
         (void)allocator.set_limit(unit * 2);
       },
       allocate, both},
      {"SetLimit", fill,
       [](ElasticAllocator& allocator, PatternedBlocks&, Bytes unit) {
         (void)allocator.set_limit(unit);
       },
       [](const AllocatorStats& stats, Bytes unit) { return stats.device <= unit; }},
      {"Shrink", fill,
       [](ElasticAllocator& allocator, PatternedBlocks&, Bytes unit) {
         (void)allocator.shrink(saturating_sub(allocator.stats().device, unit));
       },
       [](const AllocatorStats& stats, Bytes unit) { return stats.device <= unit; }},
      {"Grow", fill_and_shrink,
       [](ElasticAllocator& allocator, PatternedBlocks&, Bytes) {
         (void)allocator.post_limit(1_GiB);
         (void)allocator.grow(1_GiB);
       },
       all_back},
      {"SafePointGrows", fill_and_shrink,
       [](ElasticAllocator& allocator, PatternedBlocks&, Bytes) {
         (void)allocator.set_limit(1_GiB);
       },
       all_back},
      {"Park", fill,
       [](ElasticAllocator& allocator, PatternedBlocks&, Bytes) { (void)allocator.park(); },
       [](const AllocatorStats& stats, Bytes) { return stats.device == 0_B; }},
      {"ReleaseCached", fill,
       [](ElasticAllocator& allocator, PatternedBlocks&, Bytes) {
         (void)allocator.release_cached();
       },
       [](const AllocatorStats& stats, Bytes unit) { return stats.device <= unit * 5; }},
  };
}

class CudaFaults : public ::testing::TestWithParam<Scenario> {
 protected:
  void SetUp() override {
    COMMENSAL_NEEDS_SIMULATION();
    machine().enter();
    machine().clear();
    source_ = std::make_unique<CudaMemorySource>();
    unit_ = source_->granularity();
    used_ = machine().used();
  }

  void expect_sound(const ElasticAllocator& allocator, const PatternedBlocks& blocks,
                    const std::string& where) {
    const AllocatorStats stats = allocator.stats();
    EXPECT_EQ(stats.live, blocks.live()) << where;
    EXPECT_EQ(machine().used() - used_, stats.device + source_->kept(Tier::kDevice)) << where;
    blocks.expect_all();
  }

  // Lets one call fail; returns whether the scenario makes so many of it.
  bool run(const std::string& function, std::uint64_t position, CUresult error) {
    const std::string where = function + " " + std::to_string(position);
    ElasticAllocatorOptions options;
    options.chunk_size = unit_;
    options.move_deadline = std::chrono::seconds{60};  // a slow machine must not look like a fault
    options.fence_deadline = std::chrono::seconds{10};
    bool failed = false;
    {
      ElasticAllocator allocator(*source_, options);
      PatternedBlocks blocks(allocator, CudaMachine::access());
      GetParam().prepare(allocator, blocks, unit_);
      machine().clear();
      machine().fail(function, position, error);
      GetParam().act(allocator, blocks, unit_);
      failed = machine().calls(function) >= position;
      machine().clear();
      expect_sound(allocator, blocks, where);
      GetParam().act(allocator, blocks, unit_);
      EXPECT_TRUE(GetParam().done(allocator.stats(), unit_)) << where;
      (void)allocator.safe_point();  // takes back what the driver had refused
      expect_sound(allocator, blocks, where);
      blocks.remove_all();
    }
    EXPECT_EQ(machine().used(), used_) << where;
    return failed;
  }

  std::unique_ptr<CudaMemorySource> source_;
  Bytes unit_;
  Bytes used_;
};

TEST_P(CudaFaults, P9_Law2_EveryDriverCallThatFailsLosesNothingAndARetrySucceeds) {
  std::size_t failures = 0;
  for (const std::string& function : CudaMachine::functions()) {
    for (std::uint64_t position = 1; run(function, position, CUDA_ERROR_UNKNOWN); ++position) {
      ++failures;
      ASSERT_FALSE(HasFailure()) << function << " " << position;
    }
  }
  EXPECT_GT(failures, 0U);
  for (std::uint64_t position = 1; run("cuMemCreate", position, CUDA_ERROR_OUT_OF_MEMORY);
       ++position) {
    ASSERT_FALSE(HasFailure()) << "cuMemCreate out of memory " << position;
  }
}

INSTANTIATE_TEST_SUITE_P(Everything, CudaFaults, ::testing::ValuesIn(scenarios()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace commensal::cuda_faults_test
