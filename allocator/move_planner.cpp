// SPDX-License-Identifier: Apache-2.0
// Which chunks move, and how large segments and chunks are.
#include "allocator/move_planner.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace commensal {
namespace {

constexpr Bytes kLargestSegment = 16_GiB;
constexpr Bytes kDedicatedFrom = 2_GiB;

template <typename Keep, typename Before>
std::vector<std::size_t> ranked(std::span<const ChunkView> chunks, Keep keep, Before before) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (keep(chunks[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return before(chunks[a], chunks[b]); });
  return order;
}

bool slower(const ChunkView& chunk) noexcept {
  return chunk.tier == Tier::kHost || chunk.tier == Tier::kParked;
}

}  // namespace

Bytes chunk_size_for(Bytes segment, Bytes granularity) noexcept {
  const Bytes wanted = segment > 1_GiB ? 32_MiB : segment > 256_MiB ? 8_MiB : 2_MiB;
  return round_up(wanted, granularity);
}

SegmentPlan plan_segment(Bytes next, Bytes request) noexcept {
  if (request >= kDedicatedFrom) return {request, true};
  while (next < request * 2 && next < kLargestSegment) next = next * 4;
  return {std::min(next, kLargestSegment), false};
}

std::vector<std::size_t> choose_spills(std::span<const ChunkView> chunks, Bytes need, Bytes batch,
                                       Phase now) {
  const auto gain = [](const ChunkView& c) { return slower(c) ? c.touched : c.size; };
  const auto turn = [](const ChunkView& c) {
    if (slower(c)) return 2;
    if (c.keep) return 4;
    if (c.hot) return 3;
    return c.tag == 0 ? 0 : 1;
  };
  std::map<std::uint32_t, std::uint64_t> tag_use;
  for (const ChunkView& c : chunks) {
    if (c.tag != 0) tag_use[c.tag] = std::max(tag_use[c.tag], c.last_use);
  }
  const auto order = ranked(
      chunks,
      [](const ChunkView& c) {
        if (c.skip) return false;
        return slower(c) ? !c.touched.is_zero() : c.tier == Tier::kDevice && !c.used.is_zero();
      },
      [&](const ChunkView& a, const ChunkView& b) {
        if (turn(a) != turn(b)) return turn(a) < turn(b);
        if (slower(a)) return a.touched > b.touched;
        if (turn(a) == 1 && a.tag != b.tag) {
          const std::uint64_t use_a = tag_use.at(a.tag);
          const std::uint64_t use_b = tag_use.at(b.tag);
          return use_a != use_b ? use_a < use_b : a.tag < b.tag;
        }
        const bool soon = needed_next(a.born, now);
        if (soon != needed_next(b.born, now)) return !soon;
        return a.last_use != b.last_use ? a.last_use < b.last_use : a.used > b.used;
      });
  std::vector<std::size_t> chosen;
  Bytes won;
  Bytes moved;
  for (const std::size_t i : order) {
    if (won >= need || (!chosen.empty() && moved + chunks[i].size > batch)) break;
    won += gain(chunks[i]);
    moved += chunks[i].size;
    chosen.push_back(i);
  }
  return chosen;
}

std::vector<std::size_t> choose_returns(std::span<const ChunkView> chunks,
                                        const ReturnBudget& budget) {
  const auto order = ranked(
      chunks,
      [&](const ChunkView& c) {
        return slower(c) && !c.used.is_zero() && !c.skip && (budget.lazy || !c.lazy) &&
               (c.fresh || !budget.fresh_only);
      },
      [&budget](const ChunkView& a, const ChunkView& b) {
        if (a.keep != b.keep) return a.keep;
        if (a.touched != b.touched) return a.touched > b.touched;
        const bool soon = needed_next(a.born, budget.now);
        if (soon != needed_next(b.born, budget.now)) return soon;
        return a.last_use > b.last_use;
      });
  std::vector<std::size_t> chosen;
  Bytes moved;
  Bytes room = budget.room;
  Bytes rest_room = budget.rest_room;
  for (const std::size_t i : order) {
    const ChunkView& chunk = chunks[i];
    if (moved >= budget.bytes || (!chosen.empty() && moved + chunk.size > budget.batch)) break;
    const Bytes cost = saturating_sub(chunk.size, chunk.touched);
    const bool rests = !chunk.hot && !chunk.keep && !chunk.fresh;
    if (cost > room || (rests && cost > rest_room)) continue;
    room -= cost;
    if (rests) rest_room -= cost;
    moved += chunk.size;
    chosen.push_back(i);
  }
  return chosen;
}

}  // namespace commensal
