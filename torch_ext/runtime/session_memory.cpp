// SPDX-License-Identifier: Apache-2.0
// What the session answers about tags, and where memory lies, as JSON.
#include <unistd.h>

#include <algorithm>

#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

using nlohmann::json;

std::uint64_t number(const std::byte* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// How much neighbours must have in common to be told as one.
enum class Detail : std::uint8_t {
  kFilling,  ///< tier, and how full of blocks they are
  kTier
};

// Neighbours as [offset, size, tier, live].
json runs(const SegmentMap& segment, Detail detail) {
  json all = json::array();
  for (const ChunkResidency& chunk : segment.chunks) {
    const std::uint64_t offset = number(chunk.address) - number(segment.range.begin);
    if (!all.empty()) {
      json& last = all.back();
      const auto size = last[1].get<std::uint64_t>();
      const auto live = last[3].get<std::uint64_t>();
      // Chunks of a segment are of one size, so `size` is a multiple of it.
      const bool as_full = live == chunk.live.count() * (size / chunk.size.count());
      if (last[2] == to_string(chunk.tier) && last[0].get<std::uint64_t>() + size == offset &&
          (as_full || detail == Detail::kTier)) {
        last[1] = size + chunk.size.count();
        last[3] = live + chunk.live.count();
        continue;
      }
    }
    all.push_back({offset, chunk.size.count(), to_string(chunk.tier), chunk.live.count()});
  }
  return all;
}

json to_json(const SegmentMap& segment, bool with_blocks, Detail detail) {
  json entry = {{"address", number(segment.range.begin)},
                {"reserved_bytes", segment.range.size.count()},
                {"small", segment.small},
                {"lifetime", segment.lifetime == Lifetime::kLong ? "long" : "step"},
                {"tag", segment.tag},
                {"chunks", runs(segment, detail)}};
  const auto away = [](const ChunkResidency& chunk) {
    return chunk.away && chunk.tier == Tier::kParked;
  };
  if (std::any_of(segment.chunks.begin(), segment.chunks.end(), away)) entry["away"] = true;
  if (!with_blocks) return entry;
  json blocks = json::array();
  for (const BlockPlace& block : segment.blocks) {
    blocks.push_back({number(block.address), block.size.count(), block.asked.count()});
  }
  entry["blocks"] = std::move(blocks);
  return entry;
}

}  // namespace

json Session::Impl::memory_map(bool with_blocks, bool coarse) const {
  json segments = json::array();
  for (const SegmentMap& segment : allocator.memory_map(with_blocks)) {
    segments.push_back(to_json(segment, with_blocks, coarse ? Detail::kTier : Detail::kFilling));
  }
  return {{"pid", ::getpid()}, {"job", config.name}, {"segments", std::move(segments)}};
}

void Session::Impl::on_map_request(const wire::MapRequest& request) {
  constexpr std::size_t kRestOfFrame = 4096;
  wire::MapReply reply{config.job_id.str(), ::getpid(), request.ticket, nullptr, {}};
  for (const bool coarse : {false, true}) {
    nlohmann::json map = memory_map(false, coarse);
    const std::size_t bytes = map.dump().size();
    if (bytes + kRestOfFrame <= wire::kMaxFrameBytes) {
      reply.map = std::move(map);
      break;
    }
    reply.reason = "memory lies in too many pieces to be told: " + to_string(Bytes{bytes});
  }
  client.post(reply);
}

TagTicket Session::Impl::move_tag(std::string_view name,
                                  TagTicket (ElasticAllocator::*move)(TagId)) {
  const TagId tag = allocator.find_tag(name);
  const Moving here(*this);
  TagTicket ticket;
  move_and([&] { ticket = (allocator.*move)(tag); });
  return ticket;
}

TagId Session::open_tag(std::string_view name, TagOptions options) {
  return impl_->allocator.open_tag(name, options);
}
TagTicket Session::park_tag(std::string_view name) {
  return impl_->move_tag(name, &ElasticAllocator::park_tag);
}
TagTicket Session::drop_tag(std::string_view name) {
  return impl_->move_tag(name, &ElasticAllocator::drop_tag);
}
TagTicket Session::wake_tag(std::string_view name) {
  const TagId tag = impl_->allocator.find_tag(name);
  TagTicket ticket;  // not `Moving`: more memory may be asked for
  impl_->move_and([&] { ticket = impl_->allocator.wake_tag(tag); });
  return ticket;
}
Bytes Session::keep_in_place(AddressRange range, std::string_view why) {
  const Impl::Moving here(*impl_);
  Bytes kept;
  impl_->move_and([&] { kept = impl_->allocator.keep_in_place(range, why); });
  return kept;
}
void Session::may_move(AddressRange range, std::string_view why) {
  impl_->allocator.may_move(range, why);
}
std::string Session::memory_map_json(bool with_blocks) const {
  return impl_->memory_map(with_blocks, false).dump();
}

}  // namespace commensal
