// SPDX-License-Identifier: Apache-2.0
// Memory that does not move: what somebody outside relies on, and what others hold of the device.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "allocator/elastic_core.h"

namespace commensal {
namespace {

bool same(AddressRange left, AddressRange right) noexcept {
  return left.begin == right.begin && left.size == right.size;
}

}  // namespace

std::vector<ElasticCore::ChunkRef> ElasticCore::chunks_at(AddressRange range) {
  std::vector<ChunkRef> chunks;
  const std::byte* const end = range.begin + range.size.count();
  const MutexLock lock(blocks_);
  each_chunk([&](const ChunkRef& chunk) {
    if (chunk.address() < end && range.begin < chunk.address() + chunk.size().count()) {
      chunks.push_back(chunk);
    }
  });
  return chunks;
}

// Brings chunks back, whatever the next step needs. @throws SourceError saying why not all.
void ElasticCore::bring_to_device(const std::vector<ChunkRef>& chunks) {
  const TimePoint deadline = clock_.now() + options_.move_deadline;
  for (;;) {
    std::vector<ChunkRef> batch;
    Bytes size;
    for (const ChunkRef& chunk : chunks) {
      if (chunk->tier == Tier::kDropped) throw SourceError("its content was given up");
      if (chunk->tier == Tier::kDevice || size >= kMostAtOnce) continue;
      size += chunk.size();
      batch.push_back(chunk);
    }
    if (batch.empty()) return;
    if (!options_.move_live) throw SourceError("live memory stays: memory policy antman");
    const Bytes most = std::min(limit(), source_.capacity(Tier::kDevice));
    const auto room = [&] { return saturating_sub(most, ledger().resident()); };
    if (size > room()) (void)release_free(size - room(), Unused::kEverywhere);
    if (size > room()) {
      throw SourceError("the limit of " + to_string(limit()) + " leaves no room for " +
                        to_string(size));
    }
    const MoveReport report = run_batch(batch, Tier::kDevice, Tier::kDevice, false, deadline);
    if (report.moved == 0) throw SourceError(report.reason);
  }
}

Bytes ElasticCore::keep_in_place(AddressRange range, std::string_view why, KeepWhere where) {
  if (in_child() || range.size.is_zero()) return {};
  const MoveLock moves(*this);
  const Foreground scope(*this);
  Kept kept{range, std::string(why), chunks_at(range), {}};
  if (kept.chunks.empty()) return {};
  try {
    std::vector<ChunkRef> wanted = kept.chunks;
    if (where != KeepWhere::kOnDevice) {  // what is mapped nowhere cannot be relied on
      std::erase_if(wanted, [](const ChunkRef& chunk) { return !chunk->away; });
    }
    bring_to_device(wanted);
  } catch (const SourceError& error) {
    throw SourceError("memory cannot be kept on the device: " + std::string(error.what()));
  }
  const ChunkRef& last = kept.chunks.back();
  std::byte* const begin = kept.chunks.front().address();
  kept.whole = {begin, Bytes{static_cast<std::uint64_t>(last.address() - begin)} + last.size()};
  Bytes size;
  {
    const MutexLock lock(blocks_);
    kept_.push_back(kept);
    for (const ChunkRef& chunk : kept.chunks) {
      ++chunk->kept;
      size += chunk.size();
    }
  }
  source_.keep_in_place(kept.whole);
  finish({});
  return size;
}

void ElasticCore::may_move(AddressRange range, std::string_view why) {
  if (in_child()) return;
  const MoveLock moves(*this);
  AddressRange whole;
  {
    const MutexLock lock(blocks_);
    const auto at = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) {
      return same(kept.range, range) && kept.why == why;
    });
    if (at == kept_.rend()) {
      throw std::logic_error("may_move: not kept in place: " + to_string(range.size) + " (" +
                             std::string(why) + ")");
    }
    for (const ChunkRef& chunk : at->chunks) --chunk->kept;
    whole = at->whole;
    kept_.erase(std::next(at).base());
  }
  source_.may_move(whole);
}

std::vector<KeptMemory> ElasticCore::kept_in_place() {
  std::vector<KeptMemory> all;
  const auto entry = [&all](const std::string& why) -> KeptMemory& {
    const auto at = std::find_if(all.begin(), all.end(),
                                 [&](const KeptMemory& known) { return known.why == why; });
    return at != all.end() ? *at : all.emplace_back(KeptMemory{why, {}});
  };
  std::vector<const Chunk*> counted;
  const MutexLock lock(blocks_);
  for (const Kept& kept : kept_) {
    KeptMemory& reason = entry(kept.why);
    for (const ChunkRef& chunk : kept.chunks) {
      if (chunk->kept > 1) {  // perhaps for another reason, too
        if (std::find(counted.begin(), counted.end(), &*chunk) != counted.end()) continue;
        counted.push_back(&*chunk);
      }
      reason.bytes += chunk.size();
    }
  }
  return all;
}

std::string ElasticCore::kept_reason() {
  std::string text;
  for (const KeptMemory& kept : kept_in_place()) {
    if (kept.bytes.is_zero()) continue;
    text += (text.empty() ? "" : ", ") + to_string(kept.bytes) + " (" + kept.why + ")";
  }
  if (!text.empty()) text = "stays where it is: " + text;
  const Bytes outside = ledger().outside;
  if (outside.is_zero()) return text;
  return text + (text.empty() ? "" : "; ") + "others in the process hold " + to_string(outside);
}

void ElasticCore::count_outside(Bytes held) noexcept {
  const MutexLock lock(blocks_);
  ledger_.outside = held;
  if (ledger_.resident() > limit()) pending_.fetch_or(kOverLimit, std::memory_order_release);
}

}  // namespace commensal
