// SPDX-License-Identifier: Apache-2.0
// A fake source whose moves really carry bytes, so that a lost write shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/allocator/fake_memory_source.h"

namespace commensal {

/// Passes everything on to a FakeMemorySource, but a swap installs the bytes that the copy read.
/// `compare(false)` switches the comparison inside the fence off, as a wrong source would.
/// Copies and fences hold `world()`; threads that write to blocks meanwhile hold it shared, which
/// is what stopping all threads does on a real machine.
class MovingSource final : public MemorySource {
 public:
  explicit MovingSource(FakeMemorySource::Options options = {}) : fake_(std::move(options)) {}

  [[nodiscard]] FakeMemorySource& fake() noexcept { return fake_; }
  [[nodiscard]] std::shared_mutex& world() noexcept { return world_; }
  void compare(bool on) noexcept { compare_ = on; }

  [[nodiscard]] Bytes granularity() const noexcept override { return fake_.granularity(); }
  [[nodiscard]] Bytes capacity(Tier tier) const noexcept override { return fake_.capacity(tier); }
  [[nodiscard]] std::string host_tier_reason() const override { return fake_.host_tier_reason(); }
  [[nodiscard]] AddressRange reserve(Bytes size) override { return fake_.reserve(size); }
  void unreserve(AddressRange range) override { fake_.unreserve(range); }
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    return fake_.create(tier, size);
  }
  void release(MemoryHandle handle) override { fake_.release(handle); }
  void map(std::byte* address, MemoryHandle handle) override { fake_.map(address, handle); }
  void unmap(std::byte* address, MemoryHandle handle) override { fake_.unmap(address, handle); }

  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override {
    const CopyTicket ticket = fake_.begin_copy(address, from, to);
    copies_[ticket.id] = Copy{address, std::vector<std::byte>(from.size.count())};
    return ticket;
  }
  [[nodiscard]] CopyState copy_state(CopyTicket ticket) const noexcept override {
    return fake_.copy_state(ticket);
  }
  [[nodiscard]] std::string copy_error(CopyTicket ticket) const override {
    return fake_.copy_error(ticket);
  }
  CopyState wait_copy(CopyTicket ticket) override {
    Copy& copy = copies_.at(ticket.id);
    const std::unique_lock<std::shared_mutex> stop(world_);
    std::memcpy(copy.bytes.data(), copy.address, copy.bytes.size());
    return fake_.wait_copy(ticket);
  }
  CopyState advance_copy(CopyTicket ticket, Bytes most) override {
    const auto& more = fake_.hooks().more_turns;
    if (most != Bytes{UINT64_MAX} && more && more()) return fake_.copy_state(ticket);
    return wait_copy(ticket);
  }
  void end_copy(CopyTicket ticket) noexcept override {
    copies_.erase(ticket.id);
    fake_.end_copy(ticket);
  }

  [[nodiscard]] MoveRisk move_risk() override { return fake_.move_risk(); }
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override {
    world_.lock();
    const FenceResult result = fake_.fence(deadline);
    if (!result.stopped) world_.unlock();
    return result;
  }
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override {
    const Copy& copy = copies_.at(ticket.id);
    const bool changed =
        compare_ && std::memcmp(copy.bytes.data(), copy.address, copy.bytes.size()) != 0;
    if (changed && on_change == OnChange::kLeave) return SwapResult::kChanged;
    const SwapResult result = fake_.swap(ticket, OnChange::kCopyInside);
    if (result == SwapResult::kSwapped && !changed) {
      std::memcpy(copy.address, copy.bytes.data(), copy.bytes.size());
    }
    return result;
  }
  void unfence() noexcept override {
    fake_.unfence();
    world_.unlock();
  }

  [[nodiscard]] Touched touched(std::byte* address, MemoryHandle handle) const noexcept override {
    return fake_.touched(address, handle);
  }
  Bytes trim(std::byte* address, MemoryHandle handle) noexcept override {
    return fake_.trim(address, handle);
  }
  void prepare_fork() noexcept override { fake_.prepare_fork(); }
  void after_fork_parent() noexcept override { fake_.after_fork_parent(); }
  void after_fork_child() noexcept override { fake_.after_fork_child(); }
  [[nodiscard]] Bytes held_by_children() const noexcept override {
    return fake_.held_by_children();
  }

 private:
  struct Copy {
    std::byte* address = nullptr;
    std::vector<std::byte> bytes;
  };
  FakeMemorySource fake_;
  std::shared_mutex world_;
  std::map<std::uint64_t, Copy> copies_;
  bool compare_ = true;
};

}  // namespace commensal
