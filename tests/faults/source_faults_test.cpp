// SPDX-License-Identifier: Apache-2.0
// Every call of the memory source fails once at every position of start, shrink, grow, park and
// return, on the fake and on the machine's own memory. A scenario first runs without faults: that
// counts the calls, and its end is what the retry after each fault must reach.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>

#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"
#include "tests/faults/faulty_source.h"

namespace commensal::testing::source_faults_test {
namespace {

/// What a user can see of an allocator's memory.
struct Ledger {
  Bytes live;
  Bytes device;
  Bytes slow;
  std::uint64_t blocks = 0;
  bool operator==(const Ledger&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Ledger& ledger) {
    return out << commensal::to_string(ledger.live) << " live in " << ledger.blocks << " blocks, "
               << commensal::to_string(ledger.device) << " on the device, "
               << commensal::to_string(ledger.slow) << " slow";
  }
};

Ledger ledger_of(const ElasticAllocator& allocator) {
  const AllocatorStats stats = allocator.stats();
  return {stats.live, stats.device, stats.host + stats.parked, stats.allocations - stats.frees};
}

/// A source of each kind and the sizes that suit it.
struct Kind {
  const char* name;
  Bytes unit;  ///< a chunk
  std::function<std::unique_ptr<MemorySource>()> make;
  std::function<std::string(MemorySource&)> complaint;  ///< misuse that the source noticed
};

Kind fake_kind() {
  return {"Fake", 128_KiB, [] { return std::make_unique<MovingSource>(); },
          [](MemorySource& source) {
            const auto found = dynamic_cast<MovingSource&>(source).fake().violations();
            return found.empty() ? std::string{} : found.front();
          }};
}
Kind host_kind() {
  return {"Host", 2_MiB, [] { return std::make_unique<HostMemorySource>(); },
          [](MemorySource&) { return std::string{}; }};
}

/// An allocator with blocks over a source that can fail.
struct Stage {
  Stage(const Kind& kind, MemorySource& source)
      : faulty(source), allocator(faulty, options(kind)), blocks(allocator) {}
  static ElasticAllocatorOptions options(const Kind& kind) {
    ElasticAllocatorOptions options;
    options.chunk_size = kind.unit;
    options.move_deadline = std::chrono::seconds{60};  // a slow machine must not look like a fault
    options.fence_deadline = std::chrono::seconds{10};
    return options;
  }
  FaultySource faulty;
  ElasticAllocator allocator;
  PatternedBlocks blocks;
};

struct Scenario {
  const char* name;
  std::function<void(Stage&, Bytes unit)> prepare;
  std::function<void(Stage&, Bytes unit)> act;  ///< again after a failure: the retry
};

Bytes times(Bytes unit, std::uint64_t eighths) { return Bytes{unit.count() * eighths / 8}; }

void fill(Stage& stage, Bytes unit) {
  for (const std::uint64_t eighths : {20U, 4U, 12U, 16U})
    (void)stage.blocks.add(times(unit, eighths));
  stage.blocks.remove(stage.blocks.add(times(unit, 24)));  // leaves chunks without blocks
}
void fill_and_shrink(Stage& stage, Bytes unit) {
  fill(stage, unit);
  (void)stage.allocator.set_limit(0_B);
}
void fill_and_park(Stage& stage, Bytes unit) {
  fill(stage, unit);
  (void)stage.allocator.park();
}

std::array<Scenario, 6> scenarios() {
  return {{
      {"Start", [](Stage&, Bytes) {},
       [](Stage& stage, Bytes unit) {
         while (stage.blocks.entries().size() < 3) {
           if (stage.blocks.add(times(unit, 20)) == nullptr) return;
         }
       }},
      {"StartOnTheSlowerTier", [](Stage& stage, Bytes) { (void)stage.allocator.set_limit(0_B); },
       [](Stage& stage, Bytes unit) {
         while (stage.blocks.entries().size() < 2) {
           if (stage.blocks.add(times(unit, 12)) == nullptr) return;
         }
       }},
      {"Shrink", fill, [](Stage& stage, Bytes unit) { (void)stage.allocator.set_limit(unit); }},
      {"Grow", fill_and_shrink,
       [](Stage& stage, Bytes) { (void)stage.allocator.set_limit(1_GiB); }},
      {"Park", fill, [](Stage& stage, Bytes) { (void)stage.allocator.park(); }},
      {"Return", fill_and_park,
       [](Stage& stage, Bytes) {
         (void)stage.allocator.post_limit(1_GiB);
         (void)stage.allocator.grow(1_GiB);
       }},
  }};
}

class SourceFaults : public ::testing::TestWithParam<std::tuple<Kind, Scenario>> {
 protected:
  [[nodiscard]] static const Kind& kind() { return std::get<0>(GetParam()); }
  [[nodiscard]] static const Scenario& scenario() { return std::get<1>(GetParam()); }

  /// The books agree with what the source was asked for.
  static void expect_books(const Stage& stage, const std::string& where) {
    const Ledger ledger = ledger_of(stage.allocator);
    EXPECT_EQ(ledger.live, stage.blocks.live()) << where;
    EXPECT_EQ(ledger.blocks, stage.blocks.entries().size()) << where;
    EXPECT_EQ(ledger.device, stage.faulty.created(Tier::kDevice)) << where;
    EXPECT_EQ(ledger.slow, stage.faulty.created(Tier::kHost)) << where;
    stage.blocks.expect_all();
  }

  /// Runs the scenario with one fault and once more without; returns whether the fault was met.
  bool run_with_fault(SourceCall call, std::uint64_t position, const Ledger& before,
                      const Ledger& reference) {
    const std::string where =
        std::string(to_string(call)) + " fails at position " + std::to_string(position);
    SCOPED_TRACE(where);
    Stage stage(kind(), *source_);
    scenario().prepare(stage, kind().unit);
    EXPECT_EQ(ledger_of(stage.allocator), before);
    const auto blocks_before = stage.blocks.entries().size();
    stage.faulty.fail_at(call, position);
    scenario().act(stage, kind().unit);
    const bool met = stage.faulty.failed();
    EXPECT_GE(stage.blocks.entries().size(), blocks_before) << "a block is gone";
    expect_books(stage, where + ", before the retry");

    stage.faulty.fail_at(call, 0);
    scenario().act(stage, kind().unit);
    (void)stage.allocator.safe_point();  // takes back what the source had refused to take
    const Ledger after = ledger_of(stage.allocator);
    EXPECT_EQ(after.live, reference.live);
    EXPECT_EQ(after.blocks, reference.blocks);
    // A chunk may lie elsewhere than without the fault, but not more of the device is in use.
    EXPECT_LE(after.device, reference.device + kind().unit);
    EXPECT_LE(after.device + after.slow, reference.device + reference.slow + kind().unit);
    expect_books(stage, where + ", after the retry");
    stage.blocks.remove_all();
    EXPECT_EQ(kind().complaint(*source_), "");
    return met;
  }

  std::unique_ptr<MemorySource> source_ = kind().make();
};

TEST_P(SourceFaults, P9_Law2_EveryFailureLosesNothingAndARetrySucceeds) {
  if (source_->capacity(Tier::kHost).is_zero()) {
    GTEST_SKIP() << "no slower tier: " << source_->host_tier_reason();
  }
  Stage reference(kind(), *source_);
  scenario().prepare(reference, kind().unit);
  const Ledger before = ledger_of(reference.allocator);
  std::array<std::uint64_t, kSourceCalls> calls{};
  for (std::size_t i = 0; i < kSourceCalls; ++i) {
    calls[i] = reference.faulty.calls(static_cast<SourceCall>(i));
  }
  scenario().act(reference, kind().unit);
  for (std::size_t i = 0; i < kSourceCalls; ++i) {
    calls[i] = reference.faulty.calls(static_cast<SourceCall>(i)) - calls[i];
  }
  (void)reference.allocator.safe_point();
  const Ledger end = ledger_of(reference.allocator);
  EXPECT_NE(end, before) << "the scenario does something";
  expect_books(reference, "without a fault");

  std::uint64_t met = 0;
  for (std::size_t i = 0; i < kSourceCalls; ++i) {
    for (std::uint64_t position = 1; position <= calls[i]; ++position) {
      met += run_with_fault(static_cast<SourceCall>(i), position, before, end) ? 1U : 0U;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(met, 0U);
  RecordProperty("faults", std::to_string(met));
}

INSTANTIATE_TEST_SUITE_P(All, SourceFaults,
                         ::testing::Combine(::testing::Values(fake_kind(), host_kind()),
                                            ::testing::ValuesIn(scenarios())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) +
                                  std::get<1>(test.param).name;
                         });

}  // namespace
}  // namespace commensal::testing::source_faults_test
