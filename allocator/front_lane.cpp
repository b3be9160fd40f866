// SPDX-License-Identifier: Apache-2.0
// Counts of lanes, and which thread uses which.
#include "allocator/front_lane.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace commensal {

FrontLane::FrontLane(LaneTotals& totals, std::uint8_t number, const std::vector<std::size_t>& units)
    : number_(number), totals_(totals) {
  assert(units.size() <= kMostPools);
  std::size_t all = 0;
  for (std::size_t pool = 0; pool < units.size(); ++pool) {
    const std::size_t slots = std::min(kLargest / units[pool], kMostUnits) + 1;
    recent_[pool].slots = static_cast<std::uint32_t>(slots);
    recent_[pool].shift = static_cast<std::uint32_t>(std::countr_zero(units[pool]));
    all += slots;
  }
  heads_.resize(all);
  BlockId* next = heads_.data();
  for (Recent& recent : recent_) {
    recent.heads = next;
    next += recent.slots;
  }
}

void FrontLane::raise(std::atomic<std::uint64_t>& most, std::uint64_t value) noexcept {
  std::uint64_t seen = most.load(std::memory_order_relaxed);
  while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Several lanes are in use, or this one is from now on: learns what the others told, tells them.
std::uint64_t FrontLane::hear(std::uint64_t now) noexcept {
  if (!in_use_) {
    in_use_ = true;
    totals_.lanes_in_use.fetch_add(1, std::memory_order_relaxed);
  }
  const std::uint64_t heard = totals_.now.load(std::memory_order_relaxed);
  if (now <= heard) return heard + 1;
  if (now >= heard + kCoarse) raise(totals_.now, now);
  return now;
}

FrontLanes::FrontLanes(const std::vector<std::size_t>& units) {
  std::uint8_t number = 0;
  for (auto& lane : lanes_) lane = std::make_unique<FrontLane>(totals_, number++, units);
}

void FrontLanes::choose_mine() noexcept {
  static std::atomic<std::size_t> threads{0};
  mine_ = threads.fetch_add(1, std::memory_order_relaxed) % kLanes;
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

void FrontLanes::forget_segments() noexcept {
  for (const auto& lane : lanes_) lane->forget_segments();
}

}  // namespace commensal
