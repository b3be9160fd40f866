// SPDX-License-Identifier: Apache-2.0
// The sequence of a move and what is undone when a step of it fails.
#include "allocator/chunk_mover.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace commensal {
namespace {

constexpr int kFenceTries = 3;
constexpr Bytes kAll{UINT64_MAX};
constexpr const char* kChanged = "the chunk changed while it was copied";

void note_pause(Duration pause, MoveReport& report) noexcept {
  report.longest_pause = std::max(report.longest_pause, pause);
  report.total_pause += pause;
}

}  // namespace

MemoryHandle ChunkMover::create(Tier tier, Bytes size) {
  if (tier != Tier::kDevice || claims_ == nullptr) return source_.create(tier, size);
  if (const char* const refused = claims_->claim(size); refused != nullptr) {
    throw OutOfMemory(refused);
  }
  try {
    return source_.create(tier, size);
  } catch (...) {
    claims_->give_back(size);
    throw;
  }
}

void ChunkMover::release_claimed(MemoryHandle handle) {
  source_.release(handle);
  if (handle.tier == Tier::kDevice && claims_ != nullptr) claims_->give_back(handle.size);
}

void ChunkMover::release(MemoryHandle handle) noexcept {
  if (!handle) return;
  try {
    release_claimed(handle);
  } catch (const std::exception&) {
    orphans_.push_back(handle);  // `expect_releases` made room
  }
}

void ChunkMover::retry_orphans() noexcept {
  std::erase_if(orphans_, [this](const MemoryHandle& handle) {
    try {
      release_claimed(handle);
      return true;
    } catch (const std::exception&) {
      return false;  // still counted; the next safe point tries again
    }
  });
}

Bytes ChunkMover::orphaned(Tier tier) const noexcept {
  Bytes total;
  for (const MemoryHandle& handle : orphans_) {
    if (handle.tier == tier) total += handle.size;
  }
  return total;
}

void ChunkMover::give_up(ChunkMove& move, std::string reason, MoveReport& report) noexcept {
  if (move.ticket) source_.end_copy(std::exchange(move.ticket, CopyTicket{}));
  release(std::exchange(move.to, MemoryHandle{}));
  report.reason = reason;
  move.reason = std::move(reason);
}

// Makes the new memory, and is done if the old one only needs another name.
void ChunkMover::rename(ChunkMove& move, Tier tier, MoveReport& report) noexcept {
  try {
    move.to = create(tier, move.from.size);
    if (!source_.rename(move.address, move.from, move.to)) return;
  } catch (const std::exception&) {
    return;  // what is wrong shows again when it moves
  }
  release(move.from);
  move.moved = true;
  ++report.moved;
}

// Begins to copy; makes the new memory unless it is there from the round before.
void ChunkMover::start(ChunkMove& move, Tier tier, MoveReport& report) noexcept {
  try {
    if (!move.to) move.to = create(tier, move.from.size);
    move.ticket = source_.begin_copy(move.address, move.from, move.to);
  } catch (const std::exception& error) {
    give_up(move, error.what(), report);
  }
}

// Has the source note writes to what is about to be copied. If it cannot, the swap compares.
void ChunkMover::watch(const std::vector<ChunkMove>& batch, Tier tier, MoveReport& report) {
  if (!source_.watches(tier)) return;
  tickets_.clear();
  for (const ChunkMove& move : batch) {
    if (move.ticket) tickets_.push_back(move.ticket);  // `begin` made room
  }
  if (tickets_.empty()) return;
  const FenceResult fence = source_.fence(fence_deadline_);
  if (!fence.stopped) return;
  const TimePoint begin = clock_.now();
  source_.watch(tickets_);
  source_.unfence();
  note_pause(fence.took + elapsed(begin, clock_.now()), report);
}

CopyState ChunkMover::copy(ChunkMove& move, Bytes most, MoveReport& report) noexcept {
  try {
    const CopyState state = source_.advance_copy(move.ticket, most);
    if (state == CopyState::kFailed) give_up(move, source_.copy_error(move.ticket), report);
    return state;
  } catch (const std::exception& error) {
    give_up(move, error.what(), report);
    return CopyState::kFailed;
  }
}

// Swaps every chunk with a ticket inside one fence. False: the writers could not be stopped.
bool ChunkMover::swap_all(std::vector<ChunkMove>& batch, OnChange on_change, TimePoint deadline,
                          MoveReport& report) {
  exchanges_.clear();
  for (const ChunkMove& move : batch) {
    if (move.ticket) exchanges_.push_back(Exchange{move.ticket});  // `run` made room
  }
  Duration stopping{};
  for (int attempt = 1;; ++attempt) {
    const FenceResult fence = source_.fence(fence_deadline_);
    stopping = fence.took;
    if (fence.stopped) break;
    if (attempt == kFenceTries || clock_.now() >= deadline) {
      report.refused = true;
      report.reason = fence.reason;
      return false;
    }
  }
  // Until `unfence` another thread may be stopped while it holds any lock of the process: no
  // allocation, no lock, no exception here.
  const TimePoint begin = clock_.now();
  source_.swap_all(exchanges_, on_change);
  source_.unfence();
  const Duration pause = stopping + elapsed(begin, clock_.now());
  std::size_t swapped = 0;
  auto exchange = exchanges_.begin();
  for (ChunkMove& move : batch) {
    if (!move.ticket) continue;
    move.swapped = (exchange++)->result;
    if (move.swapped == SwapResult::kSwapped) ++swapped;
  }
  if (swapped > 0) ++report.fences;
  note_pause(pause, report);
  return true;
}

MoveReport ChunkMover::begin(std::vector<ChunkMove>& batch, Tier tier) {
  MoveReport report;
  expect_releases(batch.size() * 2);
  exchanges_.reserve(batch.size());
  tickets_.reserve(batch.size());
  for (ChunkMove& move : batch) {
    if (move.fresh) rename(move, tier, report);
  }
  if (report.moved == batch.size()) return report;
  MoveRisk risk;
  try {
    risk = source_.move_risk();
  } catch (const std::exception& error) {
    risk = MoveRisk{false, error.what()};
  }
  if (!risk.safe) {
    report.refused = report.moved == 0;
    report.reason = risk.reason;
    abandon(batch, risk.reason, report);
    return report;
  }
  for (ChunkMove& move : batch) {
    if (!move.moved) start(move, tier, report);
  }
  watch(batch, tier, report);
  return report;
}

bool ChunkMover::advance(std::vector<ChunkMove>& batch, Bytes most, MoveReport& report) {
  for (ChunkMove& move : batch) {
    if (!move.ticket || source_.copy_state(move.ticket) == CopyState::kDone) continue;
    if (copy(move, most, report) == CopyState::kRunning || most != kAll) return false;
  }
  return true;
}

// What became of a chunk in the fence. One that changed keeps its new memory for another try.
void ChunkMover::settle(ChunkMove& move, MoveReport& report) noexcept {
  switch (move.swapped) {
    case SwapResult::kSwapped:
      source_.end_copy(std::exchange(move.ticket, CopyTicket{}));
      release(move.from);
      move.moved = true;
      ++report.moved;
      return;
    case SwapResult::kChanged: source_.end_copy(std::exchange(move.ticket, CopyTicket{})); return;
    case SwapResult::kFailed: give_up(move, "the mapping could not be swapped", report); return;
  }
}

void ChunkMover::abandon(std::vector<ChunkMove>& batch, const std::string& why,
                         MoveReport& report) noexcept {
  for (ChunkMove& move : batch) {
    if (!move.moved && (move.ticket || move.to)) give_up(move, why, report);
  }
}

void ChunkMover::finish(std::vector<ChunkMove>& batch, TimePoint deadline, MoveReport& report) {
  const auto copied = [](const ChunkMove& move) { return static_cast<bool>(move.ticket); };
  if (std::none_of(batch.begin(), batch.end(), copied)) return;
  if (!swap_all(batch, OnChange::kLeave, deadline, report)) {
    abandon(batch, report.reason, report);
    return;
  }
  for (ChunkMove& move : batch) {
    if (move.ticket) settle(move, report);
  }
  abandon(batch, kChanged, report);
}

MoveReport ChunkMover::run(std::vector<ChunkMove>& batch, Tier tier, TimePoint deadline) {
  MoveReport report = begin(batch, tier);
  if (report.refused) return report;
  for (const OnChange on_change : {OnChange::kLeave, OnChange::kCopyInside}) {
    (void)advance(batch, kAll, report);
    const auto copied = [](const ChunkMove& move) { return static_cast<bool>(move.ticket); };
    if (std::none_of(batch.begin(), batch.end(), copied)) break;
    if (!swap_all(batch, on_change, deadline, report)) {
      abandon(batch, report.reason, report);
      break;
    }
    for (ChunkMove& move : batch) {
      if (!move.ticket) continue;
      settle(move, report);
      if (move.to && !move.moved && on_change == OnChange::kLeave) start(move, tier, report);
    }
  }
  abandon(batch, kChanged, report);
  return report;
}

}  // namespace commensal
