// SPDX-License-Identifier: Apache-2.0
// Any memory source, made to fail at a chosen call: fake, host, or one on a card.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/memory_source.h"

namespace commensal::testing {

/// Every call of a MemorySource that may fail. `kWaitCopy` is the copying itself (an I/O error),
/// `kFence` a deadline that passes, `kMoveRiskUnsafe` an answer that speaks against moving.
enum class SourceCall : std::uint8_t {
  kReserve,
  kUnreserve,
  kCreate,
  kRelease,
  kMap,
  kUnmap,
  kBeginCopy,
  kWaitCopy,
  kMoveRisk,
  kMoveRiskUnsafe,
  kFence,
  kSwap,
};
inline constexpr std::size_t kSourceCalls = 12;

[[nodiscard]] constexpr std::string_view to_string(SourceCall call) noexcept {
  constexpr std::array<std::string_view, kSourceCalls> names{
      "reserve",    "unreserve", "create",    "release",          "map",   "unmap",
      "begin_copy", "wait_copy", "move_risk", "move_risk_unsafe", "fence", "swap"};
  return names[static_cast<std::size_t>(call)];
}

/// Passes everything on, counts the calls, and lets one of them fail before it reaches the source.
/// Thread safety: as the source's.
class FaultySource final : public MemorySource {
 public:
  explicit FaultySource(MemorySource& source) : source_(source) {}

  /// Lets the `n`-th call from now fail (1 is the next one), once; zero: none.
  void fail_at(SourceCall call, std::uint64_t n) {
    failing_ = call;
    countdown_ = n;
  }
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  [[nodiscard]] std::uint64_t calls(SourceCall call) const noexcept {
    return counts_[static_cast<std::size_t>(call)];
  }
  /// Bytes of handles that were created and not released.
  [[nodiscard]] Bytes created(Tier tier) const noexcept {
    return tier == Tier::kDevice ? device_ : host_;
  }

  [[nodiscard]] Bytes granularity() const noexcept override { return source_.granularity(); }
  [[nodiscard]] Bytes capacity(Tier tier) const noexcept override { return source_.capacity(tier); }
  [[nodiscard]] std::string host_tier_reason() const override { return source_.host_tier_reason(); }
  [[nodiscard]] AddressRange reserve(Bytes size) override {
    if (due(SourceCall::kReserve)) throw OutOfMemory("injected: no addresses");
    return source_.reserve(size);
  }
  void unreserve(AddressRange range) override {
    refuse(SourceCall::kUnreserve);
    source_.unreserve(range);
  }
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    refuse(SourceCall::kCreate);
    const MemoryHandle handle = source_.create(tier, size);
    held(tier) += size;
    return handle;
  }
  void release(MemoryHandle handle) override {
    refuse(SourceCall::kRelease);
    source_.release(handle);
    held(handle.tier) -= handle.size;
  }
  void map(std::byte* address, MemoryHandle handle) override {
    refuse(SourceCall::kMap);
    source_.map(address, handle);
  }
  void unmap(std::byte* address, MemoryHandle handle) override {
    refuse(SourceCall::kUnmap);
    source_.unmap(address, handle);
  }
  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override {
    refuse(SourceCall::kBeginCopy);
    return source_.begin_copy(address, from, to);
  }
  [[nodiscard]] CopyState copy_state(CopyTicket ticket) const noexcept override {
    return ticket.id == broken_.id ? CopyState::kFailed : source_.copy_state(ticket);
  }
  [[nodiscard]] std::string copy_error(CopyTicket ticket) const override {
    return ticket.id == broken_.id ? "injected: input/output error" : source_.copy_error(ticket);
  }
  CopyState wait_copy(CopyTicket ticket) override {
    if (due(SourceCall::kWaitCopy)) {
      broken_ = ticket;
      return CopyState::kFailed;
    }
    return source_.wait_copy(ticket);
  }
  void watch(std::span<const CopyTicket> tickets) noexcept override { source_.watch(tickets); }
  [[nodiscard]] bool watches(Tier to) const noexcept override { return source_.watches(to); }
  void end_copy(CopyTicket ticket) noexcept override {
    if (ticket.id == broken_.id) broken_ = {};
    source_.end_copy(ticket);
  }
  [[nodiscard]] MoveRisk move_risk() override {
    refuse(SourceCall::kMoveRisk);
    if (due(SourceCall::kMoveRiskUnsafe)) return MoveRisk{false, "injected: a thread is deaf"};
    return source_.move_risk();
  }
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override {
    if (due(SourceCall::kFence)) return FenceResult{false, "injected: the deadline passed", {}};
    return source_.fence(deadline);
  }
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override {
    if (due(SourceCall::kSwap)) return SwapResult::kFailed;
    return source_.swap(ticket, on_change);
  }
  void unfence() noexcept override { source_.unfence(); }
  [[nodiscard]] Touched touched(std::byte* address, MemoryHandle handle) const noexcept override {
    return source_.touched(address, handle);
  }
  Bytes trim(std::byte* address, MemoryHandle handle) noexcept override {
    return source_.trim(address, handle);
  }
  void prepare_fork() noexcept override { source_.prepare_fork(); }
  void after_fork_parent() noexcept override { source_.after_fork_parent(); }
  void after_fork_child() noexcept override { source_.after_fork_child(); }
  [[nodiscard]] Bytes held_by_children() const noexcept override {
    return source_.held_by_children();
  }

 private:
  // Allocates nothing and takes no lock: `swap` asks it while all threads are stopped.
  bool due(SourceCall call) noexcept {
    ++counts_[static_cast<std::size_t>(call)];
    if (call != failing_ || countdown_ == 0 || --countdown_ != 0) return false;
    failed_ = true;
    return true;
  }
  void refuse(SourceCall call) {
    if (due(call)) throw SourceError("injected: " + std::string(to_string(call)) + " was refused");
  }
  Bytes& held(Tier tier) noexcept { return tier == Tier::kDevice ? device_ : host_; }

  MemorySource& source_;
  std::array<std::uint64_t, kSourceCalls> counts_{};
  SourceCall failing_ = SourceCall::kReserve;
  std::uint64_t countdown_ = 0;
  bool failed_ = false;
  CopyTicket broken_;
  Bytes device_;
  Bytes host_;
};

}  // namespace commensal::testing
