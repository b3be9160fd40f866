// SPDX-License-Identifier: Apache-2.0
// A memory source that passes every call on; tests derive from it and change one.
#pragma once

#include <span>
#include <string>

#include "allocator/memory_source.h"

namespace commensal::testing {

/// Thread safety: as the source's.
class PassingSource : public MemorySource {
 public:
  explicit PassingSource(MemorySource& source) : source_(source) {}

  [[nodiscard]] Bytes granularity() const noexcept override { return source_.granularity(); }
  [[nodiscard]] Bytes capacity(Tier tier) const noexcept override { return source_.capacity(tier); }
  [[nodiscard]] std::string host_tier_reason() const override { return source_.host_tier_reason(); }
  [[nodiscard]] AddressRange reserve(Bytes size) override { return source_.reserve(size); }
  void unreserve(AddressRange range) override { source_.unreserve(range); }
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    return source_.create(tier, size);
  }
  void release(MemoryHandle handle) override { source_.release(handle); }
  void map(std::byte* address, MemoryHandle handle) override { source_.map(address, handle); }
  void unmap(std::byte* address, MemoryHandle handle) override { source_.unmap(address, handle); }
  [[nodiscard]] bool rename(std::byte* address, MemoryHandle from, MemoryHandle to) override {
    return source_.rename(address, from, to);
  }
  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override {
    return source_.begin_copy(address, from, to);
  }
  [[nodiscard]] CopyState copy_state(CopyTicket ticket) const noexcept override {
    return source_.copy_state(ticket);
  }
  [[nodiscard]] std::string copy_error(CopyTicket ticket) const override {
    return source_.copy_error(ticket);
  }
  CopyState wait_copy(CopyTicket ticket) override { return source_.wait_copy(ticket); }
  CopyState advance_copy(CopyTicket ticket, Bytes most) override {
    return source_.advance_copy(ticket, most);
  }
  void watch(std::span<const CopyTicket> tickets) noexcept override { source_.watch(tickets); }
  [[nodiscard]] bool watches(Tier to) const noexcept override { return source_.watches(to); }
  void end_copy(CopyTicket ticket) noexcept override { source_.end_copy(ticket); }
  [[nodiscard]] MoveRisk move_risk() override { return source_.move_risk(); }
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override {
    return source_.fence(deadline);
  }
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override {
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
  MemorySource& source_;
};

}  // namespace commensal::testing
