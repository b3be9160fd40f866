// SPDX-License-Identifier: Apache-2.0
// Regions travel with PyTorch's thread-local debug information, which follows work across threads.
#include "torch_ext/region.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <exception>
#include <memory>

#include "allocator/base/relaxed.h"

#define COMMENSAL_EXPORT __attribute__((visibility("default")))

namespace commensal {
namespace {

// No kind that PyTorch has a name for: nobody else's information is hidden.
constexpr auto kRegion = static_cast<c10::DebugInfoKind>(0xC5);

struct Region final : c10::DebugInfoBase {
  Region(TagId own, TagId around) noexcept : tag(own), outer(around) {}
  std::atomic<TagId> tag;
  const TagId outer;
};

std::atomic<int> g_open{0};

TagId innermost() {
  const c10::DebugInfoBase* const info = c10::ThreadLocalDebugInfo::get(kRegion);
  return info == nullptr ? 0 : static_cast<const Region*>(info)->tag.load(kRelaxed);
}

// Takes a region off the thread's stack, if nothing was put on it since.
void pop(const Region& region) noexcept {
  try {
    if (c10::ThreadLocalDebugInfo::_peek(kRegion).get() != &region) return;
    (void)c10::ThreadLocalDebugInfo::_pop(kRegion);
  } catch (const std::exception&) {
    return;  // a profiler, say, that began inside of it: the region stays below, without effect
  }
}

}  // namespace

TagId current_tag() noexcept { return g_open.load(kRelaxed) == 0 ? 0 : innermost(); }

}  // namespace commensal

COMMENSAL_EXPORT void* commensal_torch_enter_region(std::uint32_t tag) {
  using commensal::Region;
  try {
    auto region = std::make_shared<Region>(tag, commensal::current_tag());
    auto kept = std::make_unique<std::shared_ptr<Region>>(region);
    c10::ThreadLocalDebugInfo::_push(commensal::kRegion, std::move(region));
    commensal::g_open.fetch_add(1, commensal::kRelaxed);
    return kept.release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

COMMENSAL_EXPORT void commensal_torch_leave_region(void* region) {
  const std::unique_ptr<std::shared_ptr<commensal::Region>> kept(
      static_cast<std::shared_ptr<commensal::Region>*>(region));
  if (kept == nullptr) return;
  (*kept)->tag.store((*kept)->outer, commensal::kRelaxed);
  commensal::pop(**kept);
  commensal::g_open.fetch_sub(1, commensal::kRelaxed);
}
