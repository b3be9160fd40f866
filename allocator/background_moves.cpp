// SPDX-License-Identifier: Apache-2.0
// Moves memory between safe points: copied in short turns of the move lock, given up for any call
// that wants to move memory itself.
#include <algorithm>
#include <utility>

#include "allocator/elastic_core.h"

namespace commensal {
namespace {

// Copied in one turn of the move lock.
constexpr Bytes kTurn = 2_MiB;

}  // namespace

AheadPlan ElasticCore::plan_now(const Snapshot& shot) {
  const Ledger now = ledger();
  return plan_ahead(AheadView{.resident = now.resident(),
                              .limit = std::min(limit(), source_.capacity(Tier::kDevice)),
                              .soon_free = shot.soon_free,
                              .idle = shot.idle_device,
                              .at_peak = shot.at_peak});
}

void ElasticCore::set_moving(bool moving) noexcept {
  const MutexLock lock(blocks_);
  for (const ChunkRef& chunk : ahead_.chunks) chunk->moving = moving;
}

// Begins to copy chunks. False: nothing can move now.
bool ElasticCore::open_ahead(std::vector<ChunkRef> chunks, Tier tier) {
  std::vector<ChunkMove> batch(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    batch[i].address = chunks[i].address();
    batch[i].from = chunks[i]->handle;
    batch[i].fresh = chunks[i]->fresh && tier == Tier::kDevice;
  }
  MoveReport report = mover_.begin(batch, tier);
  const bool open = !report.refused;
  ahead_ = Ahead{.open = open,
                 .chunks = std::move(chunks),
                 .batch = std::move(batch),
                 .report = std::move(report)};
  if (ahead_.open) set_moving(true);
  return ahead_.open;
}

void ElasticCore::close_ahead(Tier tier) {
  mover_.finish(ahead_.batch, clock_.now() + options_.move_deadline, ahead_.report);
  ahead_.open = false;
  set_moving(false);
  note_report(ahead_.report);
  note_moved(ahead_.chunks, ahead_.batch, tier, tier, false);
  const MutexLock lock(blocks_);
  for (std::size_t i = 0; i < ahead_.batch.size(); ++i) {
    Chunk& chunk = *ahead_.chunks[i];
    if (ahead_.batch[i].moved) {
      chunk.changed = 0;
    } else if (chunk.changed < UINT8_MAX) {
      ++chunk.changed;
    }
    chunk.ahead_from = ahead_.batch[i].moved ? 0 : safe_points_ + ahead_rest(chunk.changed);
  }
}

void ElasticCore::abandon_ahead() noexcept {
  if (!ahead_.open) return;
  mover_.abandon(ahead_.batch, "another call moves memory", ahead_.report);
  ahead_.open = false;
  set_moving(false);
}

// Chooses what moves out early. Blocks that die within the step make room by themselves; the
// optimizer's state, which each step touches before its safe point, is left to that; what was
// touched on the slower tier lately goes only if the next safe point moved it anyway.
std::vector<std::size_t> ElasticCore::choose_spills_ahead(Snapshot& shot, const AheadPlan& plan,
                                                          Bytes most) {
  const bool trial_only = plan.out.is_zero();
  Bytes later;
  if (trial_only && plan.rest_out.is_zero()) return {};
  {
    const MutexLock lock(blocks_);
    if (trial_only && !pace_.due(safe_points_)) return {};
    for (std::size_t i = 0; i < shot.refs.size(); ++i) {
      ChunkView& view = shot.views[i];
      const bool rests = !view.hot && !view.keep;
      const bool waits = shot.refs[i]->ahead_from > safe_points_;
      if (short_lived(shot.refs[i].segment->pool) || waits) view.skip = true;
      if (trial_only && !rests) view.skip = true;
      if (view.born == Phase::kOptimizer && view.tier == Tier::kDevice && !view.used.is_zero()) {
        later += view.size;
        view.skip = true;
      }
    }
  }
  if (trial_only) most = std::min(most, TrialPace::most(limit()));
  const Bytes need = trial_only ? plan.rest_out : saturating_sub(plan.out, later);
  std::vector<std::size_t> chosen =
      choose_spills(shot.views, need, most, phase_.load(std::memory_order_relaxed));
  std::erase_if(chosen, [&](std::size_t i) { return shot.views[i].tier != Tier::kDevice; });
  return chosen;
}

AheadReport ElasticCore::work_ahead(Bytes most) {
  AheadReport report;
  if (!work_pending() || in_child() || !moves_live()) return report;
  const MoveLock moves(*this);
  if (foreground_ > 0) {
    report.more = true;
    return report;
  }
  measure_touched();
  Snapshot shot = snapshot(round_);  // what failed since the last call of the foreground waits
  AheadPlan plan = plan_now(shot);
  std::vector<std::size_t> chosen = choose_spills_ahead(shot, plan, most);
  const bool out = !chosen.empty();
  if (!out && plan.out.is_zero()) {
    bool lazy = false;
    {
      const MutexLock lock(blocks_);
      lazy = wake_lazy_;
    }
    note_held_back({}, "");
    chosen = choose_returns(shot.views, ReturnBudget{.room = plan.in,
                                                     .bytes = plan.in,
                                                     .batch = most,
                                                     .lazy = lazy,
                                                     .now = phase_.load(std::memory_order_relaxed),
                                                     .rest_room = plan.rest_room});
    if (chosen.empty() && lazy) {
      const MutexLock lock(blocks_);
      wake_lazy_ = false;  // all that has room is back
    }
  }
  if (chosen.empty()) {
    pending_.fetch_and(~std::uint32_t{kPeakOver}, std::memory_order_relaxed);
    return report;
  }
  if (!out && !may_return(chosen, shot, plan.in)) return report;
  const Tier tier = out ? Tier::kHost : Tier::kDevice;
  Bytes room = out ? saturating_sub(host_most(), ledger().on_host()) : plan.in;
  std::vector<ChunkRef> chunks;
  Bytes added;
  for (const std::size_t i : chosen) {
    const Bytes cost =
        out ? shot.views[i].size : saturating_sub(shot.views[i].size, shot.views[i].touched);
    if (cost > room) break;
    room -= cost;
    added += cost;
    chunks.push_back(shot.refs[i]);
  }
  if (chunks.empty()) {
    report.reason = host_full_reason(ledger().on_host());
    return report;
  }
  if (!out) {
    const Bytes unused = saturating_sub(limit(), ledger().resident());
    if (added > unused) (void)release_free(added - unused, Unused::kDevice, 1);
    if (added > saturating_sub(limit(), ledger().resident())) return report;
    lease_limit();
  }
  const TimePoint began = clock_.now();
  if (!open_ahead(std::move(chunks), tier)) {
    report.reason = ahead_.report.reason;
    return report;
  }
  while (!mover_.advance(ahead_.batch, kTurn, ahead_.report)) {
    yield_moves();
    if (!ahead_.open) {
      report.more = true;
      return report;
    }
    mover_.expect_releases(2 * ahead_.batch.size());  // others may have used what was made ready
  }
  const Ledger before = ledger();
  close_ahead(tier);
  if (!out) note_returned(before.device, began);
  const Ledger after = ledger();
  report.moved_out = saturating_sub(before.device, after.device);
  report.moved_in = saturating_sub(after.device, before.device);
  report.reason = ahead_.report.reason;
  report.more = !ahead_.report.refused;
  const MutexLock lock(blocks_);
  totals_.moved_ahead += report.moved_out;
  return report;
}

}  // namespace commensal
