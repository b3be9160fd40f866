// SPDX-License-Identifier: Apache-2.0
// What the session answers about tags, and where memory lies, as JSON.
#include <unistd.h>

#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

using nlohmann::json;

std::uint64_t number(const std::byte* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

// Neighbours of one tier as [offset, size, tier, live].
json runs(const SegmentMap& segment) {
  json all = json::array();
  for (const ChunkResidency& chunk : segment.chunks) {
    const std::uint64_t offset = number(chunk.address) - number(segment.range.begin);
    if (!all.empty()) {
      json& last = all.back();
      if (last[2] == to_string(chunk.tier) &&
          last[0].get<std::uint64_t>() + last[1].get<std::uint64_t>() == offset) {
        last[1] = last[1].get<std::uint64_t>() + chunk.size.count();
        last[3] = last[3].get<std::uint64_t>() + chunk.live.count();
        continue;
      }
    }
    all.push_back({offset, chunk.size.count(), to_string(chunk.tier), chunk.live.count()});
  }
  return all;
}

json to_json(const SegmentMap& segment, bool with_blocks) {
  json entry = {{"address", number(segment.range.begin)},
                {"reserved_bytes", segment.range.size.count()},
                {"small", segment.small},
                {"lifetime", segment.lifetime == Lifetime::kLong ? "long" : "step"},
                {"tag", segment.tag},
                {"chunks", runs(segment)}};
  if (!with_blocks) return entry;
  json blocks = json::array();
  for (const BlockPlace& block : segment.blocks) {
    blocks.push_back({number(block.address), block.size.count(), block.asked.count()});
  }
  entry["blocks"] = std::move(blocks);
  return entry;
}

}  // namespace

json Session::Impl::memory_map(bool with_blocks) const {
  json segments = json::array();
  for (const SegmentMap& segment : allocator.memory_map(with_blocks)) {
    segments.push_back(to_json(segment, with_blocks));
  }
  return {{"pid", ::getpid()}, {"job", config.name}, {"segments", std::move(segments)}};
}

TagTicket Session::Impl::move_tag(std::string_view name,
                                  TagTicket (ElasticAllocator::*move)(TagId)) {
  const TagId tag = allocator.find_tag(name);
  const Moving here(*this);
  return (allocator.*move)(tag);
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
  return impl_->allocator.wake_tag(tag);  // not `Moving`: more memory may be asked for
}
std::string Session::memory_map_json(bool with_blocks) const {
  return impl_->memory_map(with_blocks).dump();
}

}  // namespace commensal
