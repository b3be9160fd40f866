// SPDX-License-Identifier: Apache-2.0
// Leases: reserve, release elsewhere, confirm.
#include "coordinator/node/ledger.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace commensal::node {
namespace {

// What processes say that they hold may be nonsense; a sum of it must not be small again.
Bytes saturating_add(Bytes a, Bytes b) noexcept {
  return b > Bytes{UINT64_MAX} - a ? Bytes{UINT64_MAX} : a + b;
}

}  // namespace

void Ledger::open(const LeaseKey& key, Bytes held, Bytes limit, Revision revision, Bytes floor) {
  if (leases_.contains(key)) return;
  leases_.emplace(key, Lease{floor, Bytes{}, held, {Told{revision, limit}}});
}

void Ledger::close(const LeaseKey& key) noexcept {
  leases_.erase(key);
  settle_beyond();
}

void Ledger::set_capacity(Bytes capacity) noexcept {
  capacity_ = capacity;
  settle_beyond();
}

void Ledger::set_floor(const LeaseKey& key, Bytes floor) {
  if (const auto found = leases_.find(key); found != leases_.end()) found->second.floor = floor;
}

const Ledger::Lease& Ledger::at(const LeaseKey& key) const {
  const auto found = leases_.find(key);
  if (found == leases_.end()) {
    throw std::logic_error("no lease of job " + key.job.str() + ", process " +
                           std::to_string(key.pid));
  }
  return found->second;
}

Bytes Ledger::charged(const Lease& lease) noexcept {
  Bytes most = lease.excess;
  for (const Told& told : lease.told) most = std::max(most, told.limit);
  return most;
}

Bytes Ledger::limit(const LeaseKey& key) const { return at(key).told.back().limit; }
Bytes Ledger::charged(const LeaseKey& key) const { return charged(at(key)); }
Revision Ledger::revision(const LeaseKey& key) const { return at(key).told.back().revision; }

bool Ledger::outdated(const LeaseKey& key) const {
  const std::vector<Told>& told = at(key).told;
  return std::any_of(told.begin(), told.end(),
                     [&](const Told& older) { return older.limit > told.back().limit; });
}

void Ledger::settle_beyond() noexcept {
  Bytes above = saturating_sub(total_charged(), capacity_);
  for (auto& [key, lease] : leases_) {
    lease.beyond = std::min({lease.beyond, above, charged(lease)});
    above -= lease.beyond;
  }
}

Bytes Ledger::total_charged() const noexcept {
  Bytes total;
  for (const auto& [key, lease] : leases_) total = saturating_add(total, charged(lease));
  return total;
}

void Ledger::set_unmanaged(const JobId& job, Bytes bytes) {
  if (bytes.is_zero()) {
    unmanaged_.erase(job);
  } else {
    unmanaged_[job] = bytes;
  }
}

Bytes Ledger::unmanaged(const JobId& job) const {
  const auto found = unmanaged_.find(job);
  return found == unmanaged_.end() ? Bytes{} : found->second;
}

Bytes Ledger::total_unmanaged() const noexcept {
  Bytes total;
  for (const auto& [job, bytes] : unmanaged_) total = saturating_add(total, bytes);
  return total;
}

Bytes Ledger::free() const noexcept {
  const Bytes reserved = saturating_add(total_unmanaged(), outside_);
  return saturating_sub(capacity_, saturating_add(total_charged(), reserved));
}

Bytes Ledger::taken_by_others(const LeaseKey& key) const noexcept {
  Bytes taken;
  for (const auto& [other_key, other] : leases_) {
    if (other_key != key) taken = saturating_add(taken, std::max(charged(other), other.floor));
  }
  return taken;
}

Bytes Ledger::within_budget(const LeaseKey& key, Bytes target) const {
  const Lease& lease = at(key);
  const Bytes mine = charged(lease);
  if (target <= mine) return target;
  const Bytes promised = saturating_sub(capacity_, taken_by_others(key));
  const Bytes open = saturating_sub(promised, saturating_add(total_unmanaged(), outside_));
  return std::min(target, std::max({mine, open, std::min(lease.floor, promised)}));
}

Bytes Ledger::reachable(const LeaseKey& key, Bytes target) const {
  const Bytes physical = saturating_sub(physical_, taken_by_others(key));
  const Bytes beyond = std::min({target, at(key).floor, physical});
  return std::max(within_budget(key, target), beyond);
}

void Ledger::tell(const LeaseKey& key, Bytes limit, Revision revision) {
  if (limit > reachable(key, limit)) {
    throw std::logic_error("limit above what is free: " + to_string(limit) + " > " +
                           to_string(reachable(key, limit)));
  }
  Lease& lease = leases_.at(key);
  if (revision <= lease.told.back().revision) {
    throw std::logic_error("revision is not newer: " + std::to_string(revision) +
                           " <= " + std::to_string(lease.told.back().revision));
  }
  if (confirm_ == ConfirmShrinks::kNo) {
    lease.told.clear();
    lease.excess = Bytes{};
  }
  lease.beyond += saturating_sub(limit, within_budget(key, limit));
  lease.told.push_back(Told{revision, limit});
  settle_beyond();
}

bool Ledger::confirm(const LeaseKey& key, Revision revision, Bytes held) {
  const auto found = leases_.find(key);
  if (found == leases_.end()) return false;
  Lease& lease = found->second;
  const auto told = std::find_if(lease.told.begin(), lease.told.end(),
                                 [&](const Told& t) { return t.revision == revision; });
  if (told == lease.told.end()) return false;
  // What it held above its limits can only have gone down since: a late report changes nothing.
  lease.excess = std::min(charged(lease), held);
  lease.told.erase(lease.told.begin(), told);
  settle_beyond();
  return true;
}

}  // namespace commensal::node
