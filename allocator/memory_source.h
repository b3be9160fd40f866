// SPDX-License-Identifier: Apache-2.0
// Where an elastic allocator's memory comes from: the one border behind which hardware differs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"

namespace commensal {

/// Where a chunk's bytes are (docs/stats.md).
enum class Tier : std::uint8_t {
  kDevice,  ///< full speed; counts against the limit
  kHost,    ///< same address, usable, slower (spill file, or host memory beside a GPU)
  kParked,  ///< saved, holds no memory of the device; only `swap` back makes it fast again
  kFree,    ///< holds nothing
  kDropped  ///< blocks lie there, but their content was given up and nothing is mapped
};

[[nodiscard]] constexpr std::string_view to_string(Tier tier) noexcept {
  switch (tier) {
    case Tier::kDevice: return "device";
    case Tier::kHost: return "host";
    case Tier::kParked: return "parked";
    case Tier::kFree: return "free";
    case Tier::kDropped: return "dropped";
  }
  return "?";
}

/// A stretch of reserved addresses; `begin` is aligned to the source's granularity.
struct AddressRange {
  std::byte* begin = nullptr;
  Bytes size;

  [[nodiscard]] bool contains(const void* p) const noexcept {
    const auto* byte = static_cast<const std::byte*>(p);
    return byte >= begin && byte < begin + size.count();
  }
};

/// Names physical memory that `create` made. Zero id: none. A value type; copying copies the name.
struct MemoryHandle {
  std::uint64_t id = 0;
  Bytes size;
  Tier tier = Tier::kFree;

  [[nodiscard]] explicit operator bool() const noexcept { return id != 0; }
};

/// Names a copy that `begin_copy` started. Zero: none.
struct CopyTicket {
  std::uint64_t id = 0;
  [[nodiscard]] explicit operator bool() const noexcept { return id != 0; }
};

enum class CopyState : std::uint8_t { kRunning, kDone, kFailed };

/// What a `swap` does with bytes that changed since they were copied.
enum class OnChange : std::uint8_t {
  kLeave,      ///< leave the chunk where it is and answer kChanged
  kCopyInside  ///< copy it again inside the fence (a longer pause, but it always ends)
};

enum class SwapResult : std::uint8_t { kSwapped, kChanged, kFailed };

/// One chunk of those that are swapped together.
struct Exchange {
  CopyTicket ticket;
  SwapResult result = SwapResult::kFailed;
};

/// Raised when a request exceeds what is there. Nothing has changed.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Raised when the system refused a call; the message names call, values and errno. Nothing has
/// changed, and the same call may be tried again.
class SourceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says whether every writer is stopped. `reason` is static text, set when `stopped` is false.
struct FenceResult {
  bool stopped = false;
  const char* reason = "";
  Duration took{};  ///< since the first writer was asked to stop; those found before ran meanwhile
};

/// Says what moving live chunks would risk now. `reason` is empty when nothing speaks against it.
struct MoveRisk {
  bool safe = true;
  std::string reason;
};

/// Provides address ranges and physical memory, maps one into the other, and moves live chunks
/// between tiers under stable addresses.
///
/// Contract (tests/allocator/memory_source_contract.h holds every implementation to it):
/// - Sizes and addresses are multiples of `granularity()`; ask, never assume 2 MiB.
/// - A call that throws has changed nothing; the same call may be tried again.
/// - `create` of a device handle counts against `capacity(kDevice)` from that moment, of a host
///   handle against `capacity(kHost)`.
/// - A handle is mapped at one address at most; an address holds one handle at most. Mapping
///   twice, unmapping what is not mapped, releasing what is mapped, and using a released handle
///   throw std::logic_error.
/// - Fresh memory reads as zeros unless it was recycled; callers must not rely on either.
/// - Moving a live chunk: `begin_copy`, wait until the ticket is kDone, `fence`, `swap`,
///   `unfence`, then `release` the old handle. The chunk can be read and written all the time;
///   threads that write inside the fence wait. After kSwapped the new handle is mapped there and
///   the old one is unmapped. After kChanged or kFailed everything is as before `begin_copy`,
///   except that the new handle still exists and must be released or used again. A source that
///   only gives the same memory another name has nothing to compare and never answers kChanged.
/// - Where no slower tier can be mapped, a source may offer kParked in its stead: memory that holds
///   a chunk's bytes beside its address. Only `swap` puts such a handle in a device handle's place
///   and takes it away again (`map` is misuse; `unmap` lets go of the bytes); meanwhile nothing is
///   mapped at the address, and whatever touches it fails.
/// - Between `fence` and `unfence` only `swap` and `watch` may be called. The caller then takes no
/// lock,
///   allocates nothing, throws nothing and calls nothing that does: a stopped thread may hold any
///   lock of the process, malloc's included.
///
/// Thread safety: calls are serialised by the caller (the allocator's move lock), except
/// `granularity`, `capacity`, `copy_state` and `touched`, which any thread may call.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  /// Returns the smallest unit in which memory is created and mapped.
  [[nodiscard]] virtual Bytes granularity() const noexcept = 0;
  /// Returns the most bytes that handles of `tier` may hold together.
  /// kHost is zero where there is no slower tier; `host_tier_reason` then says why. kParked is zero
  /// where there is one, and where nothing can stand for it.
  [[nodiscard]] virtual Bytes capacity(Tier tier) const noexcept = 0;
  /// Says why there is no slower tier; empty when there is one.
  [[nodiscard]] virtual std::string host_tier_reason() const = 0;

  /// Reserves addresses, aligned to `granularity()`, without memory behind them.
  /// @throws OutOfMemory if the address space or the process's limits do not allow it.
  [[nodiscard]] virtual AddressRange reserve(Bytes size) = 0;
  /// Gives a reservation back; nothing may be mapped in it.
  virtual void unreserve(AddressRange range) = 0;

  /// Makes physical memory on `tier`: kDevice, kHost, or kParked where its capacity is not zero.
  /// @throws OutOfMemory above capacity, SourceError when the system refuses (disk full).
  [[nodiscard]] virtual MemoryHandle create(Tier tier, Bytes size) = 0;
  /// Gives physical memory back to the system; the handle must not be mapped. Within the lease a
  /// source may keep it for the next `create` of the same size.
  virtual void release(MemoryHandle handle) = 0;
  /// Sets the most device bytes that handles and memory kept after `release` may come to together;
  /// what is kept above that is given back at once. Zero from the start: nothing is kept.
  virtual void set_lease(Bytes /*lease*/) noexcept {}
  /// Returns the bytes that are kept above the lease because the system refused to take them; the
  /// next `set_lease` tries again.
  [[nodiscard]] virtual Bytes over_lease() const noexcept { return {}; }

  /// Maps a handle into reserved addresses, readable and writable.
  virtual void map(std::byte* address, MemoryHandle handle) = 0;
  /// Maps handles one behind the other from `address` on. Where each change of a mapping is dear, a
  /// source does it in fewer calls than `map` for each.
  struct MappedRun {
    std::size_t mapped = 0;  ///< so many of the handles, from the first
    std::string error;       ///< why not all
  };
  [[nodiscard]] virtual MappedRun map_run(std::byte* address,
                                          std::span<const MemoryHandle> handles);
  /// Takes the mapping away. The content is lost.
  virtual void unmap(std::byte* address, MemoryHandle handle) = 0;
  /// Takes the mappings of handles away that lie one behind the other from `address` on, in fewer
  /// calls than `unmap` for each where a source can.
  struct UnmappedRun {
    std::size_t unmapped = 0;  ///< so many of the handles, from the first
    std::string error;         ///< why not all
  };
  [[nodiscard]] virtual UnmappedRun unmap_run(std::byte* address,
                                              std::span<const MemoryHandle> handles);

  /// Maps `to` (same size, not mapped) at `address` in place of `from` where that takes only
  /// another name: no byte moves and no mapping changes, so nobody has to stop and nobody can
  /// notice. False: it takes more, and nothing is done.
  [[nodiscard]] virtual bool rename(std::byte* /*address*/, MemoryHandle /*from*/,
                                    MemoryHandle /*to*/) {
    return false;
  }

  /// Starts to copy what is mapped at `address` into `to` (same size, not mapped).
  [[nodiscard]] virtual CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                              MemoryHandle to) = 0;
  /// Tells how far a copy is; kFailed keeps its reason in `copy_error`.
  [[nodiscard]] virtual CopyState copy_state(CopyTicket ticket) const noexcept = 0;
  [[nodiscard]] virtual std::string copy_error(CopyTicket ticket) const = 0;
  /// Waits until the copy is done or failed. Sources without own threads copy here.
  virtual CopyState wait_copy(CopyTicket ticket) = 0;
  /// Goes on with a copy for about `most` bytes, so that others get a turn in between; kRunning:
  /// call again. Sources whose copies run by themselves may wait for the end instead.
  virtual CopyState advance_copy(CopyTicket ticket, Bytes /*most*/) { return wait_copy(ticket); }
  /// Has the writes to what these tickets copy noted from now on, by means that cost less than
  /// comparing all bytes in `swap`. Only inside a fence, between `begin_copy` and the first wait
  /// for it. Where the source has none, or they fail, `swap` compares.
  virtual void watch(std::span<const CopyTicket> /*tickets*/) noexcept {}
  /// Returns whether `watch` does something for copies to `tier`: else the fence for it is idle.
  [[nodiscard]] virtual bool watches(Tier /*to*/) const noexcept { return false; }
  /// Forgets a ticket (after `swap`, or instead of it).
  virtual void end_copy(CopyTicket ticket) noexcept = 0;

  /// Told of memory that somebody outside relies on (a library that registered it): the caller
  /// neither moves nor unmaps what lies there until `may_move` of the same range.
  virtual void keep_in_place(AddressRange /*range*/) {}
  virtual void may_move(AddressRange /*range*/) {}

  /// Says whether live chunks may move now (a thread that cannot be stopped, kernel I/O without a
  /// thread); asked before each batch.
  [[nodiscard]] virtual MoveRisk move_risk() = 0;
  /// Stops everything that may write to mapped chunks: threads on a host, streams on a GPU.
  /// When the deadline passes, lets everything go again and says why.
  [[nodiscard]] virtual FenceResult fence(Duration deadline) noexcept = 0;
  /// Puts the ticket's target where its source was, if the bytes are still those that were
  /// copied. Only inside a fence.
  [[nodiscard]] virtual SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept = 0;
  /// Swaps several chunks, in any order; each has its own answer. Only inside a fence.
  virtual void swap_all(std::span<Exchange> exchanges, OnChange on_change) noexcept {
    for (Exchange& exchange : exchanges) exchange.result = swap(exchange.ticket, on_change);
  }
  /// Lets everything go on.
  virtual void unfence() noexcept = 0;

  /// Returns the bytes of device memory that a mapped handle of the slower tier holds because its
  /// pages were touched again (zero on a GPU). `written`: only those whose content changed.
  struct Touched {
    Bytes resident;
    Bytes written;
  };
  [[nodiscard]] virtual Touched touched(std::byte* address, MemoryHandle handle) const noexcept = 0;
  /// Drops touched pages whose content did not change; written ones stay. Returns bytes dropped.
  virtual Bytes trim(std::byte* address, MemoryHandle handle) noexcept = 0;

  /// Around fork(): prepare is called with no copy running; in the child the source only forgets.
  virtual void prepare_fork() noexcept = 0;
  virtual void after_fork_parent() noexcept = 0;
  virtual void after_fork_child() noexcept = 0;
  /// Returns the bytes that forked children may still hold although this process gave them back.
  [[nodiscard]] virtual Bytes held_by_children() const noexcept = 0;
};

inline MemorySource::MappedRun MemorySource::map_run(std::byte* address,
                                                     std::span<const MemoryHandle> handles) {
  MappedRun run;
  for (const MemoryHandle& handle : handles) {
    try {
      map(address, handle);
    } catch (const std::exception& error) {
      run.error = error.what();
      break;
    }
    ++run.mapped;
    address += handle.size.count();
  }
  return run;
}

inline MemorySource::UnmappedRun MemorySource::unmap_run(std::byte* address,
                                                         std::span<const MemoryHandle> handles) {
  UnmappedRun run;
  for (const MemoryHandle& handle : handles) {
    try {
      unmap(address, handle);
    } catch (const std::exception& error) {
      run.error = error.what();
      break;
    }
    ++run.unmapped;
    address += handle.size.count();
  }
  return run;
}

}  // namespace commensal
