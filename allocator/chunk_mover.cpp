// SPDX-License-Identifier: Apache-2.0
// The sequence of a move and what is undone when a step of it fails.
#include "allocator/chunk_mover.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace commensal {
namespace {

constexpr int kFenceTries = 3;

}  // namespace

void ChunkMover::release(MemoryHandle handle) noexcept {
  if (!handle) return;
  try {
    source_.release(handle);
  } catch (const std::exception&) {
    orphans_.push_back(handle);  // `expect_releases` made room
  }
}

void ChunkMover::retry_orphans() noexcept {
  std::erase_if(orphans_, [this](const MemoryHandle& handle) {
    try {
      source_.release(handle);
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

// Begins to copy; makes the new memory unless it is there from the round before.
void ChunkMover::start(ChunkMove& move, Tier tier, MoveReport& report) noexcept {
  try {
    if (!move.to) move.to = source_.create(tier, move.from.size);
    move.ticket = source_.begin_copy(move.address, move.from, move.to);
  } catch (const std::exception& error) {
    give_up(move, error.what(), report);
  }
}

void ChunkMover::wait(ChunkMove& move, MoveReport& report) noexcept {
  try {
    if (source_.wait_copy(move.ticket) == CopyState::kDone) return;
    give_up(move, source_.copy_error(move.ticket), report);
  } catch (const std::exception& error) {
    give_up(move, error.what(), report);
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
  report.longest_pause = std::max(report.longest_pause, pause);
  report.total_pause += pause;
  return true;
}

MoveReport ChunkMover::run(std::vector<ChunkMove>& batch, Tier tier, TimePoint deadline) {
  MoveReport report;
  expect_releases(batch.size() * 2);
  exchanges_.reserve(batch.size());
  MoveRisk risk;
  try {
    risk = source_.move_risk();
  } catch (const std::exception& error) {
    risk = MoveRisk{false, error.what()};
  }
  if (!risk.safe) {
    report.refused = true;
    report.reason = risk.reason;
    return report;
  }
  for (ChunkMove& move : batch) start(move, tier, report);
  for (const OnChange on_change : {OnChange::kLeave, OnChange::kCopyInside}) {
    bool any = false;
    for (ChunkMove& move : batch) {
      if (move.ticket) wait(move, report);
      any = any || move.ticket;
    }
    if (!any) break;
    if (!swap_all(batch, on_change, deadline, report)) {
      const std::string reason = report.reason;
      for (ChunkMove& move : batch) {
        if (move.ticket) give_up(move, reason, report);
      }
      break;
    }
    for (ChunkMove& move : batch) {
      if (!move.ticket) continue;
      if (move.swapped == SwapResult::kSwapped) {
        source_.end_copy(std::exchange(move.ticket, CopyTicket{}));
        release(move.from);
        move.moved = true;
        ++report.moved;
      } else if (move.swapped == SwapResult::kChanged && on_change == OnChange::kLeave) {
        source_.end_copy(std::exchange(move.ticket, CopyTicket{}));
        start(move, tier, report);
      } else {
        give_up(move,
                move.swapped == SwapResult::kChanged ? "the chunk changed while it was copied"
                                                     : "the mapping could not be swapped",
                report);
      }
    }
  }
  return report;
}

}  // namespace commensal
