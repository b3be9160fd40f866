// SPDX-License-Identifier: Apache-2.0
// Writing the device page.
#include "coordinator/node/device_page.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace commensal::node {
namespace {

std::uint64_t ppm(double fraction) {
  return static_cast<std::uint64_t>(std::llround(std::clamp(fraction, 0.0, 1.0) * 1e6));
}

std::uint64_t nanoseconds(TimePoint time) {
  return static_cast<std::uint64_t>(time.time_since_epoch().count());
}

void copy_id(char* to, const std::string& id) {
  std::memset(to, 0, wire::kIdSize);
  id.copy(to, wire::kIdSize - 1);
}

}  // namespace

DevicePageWriter::DevicePageWriter(const Device& device, double trickle, std::int64_t pid)
    : memfd_(wire::make_page_memfd("commensal-device")),
      mapped_(memfd_.get(), wire::kPageSize, true),
      written_(wire::kMaxDeviceEntries) {
  wire::seal_against_writing(memfd_.get());
  auto* page = mapped_.as<wire::DevicePage>();
  page->header = {wire::kDevicePageMagic, wire::kPageVersion, wire::kPageSize,
                  static_cast<std::uint64_t>(pid), nanoseconds(SteadyClock::instance().now())};
  copy_id(page->device_id, device.id);
  page->cores = static_cast<std::uint64_t>(std::max(1.0, std::ceil(device.cores)));
  page->trickle_ppm = ppm(trickle);
}

void DevicePageWriter::write(std::size_t slot, const PageEntry& entry) {
  wire::DeviceEntry& out = mapped_.as<wire::DevicePage>()->entries[slot];
  const std::uint64_t sequence = out.sequence.load(std::memory_order_relaxed);
  // Odd first: a reader that sees one of the (releasing) stores below sees that, too. An exchange,
  // so that the plain copy of the id stays behind it (ThreadSanitizer knows no fences).
  out.sequence.exchange(sequence + 1, std::memory_order_seq_cst);
  copy_id(out.job_id, entry.job_id);
  out.job_class.store(static_cast<std::uint64_t>(entry.job_class), std::memory_order_release);
  const wire::LawId law = wire::to_law(entry.law).value_or(wire::LawId::kOpen);
  out.law.store(static_cast<std::uint64_t>(law), std::memory_order_release);
  // Before what closes the gates: who sees the order also knows by which epoch to follow it.
  out.gang_epoch.store(entry.gang_epoch, std::memory_order_release);
  out.share_min_ppm.store(ppm(entry.share_min), std::memory_order_release);
  out.share_max_ppm.store(ppm(entry.share_max), std::memory_order_release);
  out.paused.store(entry.paused ? 1 : 0, std::memory_order_release);
  out.lease_until_ns.store(nanoseconds(entry.lease_until), std::memory_order_release);
  out.memory_grant.store(entry.memory_grant.count(), std::memory_order_release);
  // What the process shows is read after this: see DeviceClaim in torch_ext/runtime.
  out.memory_recalled.store(entry.memory_recalled, std::memory_order_seq_cst);
  out.slo_ppm.store(ppm(entry.slo), std::memory_order_release);
  out.turn_until_ns.store(nanoseconds(entry.turn_until), std::memory_order_release);
  wire::CoreWords& cores = mapped_.as<wire::DevicePage>()->core_sets[slot];
  for (std::size_t i = 0; i < wire::kCoreWords; ++i) {
    cores.cpus[i].store(entry.cores.words()[i], std::memory_order_release);
  }
  const wire::PackedGapRules rules = wire::pack(entry.gap_rules);
  out.gap_rules.store(rules.gaps, std::memory_order_release);
  out.flight_rules.store(rules.flight, std::memory_order_release);
  out.change_rules.store(rules.change, std::memory_order_release);
  out.sequence.store(sequence + 2, std::memory_order_release);
}

void DevicePageWriter::publish(const std::vector<PageEntry>& entries, const Device& device,
                               TimePoint now) {
  auto* page = mapped_.as<wire::DevicePage>();
  std::vector<PageEntry> wanted(wire::kMaxDeviceEntries);
  std::uint64_t alive = 0;
  for (const PageEntry& entry : entries) {
    if (entry.job_class == JobClass::kGuaranteed) ++alive;
    // A lease is a word of its own and moves all the time: no new revision for it.
    page->entries[entry.slot].lease_until_ns.store(nanoseconds(entry.lease_until),
                                                   std::memory_order_relaxed);
    wanted[entry.slot] = entry;
    wanted[entry.slot].lease_until = TimePoint{};
  }
  bool changed = false;
  for (std::size_t slot = 0; slot < wanted.size(); ++slot) {
    if (wanted[slot] == written_[slot]) continue;
    PageEntry entry = wanted[slot];
    for (const PageEntry& e : entries) {
      if (e.slot == slot) entry.lease_until = e.lease_until;
    }
    write(slot, entry);
    changed = true;
  }
  written_ = std::move(wanted);
  page->memory_capacity.store(device.capacity.count(), std::memory_order_relaxed);
  page->guaranteed_alive.store(alive, std::memory_order_release);
  if (changed) page->revision.fetch_add(1, std::memory_order_release);
  page->heartbeat_ns.store(nanoseconds(now), std::memory_order_release);
}

}  // namespace commensal::node
