// SPDX-License-Identifier: Apache-2.0
// What the command line asks of a device: status, set, pause, resume.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "allocator/base/clock.h"
#include "coordinator/node/device_coordinator.h"
#include "coordinator/wire/json_text.h"

namespace commensal::node {
namespace {

using nlohmann::json;

constexpr std::size_t kEndedKept = 100;

/// A job's object before its first report: every field of docs/stats.md with a neutral value.
json empty_stats() {
  static const json kEmpty = [] {
    json empty = wire::parse_json(R"({
    "schema": 1,
    "job": {"id": "", "name": "", "tenant": "", "class": "", "active": true, "role": "",
            "rank": 0, "world_size": 1, "pid": 0, "coordinator": "", "coordinator_pid": 0,
            "reason": "", "malformed_frames_total": 0},
    "memory": {"policy": "", "limit_bytes": null, "min_bytes": 0, "max_bytes": null, "device_bytes": 0,
               "host_bytes": 0, "host_touched_bytes": 0, "parked_bytes": 0, "dropped_bytes": 0,
               "tags": [], "kept_bytes": 0, "kept": [], "delegated_bytes": 0, "devices": [],
               "cached_bytes": 0,
               "live_bytes": 0, "peak_live_bytes": 0, "peak_device_bytes": 0, "wanted_bytes": 0,
               "moved_bytes_total": 0, "moved_out_bytes_total": 0, "moved_ahead_bytes_total": 0, "moved_in_bytes_total": 0,
               "given_back_bytes_total": 0, "deferred_bytes": 0, "deferred_reason": "",
               "held_back_bytes": 0, "held_back_reason": "", "held_back_total": 0,
               "held_by_children_bytes": 0, "moves_total": 0, "longest_pause_seconds": 0.0,
               "pause_seconds_total": 0.0, "safe_point_wait_seconds_total": 0.0,
               "allocations_total": 0, "frees_total": 0, "out_of_memory_total": 0,
               "revision": 0, "notes": []},
    "gate": {"law": "", "share": 1.0, "share_min": 0.0, "state": "off", "reason": "",
             "closed_seconds_total": 0.0, "closed_by": [], "ops_gated_total": 0, "ops_seen_total": 0,
             "ops_behind_total": 0, "copied_bytes_total": 0, "gang_epoch": 0,
             "busy_seconds_total": 0.0, "off_device_seconds_total": 0.0, "hand_overs_total": 0,
             "in_flight_seconds": 0.0, "in_flight_bound_seconds": null, "waiting_op_seconds": null,
             "idle_class": false, "idle_class_reason": ""},
    "samples": {"windows_total": 0, "window_seconds_total": 0.0, "ops_total": 0,
                "ops_unclassified_total": 0, "compute_seconds_total": 0.0,
                "memory_seconds_total": 0.0, "on_core_seconds_total": 0.0, "top": []},
    "cores": {"cpus": "", "own": "", "reason": "", "threads_left_alone": 0,
              "elastic_threads": false, "threads": null},
    "multiprocessors": {"share": null, "asked": null, "granted": null, "total": null, "reason": ""},
    "step": {"number": 0, "last_seconds": 0.0, "median_seconds": 0.0, "confidence": 0.0,
             "source": "none"},
    "activity": {"state": "unknown", "waits_total": 0, "wait_seconds_total": 0.0,
                 "wait_typical_seconds": 0.0, "phase": "unknown", "gaps": []}
  })");
    empty["activity"]["gaps"] = no_gaps();
    return empty;
  }();
  return kEmpty;
}

/// Puts a report over the neutral values; what is not an object where one is due is left out.
void overlay(json& base, const json& report) {
  for (const auto& [section, fields] : report.items()) {
    if (base.contains(section) && base[section].is_object() != fields.is_object()) continue;
    if (fields.is_object() && base.contains(section)) {
      for (const auto& [name, value] : fields.items()) base[section][name] = value;
    } else {
      base[section] = fields;
    }
  }
}

/// Adds another rank's memory to the speaker's: sizes and totals are the job's.
void add_memory(json& into, const json& report) {
  const auto memory = report.is_object() ? report.find("memory") : report.end();
  if (memory == report.end() || !memory->is_object()) return;
  for (const auto& [name, value] : memory->items()) {
    if (!value.is_number_unsigned() || name == "revision") continue;
    if (!into[name].is_number_unsigned()) continue;
    into[name] = into[name].get<std::uint64_t>() + value.get<std::uint64_t>();
  }
}

// A peer's name is any bytes; a ticket is text.
std::string to_ticket(const PeerId& peer) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string ticket;
  for (const char c : peer) {
    const auto byte = static_cast<unsigned char>(c);
    ticket += kDigits[byte >> 4U];
    ticket += kDigits[byte & 15U];
  }
  return ticket;
}

/// Returns an empty name for what is no ticket.
PeerId from_ticket(std::string_view ticket) {
  PeerId peer;
  for (; ticket.size() >= 2; ticket.remove_prefix(2)) {
    unsigned byte = 0;
    const std::string digits{ticket.substr(0, 2)};
    const char* const end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, byte, 16).ptr != end) return {};
    peer += static_cast<char>(byte);
  }
  return ticket.empty() ? peer : PeerId{};
}

}  // namespace

json DeviceCoordinator::lease_status(const Job& job, TimePoint now) const {
  Bytes granted;
  Bytes held;
  Bytes charged;
  Bytes beyond;
  std::optional<Bytes> resident;
  std::string state = job.parked() ? "parked" : "granted";
  std::string reason = job.target_reason;
  if (job.parked() && reason != job.stage_reason) reason = job.stage_reason;
  for (const Member& member : job.members) {
    const LeaseKey key = job.key(member);
    granted += ledger_.limit(key);
    charged += ledger_.charged(key);
    beyond += ledger_.beyond_budget(key);
    held += member.held;
    if (member.resident) resident = resident.value_or(Bytes{}) + *member.resident;
    if (ledger_.shrinking(key)) {
      const bool said =
          member.outcome == wire::Outcome::kRefused || member.outcome == wire::Outcome::kDeferred;
      if (!job.parked()) state = said ? to_string(*member.outcome) : "shrinking";
      if (!member.standstill.empty()) {
        reason += "; process " + std::to_string(member.pid) + " is " + member.standstill;
      } else if (!member.answer_reason.empty()) {
        reason += "; " + member.answer_reason;
      }
    } else if (state == "granted" && ledger_.limit(key) < job.part_of(job.target, member)) {
      state = "growing";
    }
  }
  if (job.stopped) reason += "; stopped from outside: " + resort_.reason;
  if (!job.end_reason.empty()) reason += "; " + job.end_reason;
  if (!beyond.is_zero()) {
    reason += "; " + to_string(beyond) + " of it beyond the budget of " +
              to_string(device_.capacity) + ", from memory that is physically free";
  }
  if (const Bytes theirs = job.of_children.value(); !theirs.is_zero()) {
    reason += "; " + to_string(theirs) + " held by forked children:";
    for (const ChildUse& child : job.use.children) reason += " " + std::to_string(child.pid);
  }
  json children = json::array();
  for (const ChildUse& child : job.use.children) {
    children.push_back({{"pid", child.pid}, {"bytes", child.bytes.count()}});
  }
  const policies::MemoryLease& lease = job.lease.lease();
  const MemoryRange bounds = job.memory_bounds();
  return {{"granted_bytes", granted.count()},
          {"charged_bytes", charged.count()},
          {"beyond_budget_bytes", beyond.count()},
          {"unmanaged_bytes", job.unmanaged().count()},
          {"children_bytes", job.of_children.value().count()},
          {"children", std::move(children)},
          {"resident_bytes", resident ? json(resident->count()) : json(nullptr)},
          {"group_bytes", job.use.group ? json(job.use.group->count()) : json(nullptr)},
          {"measured_by", job.use.by},
          {"target_bytes", job.target.count()},
          {"held_bytes", held.count()},
          {"owed_bytes", job.owed.count()},
          {"leased_bytes", lease.bytes.count()},
          {"lease_ends_seconds", std::max(0.0, in_seconds(lease.ends - now))},
          {"lease_term_seconds", in_seconds(lease.term)},
          {"stage", policies::to_string(job.stage)},
          {"stage_seconds", job.parked() ? in_seconds(now - job.stage_since) : 0.0},
          {"min_bytes", bounds.min.count()},
          {"max_bytes", bounds.max ? json(bounds.max->count()) : json(nullptr)},
          {"revision", job.revision},
          {"state", state},
          {"reason", reason}};
}

json DeviceCoordinator::job_status(const Job& job, TimePoint now) const {
  json result = empty_stats();
  const Member* speaker = job.speaker();
  if (speaker != nullptr && speaker->stats.is_object()) overlay(result, speaker->stats);
  json members = json::array();
  for (const Member& member : job.members) {
    if (member.first) {  // else it is told of where it is first
      members.push_back({{"pid", member.pid}, {"role", member.role}, {"rank", member.rank}});
    }
    if (&member != speaker && member.is_managed()) add_memory(result["memory"], member.stats);
  }
  json& identity = result["job"];
  identity["id"] = job.id.str();
  identity["name"] = job.name;
  identity["tenant"] = job.tenant;
  identity["class"] = to_string(job.job_class);
  identity["world_size"] = job.gang.world_size;
  identity["coordinator"] = config_.instance;
  identity["coordinator_pid"] = pid_;
  if (speaker != nullptr) {
    identity["pid"] = speaker->pid;
    identity["role"] = speaker->role;
    identity["rank"] = speaker->rank;
  }
  if (!job.reason.empty()) identity["reason"] = job.reason;
  if (json& law = result["gate"]["law"]; law == json("")) law = job.terms.law;
  if (job.paused || job.parked()) result["gate"]["state"] = "paused";
  result["lease"] = lease_status(job, now);
  const bool guaranteed = job.job_class == JobClass::kGuaranteed;
  const auto slowdown = guaranteed ? known_slowdown(job) : std::nullopt;
  const MedianEstimate baseline = guaranteed ? compute_.baseline(job.id) : MedianEstimate{};
  result["slowdown"] = slowdown ? json(slowdown->value) : json(nullptr);
  result["slowdown_error"] = slowdown ? json(slowdown->error) : json(nullptr);
  result["slowdown_reason"] = guaranteed ? slowdown_reason(job) : "";
  result["baseline_seconds"] = baseline.steps > 0 ? json(baseline.seconds) : json(nullptr);
  result["baseline_steps"] = baseline.steps;
  result["serves"] = job.serves();
  result["measured_by"] = guaranteed ? json(to_string(job.signal)) : json(nullptr);
  result["slo"] = guaranteed ? json(slo_of(job)) : json(nullptr);
  result["share"] = {{"now", guaranteed ? job.terms.share.max : job.share_now},
                     {"min", job.terms.share.min},
                     {"max", job.terms.share.max},
                     {"reason", guaranteed ? "guaranteed" : job.share_reason}};
  result["group"] = {
      {"low", job.group.low}, {"path", job.group.group.native()}, {"reason", job.group.reason}};
  result["gaps"] = to_json(job.gaps ? *job.gaps : std::vector<GapClass>{});
  result["gap_rules"] = rules_of(job);
  result["gang"] = guaranteed ? json(nullptr) : job.gang_keeper->status();
  result["class_change"] = nullptr;
  result["paused"] = job.paused;
  result["members"] = std::move(members);
  result["started_seconds_ago"] = in_seconds(now - job.started);
  result["ended"] = false;
  result["exit_reason"] = "";
  return result;
}

json DeviceCoordinator::rules_of(const Job& job) {
  return to_json(job.job_class == JobClass::kOpportunistic ? job.gap_rules : GapDecision{});
}

json DeviceCoordinator::device_status(TimePoint now) const {
  Bytes held;
  for (const Job& job : table_.jobs()) {
    for (const Member& member : job.members) held += std::min(member.held, device_.capacity);
  }
  return {
      {"id", device_.id},
      {"kind", to_string(device_.kind)},
      {"name", device_.name},
      {"cores", is_host() ? json(device_.cores) : json(nullptr)},
      {"capacity_bytes", device_.capacity.count()},
      {"granted_bytes", ledger_.total_charged().count()},
      {"beyond_budget_bytes", saturating_sub(ledger_.total_charged(), device_.capacity).count()},
      {"held_bytes", held.count()},
      {"unmanaged_bytes", ledger_.total_unmanaged().count()},
      {"outside_bytes", ledger_.outside().count()},
      {"free_bytes", ledger_.free().count()},
      {"claimed_bytes", claimed().count()},
      {"last_resort", to_string(resort_.resort)},
      {"last_resort_reason", resort_.reason},
      {"available_bytes", available_ ? json(available_->count()) : json(nullptr)},
      {"covers", config_.charge_unmanaged ? "all" : "managed"},
      {"use", device_shares(now)},
      {"window_seconds_total", in_seconds(compute_.closed_total())},
      {"reason", device_.reason}};
}

void DeviceCoordinator::end_job(Job& job, const std::string& exit_reason, TimePoint now) {
  log(job.id, "departure", job.name + " " + exit_reason, now);
  if (!job.members.empty()) job.history.finish(sample_of(job, now));
  json costs = json::array();
  for (const Job& other : table_.jobs()) {
    if (other.job_class == JobClass::kGuaranteed) costs.push_back(cost_of(other));
  }
  json device = device_shares(now);
  json status = job_status(job, now);
  status["ended"] = true;
  status["exit_reason"] = exit_reason;
  status["job"]["active"] = false;
  status["members"] = json::array();
  status["lease"]["state"] = "returned";
  status["lease"]["granted_bytes"] = 0;
  status["lease"]["charged_bytes"] = 0;
  status["lease"]["beyond_budget_bytes"] = 0;
  for (const Member& member : job.members) ledger_.close(job.key(member));
  ledger_.set_unmanaged(job.id, Bytes{});
  if (job.job_class == JobClass::kOpportunistic) forget_speeds();
  Job past = table_.take(job.id);  // `job` is gone from here on
  past.members.clear();
  const TimePoint started = past.started;
  ended_.push_back(
      {std::move(status), started, now, std::move(past), std::move(costs), std::move(device)});
  if (ended_.size() > kEndedKept) ended_.pop_front();
  forget_ended(now);
  idle_since_ = now;
}

// Nothing is kept of a request: its ticket is the name of the peer that asked.
void DeviceCoordinator::handle(const PeerId& peer, const wire::MapRequest& message, TimePoint) {
  const Job* job = table_.find(JobId{message.job});
  if (job == nullptr) {
    send(peer, wire::Error{"unknown_job", "no job '" + message.job + "' on " + device_.id});
    return;
  }
  const Member* chosen = nullptr;
  for (const Member& member : job->members) {
    if (!member.registered || !member.is_managed()) continue;
    if (message.pid && *message.pid != member.pid) continue;
    if (chosen == nullptr || member.rank < chosen->rank) chosen = &member;
  }
  if (chosen == nullptr) {
    const std::string which = message.pid ? std::to_string(*message.pid) : "with managed memory";
    send(peer, wire::Error{"unknown_job", "job " + message.job + " has no process " + which});
    return;
  }
  send(chosen->peer, wire::MapRequest{job->id.str(), chosen->pid, to_ticket(peer)});
}

void DeviceCoordinator::handle(const PeerId& peer, const wire::MapReply& message, TimePoint now) {
  if (find_sender(peer, message.job_id, message.pid, now).member == nullptr) return;
  const PeerId asked = from_ticket(message.ticket);
  if (asked.empty()) {
    receive_malformed(peer, wire::BadMessage("malformed", "field 'ticket' is none of ours"));
    return;
  }
  wire::MapReply reply = message;
  reply.ticket.clear();
  send(asked, std::move(reply));
}

std::string DeviceCoordinator::problem_with(const JobId& id,
                                            const wire::SetRequest& message) const {
  const Job* const job = table_.find(id);
  if (job == nullptr) return "no job '" + id.str() + "' on " + device_.id;
  if (message.job_class) return problem_with_class(*job, message);
  const wire::TermsPatch& terms = message.terms;
  std::string problem = wire::problem_with(terms, job->job_class);
  if (problem.empty()) problem = problem_with(id, job->memory_class(), terms.memory, std::nullopt);
  return problem.empty() ? problem_with(id, job->job_class, std::nullopt, terms.share) : problem;
}

wire::SetReply DeviceCoordinator::set(const JobId& id, const wire::SetRequest& message,
                                      TimePoint now) {
  Job* const found = table_.find(id);
  if (std::string problem = problem_with(id, message); !problem.empty()) {
    return {id.str(), found == nullptr ? 0 : found->revision, wire::Outcome::kRefused,
            std::move(problem)};
  }
  Job& job = *found;
  std::vector<std::string> done;
  wire::Change change;
  change.terms = message.terms;
  change.terms.memory.reset();  // its processes are told their limits
  if (message.terms.memory) {
    (job.upgrading ? *job.upgrading : job.terms).memory = *message.terms.memory;
    rebalance(now);
    done.push_back("limit " + to_string(job.target) + " (" + job.target_reason + ")");
  }
  if (!wire::is_empty(change.terms)) {
    wire::apply(change.terms, job.terms);
    done.push_back(wire::describe(change.terms));
  }
  if (message.paused) {
    job.paused = *message.paused;
    change.paused = job.paused || job.parked();
    done.emplace_back(job.paused ? "paused" : "resumed");
    if (job.parked() && !job.paused) done.back() += ", and waits: " + job.stage_reason;
    forget_speeds();  // the others compute beside another number of jobs
  }
  if (!wire::is_empty(change.terms) || change.paused) {
    change.job_id = job.id.str();
    change.revision = ++job.revision;
    change.reason = "asked by the command line";
    for (const Member& member : job.members) send_to(member, change);
    update_shares(now);
  }
  std::string told = fmt::format("{}", fmt::join(done, "; "));
  log(job.id, "set", told, now);
  return {job.id.str(), job.revision, wire::Outcome::kApplied, std::move(told)};
}

}  // namespace commensal::node
