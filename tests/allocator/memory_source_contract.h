// SPDX-License-Identifier: Apache-2.0
// The contract of memory_source.h as tests: every implementation instantiates this suite.
//
//   struct MySource { static std::unique_ptr<MemorySource> make(Bytes device, Bytes host); };
//   INSTANTIATE_TYPED_TEST_SUITE_P(Mine, MemorySourceContract, MySource);
//
// `make` gets capacities in bytes, multiples of the granularity; `host` zero: no slower tier.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/memory_source.h"

namespace commensal {

template <typename Implementation>
class MemorySourceContract : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kChunks = 8;

  MemorySourceContract() {
    const Bytes unit = Implementation::make(Bytes{UINT64_MAX}, Bytes{})->granularity();
    source_ = Implementation::make(unit * kChunks, unit * kChunks);
    chunk_ = unit;
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
    for (std::uint64_t i = 0; i < chunk_.count() / 8; ++i) {
      const std::uint64_t value = seed * 1'000'003 + i;
      std::memcpy(address + i * 8, &value, sizeof(value));
    }
  }
  // Returns the first byte that is not what `fill` wrote; the chunk's size if all are.
  std::uint64_t first_wrong(const std::byte* address, std::uint64_t seed) {
    for (std::uint64_t i = 0; i < chunk_.count() / 8; ++i) {
      std::uint64_t value = 0;
      std::memcpy(&value, address + i * 8, sizeof(value));
      if (value != seed * 1'000'003 + i) return i * 8;
    }
    return chunk_.count();
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

TYPED_TEST_SUITE_P(MemorySourceContract);

TYPED_TEST_P(MemorySourceContract, ReservationsAreAligned) {
  const AddressRange a = this->source().reserve(this->chunk() * 3);
  const AddressRange b = this->source().reserve(this->chunk());
  for (const AddressRange& range : {a, b}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range.begin) % this->chunk().count(), 0U);
  }
  EXPECT_EQ(a.size, this->chunk() * 3);
  EXPECT_FALSE(a.contains(b.begin));
  this->source().unreserve(a);
  this->source().unreserve(b);
}

TYPED_TEST_P(MemorySourceContract, SizesAreMultiplesOfTheGranularity) {
  EXPECT_THROW((void)this->source().reserve(Bytes{4096} + this->chunk()), std::logic_error);
  EXPECT_THROW((void)this->source().reserve(Bytes{}), std::logic_error);
  EXPECT_THROW((void)this->source().create(Tier::kDevice, Bytes{1}), std::logic_error);
  EXPECT_THROW((void)this->source().create(Tier::kHost, Bytes{}), std::logic_error);
  EXPECT_THROW((void)this->source().create(Tier::kParked, this->chunk()), std::logic_error);
}

TYPED_TEST_P(MemorySourceContract, AbsurdReservationIsOutOfMemoryAndChangesNothing) {
  const Bytes absurd{(std::uint64_t{1} << 60U) / this->chunk().count() * this->chunk().count()};
  EXPECT_THROW((void)this->source().reserve(absurd), OutOfMemory);
  std::byte* address = this->reserve();
  (void)this->mapped(Tier::kDevice, address);
  this->fill(address, 1);
  this->expect_filled(address, 1);
}

TYPED_TEST_P(MemorySourceContract, CreateCountsAgainstTheTiersCapacity) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    ASSERT_EQ(this->source().capacity(tier), this->chunk() * this->kChunks);
    std::vector<MemoryHandle> handles;
    for (std::uint64_t i = 0; i < this->kChunks; ++i) {
      handles.push_back(this->source().create(tier, this->chunk()));
      EXPECT_TRUE(handles.back());
      EXPECT_EQ(handles.back().tier, tier);
    }
    EXPECT_THROW((void)this->source().create(tier, this->chunk()), OutOfMemory);
    this->source().release(handles.back());
    handles.back() = this->source().create(tier, this->chunk());
    EXPECT_THROW((void)this->source().create(tier, this->chunk()), OutOfMemory);
    for (const MemoryHandle& handle : handles) this->source().release(handle);
    const MemoryHandle large = this->source().create(tier, this->chunk() * this->kChunks);
    this->source().release(large);
  }
}

TYPED_TEST_P(MemorySourceContract, WithoutASlowerTierItSaysWhy) {
  EXPECT_EQ(this->source().host_tier_reason(), "");
  const auto without = TypeParam::make(this->chunk() * 2, Bytes{});
  EXPECT_EQ(without->capacity(Tier::kHost), Bytes{});
  EXPECT_NE(without->host_tier_reason(), "");
  EXPECT_THROW((void)without->create(Tier::kHost, this->chunk()), OutOfMemory);
  const AddressRange range = without->reserve(this->chunk());
  const MemoryHandle handle = without->create(Tier::kDevice, this->chunk());
  without->map(range.begin, handle);
  this->fill(range.begin, 3);
  this->expect_filled(range.begin, 3);
}

TYPED_TEST_P(MemorySourceContract, MappedMemoryIsReadableAndWritable) {
  std::byte* address = this->reserve();
  std::byte* second = address + this->chunk().count();
  const MemoryHandle device = this->mapped(Tier::kDevice, address);
  const MemoryHandle host = this->mapped(Tier::kHost, second);
  this->fill(address, 1);
  this->fill(second, 2);
  this->expect_filled(address, 1);
  this->expect_filled(second, 2);
  this->source().unmap(address, device);
  this->expect_filled(second, 2);
  this->source().unmap(second, host);
  // Handles can be mapped anew, elsewhere, each of them.
  this->source().map(second, device);
  this->source().map(address, host);
  this->fill(address, 4);
  this->fill(second, 5);
  this->expect_filled(address, 4);
  this->expect_filled(second, 5);
}

TYPED_TEST_P(MemorySourceContract, MappingTwiceIsMisuse) {
  std::byte* address = this->reserve();
  const MemoryHandle handle = this->mapped(Tier::kDevice, address);
  this->fill(address, 1);
  const MemoryHandle other = this->source().create(Tier::kHost, this->chunk());
  const MemoryHandle wide = this->source().create(Tier::kDevice, this->chunk() * 2);
  EXPECT_THROW(this->source().map(address + this->chunk().count(), handle), std::logic_error);
  EXPECT_THROW(this->source().map(address, other), std::logic_error);
  this->source().unmap(address, handle);
  this->source().map(address + this->chunk().count(), handle);
  EXPECT_THROW(this->source().map(address, wide), std::logic_error) << "overlaps at its end";
  this->source().map(address + 2 * this->chunk().count(), wide);
  EXPECT_THROW(this->source().map(address + 3 * this->chunk().count(), other), std::logic_error)
      << "overlaps at its start";
}

TYPED_TEST_P(MemorySourceContract, MappingOutsideOfAReservationIsMisuse) {
  std::byte* address = this->reserve(2);
  const MemoryHandle handle = this->source().create(Tier::kDevice, this->chunk());
  const MemoryHandle wide = this->source().create(Tier::kDevice, this->chunk() * 3);
  EXPECT_THROW(this->source().map(address + 4096, handle), std::logic_error);
  EXPECT_THROW(this->source().map(nullptr, handle), std::logic_error);
  EXPECT_THROW(this->source().map(address, wide), std::logic_error);
  this->source().map(address, handle);
}

TYPED_TEST_P(MemorySourceContract, UnmappingWhatIsNotMappedIsMisuse) {
  std::byte* address = this->reserve();
  const MemoryHandle handle = this->source().create(Tier::kDevice, this->chunk());
  EXPECT_THROW(this->source().unmap(address, handle), std::logic_error);
  this->source().map(address, handle);
  this->fill(address, 1);
  EXPECT_THROW(this->source().unmap(address + this->chunk().count(), handle), std::logic_error);
  this->expect_filled(address, 1);
  this->source().unmap(address, handle);
  EXPECT_THROW(this->source().unmap(address, handle), std::logic_error);
}

TYPED_TEST_P(MemorySourceContract, ReleasingMappedOrReleasedHandlesIsMisuse) {
  std::byte* address = this->reserve();
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const MemoryHandle handle = this->mapped(tier, address);
    this->fill(address, 1);
    EXPECT_THROW(this->source().release(handle), std::logic_error);
    this->expect_filled(address, 1);
    this->source().unmap(address, handle);
    this->source().release(handle);
    EXPECT_THROW(this->source().release(handle), std::logic_error);
    EXPECT_THROW(this->source().map(address, handle), std::logic_error);
    EXPECT_THROW(this->source().release(MemoryHandle{}), std::logic_error);
  }
}

TYPED_TEST_P(MemorySourceContract, UnreservingIsCheckedToo) {
  const AddressRange range = this->source().reserve(this->chunk() * 2);
  const MemoryHandle handle = this->source().create(Tier::kDevice, this->chunk());
  this->source().map(range.begin + this->chunk().count(), handle);
  EXPECT_THROW(this->source().unreserve(range), std::logic_error) << "something is mapped";
  EXPECT_THROW(this->source().unreserve(AddressRange{range.begin, this->chunk()}),
               std::logic_error);
  this->source().unmap(range.begin + this->chunk().count(), handle);
  this->source().unreserve(range);
  EXPECT_THROW(this->source().unreserve(range), std::logic_error);
}

TYPED_TEST_P(MemorySourceContract, LiveChunksMoveBothWaysAndKeepTheirBytes) {
  std::byte* address = this->reserve();
  MemoryHandle handle = this->mapped(Tier::kDevice, address);
  this->fill(address, 1);
  for (std::uint64_t round = 1; round < 4; ++round) {
    handle = this->move(address, handle, Tier::kHost);
    this->expect_filled(address, round);
    this->fill(address, round + 100);  // written while on the slower tier
    this->expect_filled(address, round + 100);
    handle = this->move(address, handle, Tier::kHost);  // from slower to slower
    this->expect_filled(address, round + 100);
    handle = this->move(address, handle, Tier::kDevice);
    this->expect_filled(address, round + 100);
    this->fill(address, round + 1);
  }
  this->source().unmap(address, handle);
  this->source().release(handle);
}

TYPED_TEST_P(MemorySourceContract, SwappingExchangesTheHandles) {
  std::byte* address = this->reserve();
  const MemoryHandle from = this->mapped(Tier::kDevice, address);
  const MemoryHandle to = this->source().create(Tier::kHost, this->chunk());
  this->fill(address, 7);
  const CopyTicket ticket = this->copied(address, from, to);
  ASSERT_EQ(this->swap(ticket), SwapResult::kSwapped);
  EXPECT_THROW(this->source().unmap(address, from), std::logic_error);
  EXPECT_THROW(this->source().release(to), std::logic_error) << "is mapped now";
  this->source().release(from);  // before the ticket ends, too
  this->source().end_copy(ticket);
  this->expect_filled(address, 7);
  this->source().unmap(address, to);
  this->source().release(to);
}

TYPED_TEST_P(MemorySourceContract, ChangedBytesStayAndTheTargetCanBeUsedAgain) {
  std::byte* address = this->reserve();
  for (const Tier first : {Tier::kDevice, Tier::kHost}) {
    const Tier second = first == Tier::kDevice ? Tier::kHost : Tier::kDevice;
    const MemoryHandle from = this->mapped(first, address);
    const MemoryHandle to = this->source().create(second, this->chunk());
    this->fill(address, 1);
    CopyTicket ticket = this->copied(address, from, to);
    address[this->chunk().count() / 2] ^= std::byte{1};
    EXPECT_EQ(this->swap(ticket), SwapResult::kChanged);
    this->source().end_copy(ticket);
    address[this->chunk().count() / 2] ^= std::byte{1};
    this->expect_filled(address, 1);
    this->fill(address, 2);
    ticket = this->copied(address, from, to);
    EXPECT_EQ(this->swap(ticket), SwapResult::kSwapped);
    this->source().end_copy(ticket);
    this->expect_filled(address, 2);
    this->source().release(from);
    this->source().unmap(address, to);
    this->source().release(to);
  }
}

TYPED_TEST_P(MemorySourceContract, CopyInsideTakesWhatChanged) {
  std::byte* address = this->reserve();
  for (const Tier first : {Tier::kDevice, Tier::kHost}) {
    const Tier second = first == Tier::kDevice ? Tier::kHost : Tier::kDevice;
    const MemoryHandle from = this->mapped(first, address);
    const MemoryHandle to = this->source().create(second, this->chunk());
    this->fill(address, 1);
    CopyTicket ticket = this->copied(address, from, to);
    this->fill(address, 2);  // all of it
    EXPECT_EQ(this->swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
    this->source().end_copy(ticket);
    this->expect_filled(address, 2);
    ticket = this->copied(address, to, from);
    address[0] ^= std::byte{1};  // first and last byte
    address[this->chunk().count() - 1] ^= std::byte{1};
    EXPECT_EQ(this->swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
    this->source().end_copy(ticket);
    address[0] ^= std::byte{1};
    address[this->chunk().count() - 1] ^= std::byte{1};
    this->expect_filled(address, 2);
    this->source().release(to);
    this->source().unmap(address, from);
    this->source().release(from);
  }
}

TYPED_TEST_P(MemorySourceContract, KCopyInsideAfterKChangedOnTheSameTicketWorks) {
  std::byte* address = this->reserve();
  const MemoryHandle from = this->mapped(Tier::kDevice, address);
  const MemoryHandle to = this->source().create(Tier::kHost, this->chunk());
  this->fill(address, 1);
  const CopyTicket ticket = this->copied(address, from, to);
  this->fill(address, 2);
  this->fence();
  EXPECT_EQ(this->source().swap(ticket, OnChange::kLeave), SwapResult::kChanged);
  EXPECT_EQ(this->source().swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  this->source().unfence();
  this->source().end_copy(ticket);
  this->expect_filled(address, 2);
}

TYPED_TEST_P(MemorySourceContract, AnAbandonedCopyChangesNothing) {
  std::byte* address = this->reserve();
  MemoryHandle from = this->mapped(Tier::kDevice, address);
  MemoryHandle to = this->source().create(Tier::kHost, this->chunk());
  this->fill(address, 1);
  CopyTicket ticket = this->copied(address, from, to);
  this->source().end_copy(ticket);
  this->expect_filled(address, 1);
  ticket = this->source().begin_copy(address, from, to);  // not even waited for
  this->source().end_copy(ticket);
  this->expect_filled(address, 1);
  this->source().release(to);
  from = this->move(address, from, Tier::kHost);
  to = this->source().create(Tier::kDevice, this->chunk());
  ticket = this->copied(address, from, to);
  this->source().end_copy(ticket);
  this->source().release(to);
  this->expect_filled(address, 1);
  this->source().unmap(address, from);
  this->source().release(from);
}

TYPED_TEST_P(MemorySourceContract, BeginCopyIsChecked) {
  std::byte* address = this->reserve();
  std::byte* other = address + this->chunk().count();
  const MemoryHandle from = this->mapped(Tier::kDevice, address);
  const MemoryHandle busy = this->mapped(Tier::kHost, other);
  const MemoryHandle to = this->source().create(Tier::kHost, this->chunk());
  const MemoryHandle wide = this->source().create(Tier::kHost, this->chunk() * 2);
  const auto begin = [&](std::byte* at, MemoryHandle a, MemoryHandle b) {
    (void)this->source().begin_copy(at, a, b);
  };
  EXPECT_THROW(begin(other, from, to), std::logic_error) << "not mapped there";
  EXPECT_THROW(begin(address, from, busy), std::logic_error) << "target is mapped";
  EXPECT_THROW(begin(address, from, wide), std::logic_error) << "sizes differ";
  EXPECT_THROW(begin(address, to, wide), std::logic_error) << "source is not mapped";
  const CopyTicket ticket = this->source().begin_copy(address, from, to);
  EXPECT_THROW(begin(address, from, to), std::logic_error) << "runs already";
  EXPECT_THROW(this->source().unmap(address, from), std::logic_error) << "is being copied";
  EXPECT_THROW(this->source().release(to), std::logic_error) << "is being copied to";
  EXPECT_THROW(this->source().map(address + 2 * this->chunk().count(), to), std::logic_error);
  this->source().end_copy(ticket);
  this->source().unmap(address, from);
}

TYPED_TEST_P(MemorySourceContract, TicketsTellTheirState) {
  std::byte* address = this->reserve();
  const MemoryHandle from = this->mapped(Tier::kDevice, address);
  const MemoryHandle to = this->source().create(Tier::kHost, this->chunk());
  const CopyTicket ticket = this->source().begin_copy(address, from, to);
  EXPECT_TRUE(ticket);
  EXPECT_NE(this->source().copy_state(ticket), CopyState::kFailed);
  EXPECT_EQ(this->source().wait_copy(ticket), CopyState::kDone);
  EXPECT_EQ(this->source().copy_state(ticket), CopyState::kDone);
  EXPECT_EQ(this->source().wait_copy(ticket), CopyState::kDone) << "waiting twice";
  EXPECT_EQ(this->source().copy_error(ticket), "");
  this->source().end_copy(ticket);
  EXPECT_EQ(this->source().copy_state(ticket), CopyState::kFailed);
  EXPECT_THROW((void)this->source().wait_copy(ticket), std::logic_error);
}

TYPED_TEST_P(MemorySourceContract, ManyChunksMoveInOneFence) {
  constexpr std::uint64_t kMany = 4;
  std::byte* begin = this->reserve();
  std::vector<MemoryHandle> from;
  std::vector<MemoryHandle> to;
  std::vector<CopyTicket> tickets;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    std::byte* address = begin + i * this->chunk().count();
    from.push_back(this->mapped(Tier::kDevice, address));
    this->fill(address, i);
    to.push_back(this->source().create(Tier::kHost, this->chunk()));
    tickets.push_back(this->source().begin_copy(address, from[i], to[i]));
  }
  for (const CopyTicket& ticket : tickets) {
    ASSERT_EQ(this->source().wait_copy(ticket), CopyState::kDone);
  }
  begin[this->chunk().count()] ^= std::byte{1};  // in the second chunk only
  this->fence();
  std::vector<SwapResult> results;
  results.reserve(kMany);
  for (const CopyTicket& ticket : tickets) {
    results.push_back(this->source().swap(ticket, OnChange::kLeave));
  }
  this->source().unfence();
  using enum SwapResult;
  EXPECT_EQ(results, (std::vector<SwapResult>{kSwapped, kChanged, kSwapped, kSwapped}));
  begin[this->chunk().count()] ^= std::byte{1};
  for (std::uint64_t i = 0; i < kMany; ++i) {
    this->source().end_copy(tickets[i]);
    this->expect_filled(begin + i * this->chunk().count(), i);
    this->source().release(results[i] == kSwapped ? from[i] : to[i]);
  }
}

TYPED_TEST_P(MemorySourceContract, NothingButSwapInsideAFenceAndNoSwapOutside) {
  std::byte* address = this->reserve();
  const MemoryHandle from = this->mapped(Tier::kDevice, address);
  const MemoryHandle to = this->source().create(Tier::kHost, this->chunk());
  this->fill(address, 1);
  const CopyTicket ticket = this->copied(address, from, to);
  EXPECT_EQ(this->source().swap(ticket, OnChange::kLeave), SwapResult::kFailed);
  this->fence();
  EXPECT_THROW((void)this->source().create(Tier::kDevice, this->chunk()), std::logic_error);
  this->source().unfence();
  EXPECT_EQ(this->swap(CopyTicket{ticket.id + 100}), SwapResult::kFailed);
  EXPECT_EQ(this->swap(ticket), SwapResult::kSwapped);
  EXPECT_EQ(this->swap(ticket), SwapResult::kFailed) << "swapping twice";
  this->source().end_copy(ticket);
  this->expect_filled(address, 1);
}

TYPED_TEST_P(MemorySourceContract, TouchedAndTrimConcernTheSlowerTierOnly) {
  std::byte* address = this->reserve();
  MemoryHandle handle = this->mapped(Tier::kDevice, address);
  this->fill(address, 1);
  EXPECT_EQ(this->source().touched(address, handle).resident, Bytes{});
  EXPECT_EQ(this->source().touched(address, handle).written, Bytes{});
  handle = this->move(address, handle, Tier::kHost);
  this->expect_filled(address, 1);
  const Bytes before = this->source().touched(address, handle).resident;
  EXPECT_LE(before, this->chunk());
  EXPECT_LE(this->source().trim(address, handle), before);
  this->expect_filled(address, 1);
}

TYPED_TEST_P(MemorySourceContract, AForkedChildSeesASnapshotAndOnlyForgets) {
  std::byte* address = this->reserve();
  std::byte* second = address + this->chunk().count();
  MemoryHandle device = this->mapped(Tier::kDevice, address);
  MemoryHandle host = this->mapped(Tier::kDevice, second);
  this->fill(address, 1);
  this->fill(second, 2);
  host = this->move(second, host, Tier::kHost);
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  this->source().prepare_fork();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    this->source().after_fork_child();
    ::close(go[1]);
    char byte = 0;
    (void)!::read(go[0], &byte, 1);  // until the parent has changed everything
    int wrong = 0;
    wrong |= this->first_wrong(address, 1) != this->chunk().count() ? 1 : 0;
    wrong |= this->first_wrong(second, 2) != this->chunk().count() ? 2 : 0;
    this->fill(address, 50);
    this->fill(second, 60);
    bool threw = false;
    try {
      (void)this->source().create(Tier::kDevice, this->chunk());
    } catch (const std::logic_error&) {
      threw = true;
    }
    wrong |= threw ? 0 : 4;
    ::_exit(wrong);
  }
  this->source().after_fork_parent();
  ::close(go[0]);
  device = this->move(address, device, Tier::kHost);
  host = this->move(second, host, Tier::kDevice);
  this->fill(address, 11);
  this->fill(second, 12);
  device = this->move(address, device, Tier::kHost);
  ::close(go[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: device chunk, 2: host chunk, 4: not inert";
  this->expect_filled(address, 11);
  this->expect_filled(second, 12);
  EXPECT_EQ(this->source().held_by_children(), Bytes{});
}

REGISTER_TYPED_TEST_SUITE_P(
    MemorySourceContract, ReservationsAreAligned, SizesAreMultiplesOfTheGranularity,
    AbsurdReservationIsOutOfMemoryAndChangesNothing, CreateCountsAgainstTheTiersCapacity,
    WithoutASlowerTierItSaysWhy, MappedMemoryIsReadableAndWritable, MappingTwiceIsMisuse,
    MappingOutsideOfAReservationIsMisuse, UnmappingWhatIsNotMappedIsMisuse,
    ReleasingMappedOrReleasedHandlesIsMisuse, UnreservingIsCheckedToo,
    LiveChunksMoveBothWaysAndKeepTheirBytes, SwappingExchangesTheHandles,
    ChangedBytesStayAndTheTargetCanBeUsedAgain, CopyInsideTakesWhatChanged,
    KCopyInsideAfterKChangedOnTheSameTicketWorks, AnAbandonedCopyChangesNothing, BeginCopyIsChecked,
    TicketsTellTheirState, ManyChunksMoveInOneFence, NothingButSwapInsideAFenceAndNoSwapOutside,
    TouchedAndTrimConcernTheSlowerTierOnly, AForkedChildSeesASnapshotAndOnlyForgets);

}  // namespace commensal
