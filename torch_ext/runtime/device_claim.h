// SPDX-License-Identifier: Apache-2.0
// A process's word on what it holds of its device, and its look at whether it may take more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "allocator/base/ids.h"
#include "allocator/memory_claims.h"
#include "coordinator/wire/pages.h"

namespace commensal {

/// Claims memory of the device on the shared pages.
///
/// A process that is stopped cannot answer, and may go on at any moment. So that the coordinator
/// can grant to others what it does not hold, both write first and look then: the process shows
/// what it is about to take (`memory_taken`), then reads whether its limit was taken back
/// (`memory_recalled`); the coordinator takes the limit back on the page, then reads what the
/// process has. In whatever order the two meet, at least one of them sees the other: either the
/// process takes nothing, or what it takes is counted.
///
/// Thread safety: any member may be called from any thread.
class DeviceClaim final : public MemoryClaims {
 public:
  /// @param recalled  reads the process's entry on the device page now.
  DeviceClaim(wire::JobPage& page, std::function<std::uint64_t()> recalled)
      : page_(page), recalled_(std::move(recalled)) {}

  [[nodiscard]] const char* claim(Bytes bytes) noexcept override {
    const std::uint64_t taken = page_.memory_taken.fetch_add(bytes.count()) + bytes.count();
    const char* const refused = problem_with(Bytes{taken});
    if (refused != nullptr) page_.memory_taken.fetch_sub(bytes.count());
    return refused;
  }
  void give_back(Bytes bytes) noexcept override { page_.memory_taken.fetch_sub(bytes.count()); }

  /// The process keeps to this grant from now on.
  void granted(Bytes limit, Revision revision) noexcept {
    limit_.store(limit.count());
    revision_.store(revision);
    has_grant_.store(true);
  }

 private:
  [[nodiscard]] const char* problem_with(Bytes taken) const noexcept {
    const std::uint64_t recalled = recalled_();
    if (recalled == 0 || !has_grant_.load()) return nullptr;
    if (revision_.load() < recalled) {
      return "the limit was taken back while the process stood still, and the new one has not come";
    }
    // A larger limit may have been read before the process stood still.
    return taken > Bytes{limit_.load()} ? "above the limit that has just come" : nullptr;
  }

  wire::JobPage& page_;
  const std::function<std::uint64_t()> recalled_;
  std::atomic<std::uint64_t> limit_{0};
  std::atomic<Revision> revision_{0};
  std::atomic<bool> has_grant_{false};
};

}  // namespace commensal
