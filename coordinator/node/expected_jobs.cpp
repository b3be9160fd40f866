// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/expected_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "allocator/base/clock.h"

namespace commensal::node {
namespace {

using nlohmann::json;
using wire::Placement;
using wire::PlacementState;

constexpr double kSameShare = 1e-6;

bool is_reserved(const Placement& placement) {
  return placement.state == PlacementState::kReserved;
}

std::string range_text(const MemoryRange& range) {
  return to_string(range.min) + ":" + (range.max ? to_string(*range.max) : "");
}

std::string range_text(const ShareRange& range) {
  return fmt::format("{:g}:{:g}", range.min, range.max);
}

bool is_same(double a, double b) { return std::abs(a - b) < kSameShare; }

/// Memory that a job must be able to get on each of its devices.
Bytes minimum(const Placement& placement) {
  return placement.memory ? placement.memory->min : Bytes{};
}

void hold_class(const Placement& placement, Held& held, std::string& asked, std::string& given) {
  wire::Register& message = held.message;
  if (placement.state == PlacementState::kUpgrading) return;
  if (message.job_class == placement.job_class) return;
  asked = to_string(message.job_class);
  given = to_string(placement.job_class);
  message.job_class = placement.job_class;
  message.terms.law.clear();  // these are of the class that it does not have
  message.terms.slo.reset();
}

void add(std::string& text, const std::string& more) { text += (text.empty() ? "" : ", ") + more; }

void hold_bounds(const Placement& placement, Held& held, std::string& asked, std::string& given) {
  wire::Register& message = held.message;
  const MemoryRange memory = placement.memory.value_or(message.terms.memory);
  if (memory != message.terms.memory) {
    add(asked, "memory " + range_text(message.terms.memory));
    add(given, "memory " + range_text(memory));
    message.terms.memory = memory;
  }
  const ShareRange share = placement.share.value_or(message.terms.share);
  if (!is_same(share.min, message.terms.share.min) ||
      !is_same(share.max, message.terms.share.max)) {
    add(asked, "share " + range_text(message.terms.share));
    add(given, "share " + range_text(share));
    message.terms.share = share;
  }
}

}  // namespace

Held hold_to(const Placement& placement, const wire::Register& message) {
  Held held{message, ""};
  if (is_reserved(placement)) return held;
  std::string asked;
  std::string given;
  hold_class(placement, held, asked, given);
  hold_bounds(placement, held, asked, given);
  if (!asked.empty()) {
    held.reason = fmt::format("the cluster placed it with {}; it asked for {}", given, asked);
  }
  return held;
}

Expectation expect(const Placement& placement, Presence presence, Duration age, Duration silence) {
  if (presence == Presence::kGone) return {false, false, "it has been here"};
  const bool is_here = presence == Presence::kHere;
  if (is_reserved(placement)) {
    if (is_here) return {false, false, "it has registered"};
    if (silence < kExpected) return {true, false, "devices are kept for it"};
    return {
        false, false,
        fmt::format("the cluster's coordinator has been silent for {:.0f} s", in_seconds(silence))};
  }
  const bool claims = placement.job_class == JobClass::kGuaranteed && age < kClaimed &&
                      !minimum(placement).is_zero() && !placement.devices.empty();
  if (is_here) return {false, claims, "it has registered"};
  if (age >= kExpected) {
    return {false, false,
            fmt::format("it did not register within {:.0f} s", in_seconds(kExpected))};
  }
  return {true, claims,
          claims ? "its minimum of memory is kept free for it"
                 : "none of its processes has registered"};
}

void ExpectedJobs::take(const std::vector<Placement>& list, TimePoint now) {
  std::map<JobId, Entry> entries;
  for (const Placement& placement : list) {
    const JobId id{placement.id};
    Entry entry{placement, now, Presence::kNotYet, {}};
    if (const auto known = entries_.find(id); known != entries_.end()) {
      entry.presence = known->second.presence;
      if (is_reserved(known->second.placement) == is_reserved(placement)) {
        entry.since = known->second.since;
        entry.now = known->second.now;
      }
    }
    entries.emplace(id, std::move(entry));
  }
  for (const auto& [id, entry] : entries_) {
    if (!entries.contains(id)) note(entry, {false, false, "the cluster has taken it away"});
  }
  entries_ = std::move(entries);
  heard(now);
}

void ExpectedJobs::update(const IsHere& is_here, TimePoint now) {
  for (auto& [id, entry] : entries_) {
    if (is_here(id)) {
      entry.presence = Presence::kHere;
    } else if (entry.presence == Presence::kHere) {
      entry.presence = Presence::kGone;
    }
    Expectation next = expect(entry.placement, entry.presence, now - entry.since, now - heard_);
    note(entry, next);
    entry.now = std::move(next);
  }
}

void ExpectedJobs::note(const Entry& entry, const Expectation& next) {
  if (entry.presence != Presence::kNotYet) return;
  const std::string& id = entry.placement.id;
  if (next.claims && !entry.now.claims) {
    news_.push_back(fmt::format(
        "job {} of the cluster is to come: {} of each of its devices are kept free for it", id,
        to_string(minimum(entry.placement))));
  } else if (entry.now.claims && !next.claims) {
    news_.push_back(fmt::format(
        "job {} of the cluster has not come: no memory is kept free for it any more", id));
  }
  if (entry.now.expected && !next.expected) {
    news_.push_back(
        fmt::format("job {} of the cluster is not expected any more: {}", id, next.reason));
  }
}

const Placement* ExpectedJobs::find(const JobId& id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second.placement;
}

std::map<JobId, Bytes> ExpectedJobs::claims_on(const std::string& device) const {
  std::map<JobId, Bytes> claims;
  for (const auto& [id, entry] : entries_) {
    const auto& devices = entry.placement.devices;
    if (!entry.now.claims || std::ranges::find(devices, device) == devices.end()) continue;
    claims[id] = minimum(entry.placement);
  }
  return claims;
}

json ExpectedJobs::status(const std::string& job, TimePoint now) const {
  json list = json::array();
  for (const auto& [id, entry] : entries_) {
    if (!entry.now.expected) continue;
    const Placement& placement = entry.placement;
    if (!job.empty() && job != placement.id && job != placement.name) continue;
    json memory;
    if (placement.memory) {
      memory = {{"min_bytes", placement.memory->min.count()}, {"max_bytes", nullptr}};
      if (placement.memory->max) memory["max_bytes"] = placement.memory->max->count();
    }
    list.push_back({{"job",
                     {{"id", placement.id},
                      {"name", placement.name},
                      {"tenant", placement.tenant},
                      {"class", to_string(placement.job_class)}}},
                    {"number", placement.job},
                    {"attempt", placement.attempt},
                    {"state", wire::to_string(placement.state)},
                    {"devices", placement.devices},
                    {"memory", std::move(memory)},
                    {"claimed", entry.now.claims},
                    {"told_seconds_ago", in_seconds(now - entry.since)},
                    {"reason", entry.now.reason}});
  }
  return list;
}

}  // namespace commensal::node
