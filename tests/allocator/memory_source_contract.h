// SPDX-License-Identifier: Apache-2.0
// The contract of memory_source.h as tests: every implementation instantiates this suite.
//
//   INSTANTIATE_TEST_SUITE_P(Mine, MemorySourceContract, ::testing::Values(&make_mine));
//
// The maker gets capacities in bytes, multiples of the granularity; `host` zero: no slower tier.
// A source whose memory the CPU cannot touch, or which forked children cannot see, says so in
// `ContractSubject`.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/memory_source.h"
#include "tests/allocator/memory_access.h"

namespace commensal {

using MakeSource = std::unique_ptr<MemorySource> (*)(Bytes device, Bytes host);

/// A kind of source, and what tests can do with its memory.
struct ContractSubject {
  // NOLINTNEXTLINE(google-explicit-constructor): most kinds need nothing but a maker
  ContractSubject(MakeSource maker, MemoryAccess how = {}, bool snapshot = true)
      : make(maker), access(how), children_see_a_snapshot(snapshot) {}

  MakeSource make;
  MemoryAccess access;
  bool children_see_a_snapshot;
};

class MemorySourceContract : public ::testing::TestWithParam<ContractSubject> {
 protected:
  static constexpr std::uint64_t kChunks = 8;

  MemorySourceContract() {
    chunk_ = make(Bytes{UINT64_MAX}, Bytes{})->granularity();
    source_ = make(chunk_ * kChunks, chunk_ * kChunks);
  }

  static std::unique_ptr<MemorySource> make(Bytes device, Bytes host) {
    return GetParam().make(device, host);
  }

  MemorySource& source() { return *source_; }
  Bytes chunk() const { return chunk_; }

  std::byte* reserve(std::uint64_t chunks = kChunks) {
    return source().reserve(chunk_ * chunks).begin;
  }

  MemoryHandle mapped(Tier tier, std::byte* address) {
    const MemoryHandle handle = source().create(tier, chunk_);
    source().map(address, handle);
    return handle;
  }

  void fill(std::byte* address, std::uint64_t seed) {
    std::vector<std::uint64_t> words(chunk_.count() / 8);
    for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = seed * 1'000'003 + i;
    GetParam().access.store(address, words.data(), chunk_.count());
  }
  // Returns the first byte that is not what `fill` wrote; the chunk's size if all are.
  std::uint64_t first_wrong(const std::byte* address, std::uint64_t seed) {
    std::vector<std::uint64_t> words(chunk_.count() / 8);
    GetParam().access.load(words.data(), address, chunk_.count());
    for (std::uint64_t i = 0; i < words.size(); ++i) {
      if (words[i] != seed * 1'000'003 + i) return i * 8;
    }
    return chunk_.count();
  }
  // Changes one byte; doing it again changes it back.
  void flip(std::byte* address) {
    std::byte value{};
    GetParam().access.load(&value, address, 1);
    value ^= std::byte{1};
    GetParam().access.store(address, &value, 1);
  }
  void expect_filled(const std::byte* address, std::uint64_t seed) {
    EXPECT_EQ(first_wrong(address, seed), chunk_.count()) << "first wrong byte";
  }

  CopyTicket copied(std::byte* address, MemoryHandle from, MemoryHandle to) {
    const CopyTicket ticket = source().begin_copy(address, from, to);
    EXPECT_EQ(source().wait_copy(ticket), CopyState::kDone) << source().copy_error(ticket);
    return ticket;
  }

  // A fence may be refused while the machine is busy; then it is asked for again.
  void fence() {
    FenceResult result;
    for (int i = 0; i < 100 && !result.stopped; ++i) {
      result = source().fence(std::chrono::milliseconds{500});
    }
    ASSERT_TRUE(result.stopped) << result.reason;
  }

  SwapResult swap(CopyTicket ticket, OnChange on_change = OnChange::kLeave) {
    fence();
    const SwapResult result = source().swap(ticket, on_change);
    source().unfence();
    return result;
  }

  // Moves a chunk and returns its new handle.
  MemoryHandle move(std::byte* address, MemoryHandle from, Tier tier) {
    const MemoryHandle to = source().create(tier, chunk_);
    const CopyTicket ticket = copied(address, from, to);
    EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
    source().end_copy(ticket);
    source().release(from);
    return to;
  }

 private:
  std::unique_ptr<MemorySource> source_;
  Bytes chunk_;
};

TEST_P(MemorySourceContract, ReservationsAreAligned) {
  const AddressRange a = source().reserve(chunk() * 3);
  const AddressRange b = source().reserve(chunk());
  for (const AddressRange& range : {a, b}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range.begin) % chunk().count(), 0U);
  }
  EXPECT_EQ(a.size, chunk() * 3);
  EXPECT_FALSE(a.contains(b.begin));
  source().unreserve(a);
  source().unreserve(b);
}

TEST_P(MemorySourceContract, SizesAreMultiplesOfTheGranularity) {
  EXPECT_THROW((void)source().reserve(Bytes{4096} + chunk()), std::logic_error);
  EXPECT_THROW((void)source().reserve(Bytes{}), std::logic_error);
  EXPECT_THROW((void)source().create(Tier::kDevice, Bytes{1}), std::logic_error);
  EXPECT_THROW((void)source().create(Tier::kHost, Bytes{}), std::logic_error);
  EXPECT_THROW((void)source().create(Tier::kParked, chunk()), std::logic_error);
}

TEST_P(MemorySourceContract, AbsurdReservationIsOutOfMemoryAndChangesNothing) {
  const Bytes absurd{(std::uint64_t{1} << 60U) / chunk().count() * chunk().count()};
  EXPECT_THROW((void)source().reserve(absurd), OutOfMemory);
  std::byte* address = reserve();
  (void)mapped(Tier::kDevice, address);
  fill(address, 1);
  expect_filled(address, 1);
}

TEST_P(MemorySourceContract, CreateCountsAgainstTheTiersCapacity) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    ASSERT_EQ(source().capacity(tier), chunk() * kChunks);
    std::vector<MemoryHandle> handles;
    for (std::uint64_t i = 0; i < kChunks; ++i) {
      handles.push_back(source().create(tier, chunk()));
      EXPECT_TRUE(handles.back());
      EXPECT_EQ(handles.back().tier, tier);
    }
    EXPECT_THROW((void)source().create(tier, chunk()), OutOfMemory);
    source().release(handles.back());
    handles.back() = source().create(tier, chunk());
    EXPECT_THROW((void)source().create(tier, chunk()), OutOfMemory);
    for (const MemoryHandle& handle : handles) source().release(handle);
    const MemoryHandle large = source().create(tier, chunk() * kChunks);
    source().release(large);
  }
}

TEST_P(MemorySourceContract, WithoutASlowerTierItSaysWhy) {
  EXPECT_EQ(source().host_tier_reason(), "");
  const auto without = make(chunk() * 2, Bytes{});
  EXPECT_EQ(without->capacity(Tier::kHost), Bytes{});
  EXPECT_NE(without->host_tier_reason(), "");
  EXPECT_THROW((void)without->create(Tier::kHost, chunk()), OutOfMemory);
  const AddressRange range = without->reserve(chunk());
  const MemoryHandle handle = without->create(Tier::kDevice, chunk());
  without->map(range.begin, handle);
  fill(range.begin, 3);
  expect_filled(range.begin, 3);
}

TEST_P(MemorySourceContract, MappedMemoryIsReadableAndWritable) {
  std::byte* address = reserve();
  std::byte* second = address + chunk().count();
  const MemoryHandle device = mapped(Tier::kDevice, address);
  const MemoryHandle host = mapped(Tier::kHost, second);
  fill(address, 1);
  fill(second, 2);
  expect_filled(address, 1);
  expect_filled(second, 2);
  source().unmap(address, device);
  expect_filled(second, 2);
  source().unmap(second, host);
  // Handles can be mapped anew, elsewhere, each of them.
  source().map(second, device);
  source().map(address, host);
  fill(address, 4);
  fill(second, 5);
  expect_filled(address, 4);
  expect_filled(second, 5);
}

TEST_P(MemorySourceContract, MappingTwiceIsMisuse) {
  std::byte* address = reserve();
  const MemoryHandle handle = mapped(Tier::kDevice, address);
  fill(address, 1);
  const MemoryHandle other = source().create(Tier::kHost, chunk());
  const MemoryHandle wide = source().create(Tier::kDevice, chunk() * 2);
  EXPECT_THROW(source().map(address + chunk().count(), handle), std::logic_error);
  EXPECT_THROW(source().map(address, other), std::logic_error);
  source().unmap(address, handle);
  source().map(address + chunk().count(), handle);
  EXPECT_THROW(source().map(address, wide), std::logic_error) << "overlaps at its end";
  source().map(address + 2 * chunk().count(), wide);
  EXPECT_THROW(source().map(address + 3 * chunk().count(), other), std::logic_error)
      << "overlaps at its start";
}

TEST_P(MemorySourceContract, MappingOutsideOfAReservationIsMisuse) {
  std::byte* address = reserve(2);
  const MemoryHandle handle = source().create(Tier::kDevice, chunk());
  const MemoryHandle wide = source().create(Tier::kDevice, chunk() * 3);
  EXPECT_THROW(source().map(address + 4096, handle), std::logic_error);
  EXPECT_THROW(source().map(nullptr, handle), std::logic_error);
  EXPECT_THROW(source().map(address, wide), std::logic_error);
  source().map(address, handle);
}

TEST_P(MemorySourceContract, ARunIsMappedInOneGo) {
  std::byte* address = reserve();
  std::vector<MemoryHandle> run;
  for (const Tier tier : {Tier::kDevice, Tier::kDevice, Tier::kHost, Tier::kDevice}) {
    run.push_back(source().create(tier, chunk()));
  }
  EXPECT_EQ(source().map_run(address, {}).mapped, 0U);
  const auto whole = source().map_run(address, run);
  EXPECT_EQ(whole.mapped, run.size()) << whole.error;
  EXPECT_EQ(whole.error, "");
  for (std::uint64_t i = 0; i < run.size(); ++i) fill(address + i * chunk().count(), i);
  for (std::uint64_t i = 0; i < run.size(); ++i) {
    expect_filled(address + i * chunk().count(), i);
    source().unmap(address + i * chunk().count(), run[i]);
  }
}

TEST_P(MemorySourceContract, ARunSaysHowFarItCame) {
  std::byte* address = reserve(3);
  std::vector<MemoryHandle> run;
  for (int i = 0; i < 4; ++i) run.push_back(source().create(Tier::kDevice, chunk()));
  const auto part = source().map_run(address, run);  // the last one is outside
  EXPECT_LT(part.mapped, run.size());
  EXPECT_NE(part.error, "");
  for (std::size_t i = 0; i < run.size(); ++i) {
    if (i < part.mapped) source().unmap(address + i * chunk().count(), run[i]);
    source().release(run[i]);
  }
}

TEST_P(MemorySourceContract, ARunHoldsEachHandleOnce) {
  std::byte* address = reserve();
  const MemoryHandle handle = source().create(Tier::kDevice, chunk());
  const MemoryHandle twice[] = {handle, handle};
  const auto part = source().map_run(address, twice);
  EXPECT_LT(part.mapped, 2U);
  EXPECT_NE(part.error, "");
  if (part.mapped == 1) source().unmap(address, handle);
  source().map(address, handle);
  fill(address, 3);
  expect_filled(address, 3);
}

TEST_P(MemorySourceContract, ARunIsUnmappedInOneGo) {
  std::byte* address = reserve();
  std::vector<MemoryHandle> run;
  for (const Tier tier : {Tier::kDevice, Tier::kDevice, Tier::kHost, Tier::kDevice}) {
    run.push_back(mapped(tier, address + run.size() * chunk().count()));
    fill(address + (run.size() - 1) * chunk().count(), run.size());
  }
  EXPECT_EQ(source().unmap_run(address, {}).unmapped, 0U);
  // The first stays: what lies beside a run is not touched.
  const std::span<const MemoryHandle> rest = std::span(run).subspan(1);
  const auto whole = source().unmap_run(address + chunk().count(), rest);
  EXPECT_EQ(whole.unmapped, rest.size()) << whole.error;
  EXPECT_EQ(whole.error, "");
  expect_filled(address, 1);
  for (const MemoryHandle& handle : rest) source().release(handle);
  const MemoryHandle again = mapped(Tier::kDevice, address + chunk().count());
  fill(address + chunk().count(), 9);
  expect_filled(address + chunk().count(), 9);
  expect_filled(address, 1);
  source().unmap(address + chunk().count(), again);
}

TEST_P(MemorySourceContract, ARunSaysHowFarItWasUnmapped) {
  std::byte* address = reserve();
  std::vector<MemoryHandle> run;
  for (int i = 0; i < 3; ++i) {
    run.push_back(mapped(Tier::kDevice, address + run.size() * chunk().count()));
    fill(address + (run.size() - 1) * chunk().count(), run.size());
  }
  std::swap(run[1], run[2]);  // not where they are said to be
  const auto part = source().unmap_run(address, run);
  EXPECT_LE(part.unmapped, 1U);
  EXPECT_NE(part.error, "");
  if (part.unmapped == 0) expect_filled(address, 1);
  expect_filled(address + chunk().count(), 2);
  expect_filled(address + 2 * chunk().count(), 3);
}

TEST_P(MemorySourceContract, TheLeaseChangesNothingThatCallersSee) {
  std::byte* address = reserve();
  source().set_lease(chunk() * 4);
  for (int round = 0; round < 3; ++round) {
    const MemoryHandle handle = mapped(Tier::kDevice, address);
    fill(address, 1);
    expect_filled(address, 1);
    source().unmap(address, handle);
    source().release(handle);
    EXPECT_THROW(source().release(handle), std::logic_error);
    EXPECT_THROW(source().map(address, handle), std::logic_error);
  }
  const MemoryHandle all = source().create(Tier::kDevice, chunk() * kChunks);
  source().release(all);
  source().set_lease(Bytes{});
}

TEST_P(MemorySourceContract, UnmappingWhatIsNotMappedIsMisuse) {
  std::byte* address = reserve();
  const MemoryHandle handle = source().create(Tier::kDevice, chunk());
  EXPECT_THROW(source().unmap(address, handle), std::logic_error);
  source().map(address, handle);
  fill(address, 1);
  EXPECT_THROW(source().unmap(address + chunk().count(), handle), std::logic_error);
  expect_filled(address, 1);
  source().unmap(address, handle);
  EXPECT_THROW(source().unmap(address, handle), std::logic_error);
}

TEST_P(MemorySourceContract, ReleasingMappedOrReleasedHandlesIsMisuse) {
  std::byte* address = reserve();
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const MemoryHandle handle = mapped(tier, address);
    fill(address, 1);
    EXPECT_THROW(source().release(handle), std::logic_error);
    expect_filled(address, 1);
    source().unmap(address, handle);
    source().release(handle);
    EXPECT_THROW(source().release(handle), std::logic_error);
    EXPECT_THROW(source().map(address, handle), std::logic_error);
    EXPECT_THROW(source().release(MemoryHandle{}), std::logic_error);
  }
}

TEST_P(MemorySourceContract, UnreservingIsCheckedToo) {
  const AddressRange range = source().reserve(chunk() * 2);
  const MemoryHandle handle = source().create(Tier::kDevice, chunk());
  source().map(range.begin + chunk().count(), handle);
  EXPECT_THROW(source().unreserve(range), std::logic_error) << "something is mapped";
  EXPECT_THROW(source().unreserve(AddressRange{range.begin, chunk()}), std::logic_error);
  source().unmap(range.begin + chunk().count(), handle);
  source().unreserve(range);
  EXPECT_THROW(source().unreserve(range), std::logic_error);
}

TEST_P(MemorySourceContract, LiveChunksMoveBothWaysAndKeepTheirBytes) {
  std::byte* address = reserve();
  MemoryHandle handle = mapped(Tier::kDevice, address);
  fill(address, 1);
  for (std::uint64_t round = 1; round < 4; ++round) {
    handle = move(address, handle, Tier::kHost);
    expect_filled(address, round);
    fill(address, round + 100);  // written while on the slower tier
    expect_filled(address, round + 100);
    handle = move(address, handle, Tier::kHost);  // from slower to slower
    expect_filled(address, round + 100);
    handle = move(address, handle, Tier::kDevice);
    expect_filled(address, round + 100);
    fill(address, round + 1);
  }
  source().unmap(address, handle);
  source().release(handle);
}

TEST_P(MemorySourceContract, SwappingExchangesTheHandles) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 7);
  const CopyTicket ticket = copied(address, from, to);
  ASSERT_EQ(swap(ticket), SwapResult::kSwapped);
  EXPECT_THROW(source().unmap(address, from), std::logic_error);
  EXPECT_THROW(source().release(to), std::logic_error) << "is mapped now";
  source().release(from);  // before the ticket ends, too
  source().end_copy(ticket);
  expect_filled(address, 7);
  source().unmap(address, to);
  source().release(to);
}

TEST_P(MemorySourceContract, ChangedBytesStayAndTheTargetCanBeUsedAgain) {
  std::byte* address = reserve();
  for (const Tier first : {Tier::kDevice, Tier::kHost}) {
    const Tier second = first == Tier::kDevice ? Tier::kHost : Tier::kDevice;
    MemoryHandle from = mapped(Tier::kDevice, address);
    fill(address, 1);
    if (first == Tier::kHost) from = move(address, from, Tier::kHost);  // new one: nothing to copy
    const MemoryHandle to = source().create(second, chunk());
    CopyTicket ticket = copied(address, from, to);
    flip(address + chunk().count() / 2);
    EXPECT_EQ(swap(ticket), SwapResult::kChanged);
    source().end_copy(ticket);
    flip(address + chunk().count() / 2);
    expect_filled(address, 1);
    fill(address, 2);
    ticket = copied(address, from, to);
    EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
    source().end_copy(ticket);
    expect_filled(address, 2);
    source().release(from);
    source().unmap(address, to);
    source().release(to);
  }
}

TEST_P(MemorySourceContract, MemoryNewOnTheSlowerTierComesBackWithWhatWasWritten) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kHost, address);
  const MemoryHandle to = source().create(Tier::kDevice, chunk());
  fill(address, 1);
  CopyTicket ticket = copied(address, from, to);
  fill(address, 2);
  if (swap(ticket) == SwapResult::kChanged) {  // copied, not only renamed
    source().end_copy(ticket);
    ticket = copied(address, from, to);
    ASSERT_EQ(swap(ticket), SwapResult::kSwapped);
  }
  source().end_copy(ticket);
  source().release(from);
  expect_filled(address, 2);
  const MemoryHandle again = move(address, to, Tier::kHost);
  expect_filled(address, 2);
  source().unmap(address, again);
  source().release(again);
}

TEST_P(MemorySourceContract, CopyInsideTakesWhatChanged) {
  std::byte* address = reserve();
  for (const Tier first : {Tier::kDevice, Tier::kHost}) {
    const Tier second = first == Tier::kDevice ? Tier::kHost : Tier::kDevice;
    const MemoryHandle from = mapped(first, address);
    const MemoryHandle to = source().create(second, chunk());
    fill(address, 1);
    CopyTicket ticket = copied(address, from, to);
    fill(address, 2);  // all of it
    EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
    source().end_copy(ticket);
    expect_filled(address, 2);
    ticket = copied(address, to, from);
    flip(address);  // first and last byte
    flip(address + chunk().count() - 1);
    EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
    source().end_copy(ticket);
    flip(address);
    flip(address + chunk().count() - 1);
    expect_filled(address, 2);
    source().release(to);
    source().unmap(address, from);
    source().release(from);
  }
}

TEST_P(MemorySourceContract, KCopyInsideAfterKChangedOnTheSameTicketWorks) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  const CopyTicket ticket = copied(address, from, to);
  fill(address, 2);
  fence();
  EXPECT_EQ(source().swap(ticket, OnChange::kLeave), SwapResult::kChanged);
  EXPECT_EQ(source().swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  source().unfence();
  source().end_copy(ticket);
  expect_filled(address, 2);
}

TEST_P(MemorySourceContract, P42_AWriteInEachWindowOfAMoveIsKept) {
  std::byte* address = reserve();
  enum Window { kBeforeTheWatch, kBeforeTheCopy, kAfterTheCopy, kInTheMiddle, kWindows };
  for (const bool watch : {true, false}) {
    for (int window = 0; window < kWindows; ++window) {
      SCOPED_TRACE(std::to_string(window) + (watch ? " watched" : " compared"));
      const MemoryHandle from = mapped(Tier::kDevice, address);
      const MemoryHandle to = source().create(Tier::kHost, chunk());
      fill(address, 1);
      bool wrote = false;
      const auto write_in = [&](int now) {
        if (now != window) return;
        flip(address + chunk().count() / 2);
        wrote = true;
      };
      const CopyTicket ticket = source().begin_copy(address, from, to);
      write_in(kBeforeTheWatch);
      if (watch && source().watches(Tier::kHost)) {
        fence();
        source().watch(std::span(&ticket, 1));
        source().unfence();
      }
      write_in(kBeforeTheCopy);
      for (int turns = 0; source().advance_copy(ticket, 64_KiB) == CopyState::kRunning; ++turns) {
        ASSERT_LT(turns, 100'000);
        if (turns == 0) write_in(kInTheMiddle);
      }
      write_in(kAfterTheCopy);
      const SwapResult result = swap(ticket);
      if (window == kAfterTheCopy) {
        EXPECT_EQ(result, SwapResult::kChanged);
      }
      source().end_copy(ticket);
      if (wrote) flip(address + chunk().count() / 2);  // a lost write shows as a wrong byte now
      expect_filled(address, 1);
      const bool moved = result == SwapResult::kSwapped;
      source().unmap(address, moved ? to : from);
      source().release(from);
      source().release(to);
    }
  }
}

TEST_P(MemorySourceContract, ACopyGoesOnInTurns) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 3);
  const CopyTicket ticket = source().begin_copy(address, from, to);
  CopyState state = CopyState::kRunning;
  for (int turns = 0; state == CopyState::kRunning && turns < 100'000; ++turns) {
    state = source().advance_copy(ticket, 64_KiB);
    EXPECT_EQ(source().copy_state(ticket), state);
  }
  EXPECT_EQ(state, CopyState::kDone);
  EXPECT_EQ(source().advance_copy(ticket, 64_KiB), CopyState::kDone) << "done already";
  EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
  source().end_copy(ticket);
  source().release(from);
  expect_filled(address, 3);
  EXPECT_THROW((void)source().advance_copy(ticket, 64_KiB), std::logic_error);
}

TEST_P(MemorySourceContract, AnAbandonedCopyChangesNothing) {
  std::byte* address = reserve();
  MemoryHandle from = mapped(Tier::kDevice, address);
  MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  CopyTicket ticket = copied(address, from, to);
  source().end_copy(ticket);
  expect_filled(address, 1);
  ticket = source().begin_copy(address, from, to);  // not even waited for
  source().end_copy(ticket);
  expect_filled(address, 1);
  source().release(to);
  from = move(address, from, Tier::kHost);
  to = source().create(Tier::kDevice, chunk());
  ticket = copied(address, from, to);
  source().end_copy(ticket);
  source().release(to);
  expect_filled(address, 1);
  source().unmap(address, from);
  source().release(from);
}

TEST_P(MemorySourceContract, BeginCopyIsChecked) {
  std::byte* address = reserve();
  std::byte* other = address + chunk().count();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle busy = mapped(Tier::kHost, other);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  const MemoryHandle wide = source().create(Tier::kHost, chunk() * 2);
  const auto begin = [&](std::byte* at, MemoryHandle a, MemoryHandle b) {
    (void)source().begin_copy(at, a, b);
  };
  EXPECT_THROW(begin(other, from, to), std::logic_error) << "not mapped there";
  EXPECT_THROW(begin(address, from, busy), std::logic_error) << "target is mapped";
  EXPECT_THROW(begin(address, from, wide), std::logic_error) << "sizes differ";
  EXPECT_THROW(begin(address, to, wide), std::logic_error) << "source is not mapped";
  const CopyTicket ticket = source().begin_copy(address, from, to);
  EXPECT_THROW(begin(address, from, to), std::logic_error) << "runs already";
  EXPECT_THROW(source().unmap(address, from), std::logic_error) << "is being copied";
  EXPECT_THROW(source().release(to), std::logic_error) << "is being copied to";
  EXPECT_THROW(source().map(address + 2 * chunk().count(), to), std::logic_error);
  source().end_copy(ticket);
  source().unmap(address, from);
}

TEST_P(MemorySourceContract, TicketsTellTheirState) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  const CopyTicket ticket = source().begin_copy(address, from, to);
  EXPECT_TRUE(ticket);
  EXPECT_NE(source().copy_state(ticket), CopyState::kFailed);
  EXPECT_EQ(source().wait_copy(ticket), CopyState::kDone);
  EXPECT_EQ(source().copy_state(ticket), CopyState::kDone);
  EXPECT_EQ(source().wait_copy(ticket), CopyState::kDone) << "waiting twice";
  EXPECT_EQ(source().copy_error(ticket), "");
  source().end_copy(ticket);
  EXPECT_EQ(source().copy_state(ticket), CopyState::kFailed);
  EXPECT_THROW((void)source().wait_copy(ticket), std::logic_error);
}

TEST_P(MemorySourceContract, ManyChunksMoveInOneFence) {
  constexpr std::uint64_t kMany = 4;
  std::byte* begin = reserve();
  std::vector<MemoryHandle> from;
  std::vector<MemoryHandle> to;
  std::vector<CopyTicket> tickets;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    std::byte* address = begin + i * chunk().count();
    from.push_back(mapped(Tier::kDevice, address));
    fill(address, i);
    to.push_back(source().create(Tier::kHost, chunk()));
    tickets.push_back(source().begin_copy(address, from[i], to[i]));
  }
  for (const CopyTicket& ticket : tickets) {
    ASSERT_EQ(source().wait_copy(ticket), CopyState::kDone);
  }
  flip(begin + chunk().count());  // in the second chunk only
  fence();
  std::vector<SwapResult> results;
  results.reserve(kMany);
  for (const CopyTicket& ticket : tickets) {
    results.push_back(source().swap(ticket, OnChange::kLeave));
  }
  source().unfence();
  using enum SwapResult;
  EXPECT_EQ(results, (std::vector<SwapResult>{kSwapped, kChanged, kSwapped, kSwapped}));
  flip(begin + chunk().count());
  for (std::uint64_t i = 0; i < kMany; ++i) {
    source().end_copy(tickets[i]);
    expect_filled(begin + i * chunk().count(), i);
    source().release(results[i] == kSwapped ? from[i] : to[i]);
  }
}

TEST_P(MemorySourceContract, ChunksAreSwappedTogetherAndEachHasItsAnswer) {
  constexpr std::uint64_t kMany = 5;
  std::byte* begin = reserve();
  std::vector<MemoryHandle> from;
  std::vector<MemoryHandle> to;
  std::vector<Exchange> exchanges;
  for (const std::uint64_t i : {3U, 0U, 1U, 4U, 2U}) {
    std::byte* address = begin + i * chunk().count();
    from.push_back(mapped(i == 1 ? Tier::kHost : Tier::kDevice, address));
    fill(address, i);
    if (i == 1) from.back() = move(address, from.back(), Tier::kDevice);
    to.push_back(source().create(i == 4 ? Tier::kDevice : Tier::kHost, chunk()));
    exchanges.push_back(Exchange{copied(address, from.back(), to.back())});
  }
  flip(begin);  // the chunk of the second ticket
  exchanges.push_back(Exchange{CopyTicket{exchanges.back().ticket.id + 100}});
  source().swap_all(exchanges, OnChange::kLeave);
  for (const Exchange& one : exchanges) EXPECT_EQ(one.result, SwapResult::kFailed) << "no fence";
  fence();
  source().swap_all(exchanges, OnChange::kLeave);
  source().unfence();
  using enum SwapResult;
  const SwapResult expected[] = {kSwapped, kChanged, kSwapped, kSwapped, kSwapped, kFailed};
  for (std::size_t i = 0; i < exchanges.size(); ++i) {
    EXPECT_EQ(exchanges[i].result, expected[i]) << i;
    if (i < kMany) source().end_copy(exchanges[i].ticket);
  }
  flip(begin);
  for (std::uint64_t i = 0; i < kMany; ++i) expect_filled(begin + i * chunk().count(), i);
}

TEST_P(MemorySourceContract, NothingButSwapInsideAFenceAndNoSwapOutside) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  const CopyTicket ticket = copied(address, from, to);
  EXPECT_EQ(source().swap(ticket, OnChange::kLeave), SwapResult::kFailed);
  fence();
  EXPECT_THROW((void)source().create(Tier::kDevice, chunk()), std::logic_error);
  source().unfence();
  EXPECT_EQ(swap(CopyTicket{ticket.id + 100}), SwapResult::kFailed);
  EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
  EXPECT_EQ(swap(ticket), SwapResult::kFailed) << "swapping twice";
  source().end_copy(ticket);
  expect_filled(address, 1);
}

TEST_P(MemorySourceContract, TouchedAndTrimConcernTheSlowerTierOnly) {
  std::byte* address = reserve();
  MemoryHandle handle = mapped(Tier::kDevice, address);
  fill(address, 1);
  EXPECT_EQ(source().touched(address, handle).resident, Bytes{});
  EXPECT_EQ(source().touched(address, handle).written, Bytes{});
  handle = move(address, handle, Tier::kHost);
  expect_filled(address, 1);
  const Bytes before = source().touched(address, handle).resident;
  EXPECT_LE(before, chunk());
  EXPECT_LE(source().trim(address, handle), before);
  expect_filled(address, 1);
}

TEST_P(MemorySourceContract, AForkedChildSeesASnapshotAndOnlyForgets) {
  std::byte* address = reserve();
  std::byte* second = address + chunk().count();
  MemoryHandle device = mapped(Tier::kDevice, address);
  MemoryHandle host = mapped(Tier::kDevice, second);
  fill(address, 1);
  fill(second, 2);
  host = move(second, host, Tier::kHost);
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  source().prepare_fork();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    source().after_fork_child();
    ::close(go[1]);
    char byte = 0;
    (void)!::read(go[0], &byte, 1);  // until the parent has changed everything
    int wrong = 0;
    if (GetParam().children_see_a_snapshot) {
      wrong |= first_wrong(address, 1) != chunk().count() ? 1 : 0;
      wrong |= first_wrong(second, 2) != chunk().count() ? 2 : 0;
      fill(address, 50);
      fill(second, 60);
    }
    bool threw = false;
    try {
      (void)source().create(Tier::kDevice, chunk());
    } catch (const std::logic_error&) {
      threw = true;
    }
    wrong |= threw ? 0 : 4;
    ::_exit(wrong);
  }
  source().after_fork_parent();
  ::close(go[0]);
  device = move(address, device, Tier::kHost);
  host = move(second, host, Tier::kDevice);
  fill(address, 11);
  fill(second, 12);
  device = move(address, device, Tier::kHost);
  ::close(go[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: device chunk, 2: host chunk, 4: not inert";
  expect_filled(address, 11);
  expect_filled(second, 12);
  EXPECT_EQ(source().held_by_children(), Bytes{});
}

}  // namespace commensal
