// SPDX-License-Identifier: Apache-2.0
// A memory source that is made when memory is asked for first.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "allocator/memory_source.h"

namespace commensal {

/// Stands for a source that cannot be made yet: to start CUDA in a process that may fork later
/// would break it there. Until then there is no memory, and nothing that could move.
///
/// Thread safety: as MemorySource says.
class DeferredSource final : public MemorySource {
 public:
  using Make = std::function<std::unique_ptr<MemorySource>()>;

  /// @param make  called once, by the first `reserve` or `create`; what it throws comes out of
  ///              these, and the next one tries again.
  /// @param granularity  a multiple of that of the source to come; checked when it is made.
  /// @param risk  asked before the source is; null: nothing speaks against a move.
  DeferredSource(Make make, Bytes granularity, std::function<MoveRisk()> risk = nullptr)
      : make_(std::move(make)), granularity_(granularity), risk_(std::move(risk)) {}

  /// Makes it now. @throws what `make` throws.
  void start() { (void)get(); }

  /// Returns the source, or null: it has not been made.
  [[nodiscard]] MemorySource* made() const noexcept {
    return source_.load(std::memory_order_acquire);
  }

  [[nodiscard]] Bytes granularity() const noexcept override { return granularity_; }
  /// Not known before it is made: then as much as anybody could ask for.
  [[nodiscard]] Bytes capacity(Tier tier) const noexcept override {
    const MemorySource* const source = made();
    return source == nullptr ? Bytes{UINT64_MAX} : source->capacity(tier);
  }
  [[nodiscard]] std::string host_tier_reason() const override {
    const MemorySource* const source = made();
    return source == nullptr ? std::string() : source->host_tier_reason();
  }
  [[nodiscard]] AddressRange reserve(Bytes size) override { return get().reserve(size); }
  void unreserve(AddressRange range) override { get().unreserve(range); }
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    return get().create(tier, size);
  }
  void release(MemoryHandle handle) override { get().release(handle); }
  void set_lease(Bytes lease) noexcept override {
    lease_ = lease;
    if (MemorySource* const source = made()) source->set_lease(lease);
  }
  [[nodiscard]] Bytes over_lease() const noexcept override {
    const MemorySource* const source = made();
    return source == nullptr ? Bytes{} : source->over_lease();
  }
  void map(std::byte* address, MemoryHandle handle) override { get().map(address, handle); }
  [[nodiscard]] MappedRun map_run(std::byte* address,
                                  std::span<const MemoryHandle> handles) override {
    return get().map_run(address, handles);
  }
  void unmap(std::byte* address, MemoryHandle handle) override { get().unmap(address, handle); }
  [[nodiscard]] UnmappedRun unmap_run(std::byte* address,
                                      std::span<const MemoryHandle> handles) override {
    return get().unmap_run(address, handles);
  }
  [[nodiscard]] bool rename(std::byte* address, MemoryHandle from, MemoryHandle to) override {
    return get().rename(address, from, to);
  }
  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override {
    return get().begin_copy(address, from, to);
  }
  [[nodiscard]] CopyState copy_state(CopyTicket ticket) const noexcept override {
    const MemorySource* const source = made();
    return source == nullptr ? CopyState::kFailed : source->copy_state(ticket);
  }
  [[nodiscard]] std::string copy_error(CopyTicket ticket) const override {
    const MemorySource* const source = made();
    return source == nullptr ? "there is no memory yet" : source->copy_error(ticket);
  }
  CopyState wait_copy(CopyTicket ticket) override { return get().wait_copy(ticket); }
  CopyState advance_copy(CopyTicket ticket, Bytes most) override {
    return get().advance_copy(ticket, most);
  }
  void watch(std::span<const CopyTicket> tickets) noexcept override {
    if (MemorySource* const source = made()) source->watch(tickets);
  }
  [[nodiscard]] bool watches(Tier to) const noexcept override {
    const MemorySource* const source = made();
    return source != nullptr && source->watches(to);
  }
  void end_copy(CopyTicket ticket) noexcept override {
    if (MemorySource* const source = made()) source->end_copy(ticket);
  }
  void keep_in_place(AddressRange range) override {
    if (MemorySource* const source = made()) source->keep_in_place(range);
  }
  void may_move(AddressRange range) override {
    if (MemorySource* const source = made()) source->may_move(range);
  }
  [[nodiscard]] MoveRisk move_risk() override {
    MemorySource* const source = made();
    MoveRisk risk = risk_ == nullptr ? MoveRisk{} : risk_();
    return source == nullptr || !risk.safe ? risk : source->move_risk();
  }
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override {
    MemorySource* const source = made();
    if (source != nullptr) return source->fence(deadline);
    return {.stopped = true, .reason = "", .took = {}};  // nobody uses what is not there
  }
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override {
    MemorySource* const source = made();
    return source == nullptr ? SwapResult::kFailed : source->swap(ticket, on_change);
  }
  void swap_all(std::span<Exchange> exchanges, OnChange on_change) noexcept override {
    if (MemorySource* const source = made()) source->swap_all(exchanges, on_change);
  }
  void unfence() noexcept override {
    if (MemorySource* const source = made()) source->unfence();
  }
  [[nodiscard]] Touched touched(std::byte* address, MemoryHandle handle) const noexcept override {
    const MemorySource* const source = made();
    return source == nullptr ? Touched{} : source->touched(address, handle);
  }
  Bytes trim(std::byte* address, MemoryHandle handle) noexcept override {
    MemorySource* const source = made();
    return source == nullptr ? Bytes{} : source->trim(address, handle);
  }
  void prepare_fork() noexcept override {
    if (MemorySource* const source = made()) source->prepare_fork();
  }
  void after_fork_parent() noexcept override {
    if (MemorySource* const source = made()) source->after_fork_parent();
  }
  void after_fork_child() noexcept override {
    if (MemorySource* const source = made()) source->after_fork_child();
  }
  [[nodiscard]] Bytes held_by_children() const noexcept override {
    const MemorySource* const source = made();
    return source == nullptr ? Bytes{} : source->held_by_children();
  }

 private:
  [[nodiscard]] MemorySource& get() {
    if (MemorySource* const source = made()) return *source;
    std::unique_ptr<MemorySource> fresh = make_();
    if (granularity_.count() % fresh->granularity().count() != 0) {
      throw SourceError("memory comes in units of " + to_string(fresh->granularity()) +
                        ", not of " + to_string(granularity_));
    }
    fresh->set_lease(lease_);
    owned_ = std::move(fresh);
    source_.store(owned_.get(), std::memory_order_release);
    return *owned_;
  }

  const Make make_;
  const Bytes granularity_;
  const std::function<MoveRisk()> risk_;
  Bytes lease_;
  std::unique_ptr<MemorySource> owned_;
  std::atomic<MemorySource*> source_{nullptr};
};

}  // namespace commensal
