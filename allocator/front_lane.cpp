// SPDX-License-Identifier: Apache-2.0
// Counts of lanes, and which thread uses which.
#include "allocator/front_lane.h"

#include <algorithm>
#include <bit>

namespace commensal {
namespace {

constexpr std::int64_t kUntold = std::int64_t{64} << 10U;
constexpr std::uint64_t kCoarse = 64;  // operations

void raise(std::atomic<std::uint64_t>& most, std::uint64_t value) noexcept {
  std::uint64_t seen = most.load(std::memory_order_relaxed);
  while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

FrontLane::FrontLane(LaneTotals& totals, std::uint8_t number, const std::vector<std::size_t>& units)
    : totals_(totals), number_(number) {
  for (const std::size_t unit : units) {
    shifts_.push_back(static_cast<unsigned>(std::countr_zero(unit)));
    recent_.emplace_back(kLargest / unit + 1);
  }
}

void FrontLane::change_live(std::int64_t bytes) noexcept {
  live_ = live_ + static_cast<std::uint64_t>(bytes);
  untold_ += bytes;
  const std::int64_t all = totals_.live.load(std::memory_order_relaxed) + untold_;
  if (all > 0) raise(totals_.peak_live, static_cast<std::uint64_t>(all));
  if (untold_ < kUntold && untold_ > -kUntold) return;
  totals_.live.fetch_add(untold_, std::memory_order_relaxed);
  untold_ = 0;
}

// Numbers as in Lamport's clocks: each operation is later than all that this lane has heard of.
void FrontLane::touch(const Block& block) noexcept {
  if (!in_use_) {
    in_use_ = true;
    totals_.lanes_in_use.fetch_add(1, std::memory_order_relaxed);
  }
  const bool alone = totals_.lanes_in_use.load(std::memory_order_relaxed) == 1;
  const std::uint64_t heard = alone ? 0 : totals_.now.load(std::memory_order_relaxed);
  const std::uint64_t now = std::max<std::uint64_t>(now_, heard) + 1;
  now_ = now;
  if (!alone && now >= heard + kCoarse) raise(totals_.now, now);
  const std::uint64_t slack = alone ? 1 : kCoarse;
  Segment& segment = *block.segment;
  const std::size_t last = segment.chunk_of(block.end() - 1);
  for (std::size_t c = block.first_chunk; c <= last; ++c) {
    Relaxed<std::uint64_t>& last_use = segment.chunks[c].last_use;
    if (last_use + slack <= now) last_use = now;
  }
}

FrontLanes::FrontLanes(const std::vector<std::size_t>& units) {
  std::uint8_t number = 0;
  for (auto& lane : lanes_) lane = std::make_unique<FrontLane>(totals_, number++, units);
}

FrontLane& FrontLanes::mine() noexcept {
  static std::atomic<std::size_t> threads{0};
  static thread_local const std::size_t number = threads.fetch_add(1) % kLanes;
  return *lanes_[number];
}

template <typename Count>
std::uint64_t FrontLanes::sum(Count count) const noexcept {
  std::uint64_t all = 0;
  for (const auto& lane : lanes_) all += count(*lane);
  return all;
}

Bytes FrontLanes::live() const noexcept {
  return Bytes{sum([](const FrontLane& lane) { return lane.live(); })};
}
std::uint64_t FrontLanes::births() const noexcept {
  return sum([](const FrontLane& lane) { return lane.births(); });
}
std::uint64_t FrontLanes::deaths() const noexcept {
  return sum([](const FrontLane& lane) { return lane.deaths(); });
}
Bytes FrontLanes::recent_bytes() const noexcept {
  return Bytes{sum([](const FrontLane& lane) { return lane.recent_bytes(); })};
}

std::uint64_t FrontLanes::now() const noexcept {
  std::uint64_t latest = 0;
  for (const auto& lane : lanes_) latest = std::max(latest, lane->now());
  return latest;
}

void FrontLanes::lock_all() noexcept {
  for (const auto& lane : lanes_) lane->mutex.lock();
}

void FrontLanes::unlock_all() noexcept {
  for (const auto& lane : lanes_) lane->mutex.unlock();
}

void FrontLanes::forget_hints() noexcept {
  for (const auto& lane : lanes_) lane->hint() = nullptr;
}

}  // namespace commensal
