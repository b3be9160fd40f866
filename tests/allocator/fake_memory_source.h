// SPDX-License-Identifier: Apache-2.0
// A strict memory source on plain memory: fails on demand, notices misuse, lets tests cut in.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"
#include "allocator/memory_source.h"

namespace commensal {

/// What can be told to fail. `kCopy` is the copying itself (the ticket becomes kFailed), `kFence` a
/// deadline that passes, `kSwap` an answer kFailed; the others throw.
enum class FakeCall : std::uint8_t {
  kReserve,
  kUnreserve,
  kCreate,
  kRelease,
  kMap,
  kUnmap,
  kBeginCopy,
  kCopy,
  kFence,
  kSwap,
};
inline constexpr std::size_t kFakeCalls = 10;

[[nodiscard]] std::string_view to_string(FakeCall call) noexcept;

/// Holds its callers to the contract of memory_source.h.
///
/// Misuse throws std::logic_error, except in members that are noexcept, and is written to
/// `violations()`. Addresses without a mapping are PROT_NONE: touching them is SIGSEGV. Nothing is
/// really faster or slower here, no thread is stopped, and a swap leaves the bytes where they are.
/// Thread safety: every member may be called from any thread; two serialised calls at the same
/// time are a violation.
class FakeMemorySource final : public MemorySource {
 public:
  struct Options {
    Bytes granularity = 64_KiB;  ///< a multiple of the page size, not 2 MiB on purpose
    Bytes device_capacity{UINT64_MAX};
    Bytes host_capacity{UINT64_MAX};  ///< zero: there is no slower tier, `host_reason` says why
    std::string host_reason;
    Bytes address_space{UINT64_MAX};  ///< a single reservation above this is refused
  };

  /// Called outside of the fake's own lock, on the thread that made the call.
  struct Hooks {
    /// After the bytes at `address` were copied, before the ticket is kDone.
    std::function<void(std::byte* address, Bytes size)> copied;
    /// In `advance_copy`, with the caller's move lock held: true: not done yet, ask again.
    std::function<bool()> more_turns;
    /// At the start of `fence`, while "threads still run": writes here come after the copy.
    std::function<void()> before_fence;
    /// In `unfence`, after everything goes on.
    std::function<void()> after_unfence;
    /// At the start of `create`, `map`, `unmap` and `unreserve`: what other threads do meanwhile.
    std::function<void(FakeCall)> before_call;
  };

  /// One entry of the log: what was called, for which handle or address, and whether it failed.
  struct Entry {
    FakeCall call;
    std::uint64_t id = 0;  ///< handle or ticket
    const std::byte* address = nullptr;
    Bytes size;
    bool failed = false;
  };

  FakeMemorySource();
  explicit FakeMemorySource(Options options);
  ~FakeMemorySource() override;

  // What the next calls do.
  /// Lets the next call fail.
  void fail_next(FakeCall call) { fail_at(call, 1); }
  /// Lets the `n`-th call from now fail (1 is the next one), once.
  void fail_at(FakeCall call, std::uint64_t n);
  /// Lets every call fail until `fail_never`.
  void fail_always(FakeCall call);
  void fail_never(FakeCall call);
  /// Sets the answer of `move_risk`; an empty reason makes moves safe again.
  void set_move_risk(std::string reason);
  /// Sets the answer of `touched` for the host handle mapped at `address`; `trim` drops what is
  /// resident and not written; unmapping and swapping forget it.
  void set_touched(const std::byte* address, Touched touched);
  void set_held_by_children(Bytes bytes);
  void set_capacity(Tier tier, Bytes capacity);
  Hooks& hooks() noexcept { return hooks_; }

  // What happened.
  [[nodiscard]] std::uint64_t calls(FakeCall call) const;
  [[nodiscard]] std::vector<Entry> log() const;
  void clear_log();
  /// All misuse, also what was thrown and caught on its way; tests expect it to stay empty.
  [[nodiscard]] std::vector<std::string> violations() const;
  [[nodiscard]] Bytes created(Tier tier) const;
  [[nodiscard]] Bytes mapped(Tier tier) const;
  [[nodiscard]] Bytes reserved() const;
  /// Returns where the byte at `address` is; kFree where nothing is mapped.
  [[nodiscard]] Tier tier_at(const void* address) const;
  [[nodiscard]] bool fenced() const;

  [[nodiscard]] Bytes granularity() const noexcept override { return options_.granularity; }
  [[nodiscard]] Bytes capacity(Tier tier) const noexcept override;
  [[nodiscard]] std::string host_tier_reason() const override;
  [[nodiscard]] AddressRange reserve(Bytes size) override;
  void unreserve(AddressRange range) override;
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override;
  void release(MemoryHandle handle) override;
  void map(std::byte* address, MemoryHandle handle) override;
  void unmap(std::byte* address, MemoryHandle handle) override;
  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override;
  [[nodiscard]] CopyState copy_state(CopyTicket ticket) const noexcept override;
  [[nodiscard]] std::string copy_error(CopyTicket ticket) const override;
  CopyState wait_copy(CopyTicket ticket) override;
  CopyState advance_copy(CopyTicket ticket, Bytes most) override;
  void end_copy(CopyTicket ticket) noexcept override;
  [[nodiscard]] MoveRisk move_risk() override;
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override;
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override;
  void unfence() noexcept override;
  [[nodiscard]] Touched touched(std::byte* address, MemoryHandle handle) const noexcept override;
  Bytes trim(std::byte* address, MemoryHandle handle) noexcept override;
  void prepare_fork() noexcept override;
  void after_fork_parent() noexcept override;
  void after_fork_child() noexcept override;
  [[nodiscard]] Bytes held_by_children() const noexcept override;

 private:
  struct Block {
    MemoryHandle handle;
    std::byte* address = nullptr;  // null: not mapped
    Touched touched;
    bool copying = false;  // source or target of a ticket that was not ended
  };
  struct Copy {
    std::byte* address = nullptr;
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    CopyState state = CopyState::kRunning;
    bool swapped = false;
    std::string error;
    std::vector<std::byte> bytes;
  };
  struct Plan {
    std::uint64_t calls = 0;
    std::uint64_t fail_at = 0;  // number of the call that fails; zero: none
    bool always = false;
  };
  class Serial;

  bool fails(FakeCall call, std::uint64_t id, const std::byte* address, Bytes size)
      COMMENSAL_REQUIRES(mutex_);
  void violation(std::string text) const COMMENSAL_REQUIRES(mutex_);
  [[noreturn]] void misuse(std::string_view call, const std::string& what) const
      COMMENSAL_REQUIRES(mutex_);
  void check_usable(std::string_view call) const COMMENSAL_REQUIRES(mutex_);
  Block& block(MemoryHandle handle, std::string_view call) COMMENSAL_REQUIRES(mutex_);
  Bytes sum(Tier tier, bool only_mapped) const COMMENSAL_REQUIRES(mutex_);
  bool reserved_whole(const std::byte* address, Bytes size) const COMMENSAL_REQUIRES(mutex_);
  const Block* block_over(const std::byte* address, Bytes size) const COMMENSAL_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  Hooks hooks_;
  std::atomic<int> inside_{0};
  std::array<Plan, kFakeCalls> plans_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<Entry> log_ COMMENSAL_GUARDED_BY(mutex_);
  mutable std::vector<std::string> violations_ COMMENSAL_GUARDED_BY(mutex_);
  std::map<std::byte*, Bytes> ranges_ COMMENSAL_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Block> blocks_ COMMENSAL_GUARDED_BY(mutex_);
  std::map<const std::byte*, std::uint64_t> mapped_ COMMENSAL_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Copy> copies_ COMMENSAL_GUARDED_BY(mutex_);
  std::array<Bytes, 2> capacity_ COMMENSAL_GUARDED_BY(mutex_);
  std::array<Bytes, 2> created_ COMMENSAL_GUARDED_BY(mutex_);
  std::string risk_ COMMENSAL_GUARDED_BY(mutex_);
  Bytes held_by_children_ COMMENSAL_GUARDED_BY(mutex_);
  std::uint64_t next_id_ COMMENSAL_GUARDED_BY(mutex_) = 1;
  bool fenced_ COMMENSAL_GUARDED_BY(mutex_) = false;
  bool in_child_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

}  // namespace commensal
