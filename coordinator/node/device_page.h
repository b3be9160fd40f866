// SPDX-License-Identifier: Apache-2.0
// Writes the device page that the jobs' gates read.
#pragma once

#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/node/device.h"
#include "coordinator/node/node_coordinator.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/pages.h"

namespace commensal::node {

/// Owns the device page. Its memfd is sealed against writing by others. Not thread safe.
class DevicePageWriter {
 public:
  /// @throws std::system_error.
  DevicePageWriter(const Device& device, double trickle, std::int64_t pid);

  /// Makes the page say `entries`, and that the coordinator lives.
  void publish(const std::vector<PageEntry>& entries, const Device& device, TimePoint now);
  /// Returns a descriptor to hand out: read-only.
  [[nodiscard]] wire::UniqueFd reader() const { return wire::reopen_read_only(memfd_.get()); }
  /// Names the page: `wire::JobPage::memory_page` of who looks at it.
  [[nodiscard]] std::uint64_t made() const noexcept { return page().header.made_ns; }
  [[nodiscard]] const wire::DevicePage& page() const noexcept {
    return *mapped_.as<wire::DevicePage>();
  }

 private:
  void write(std::size_t slot, const PageEntry& entry);

  wire::UniqueFd memfd_;
  wire::MappedPage mapped_;
  std::vector<PageEntry> written_;  // by slot, without leases; an empty id: not in use
};

}  // namespace commensal::node
