// SPDX-License-Identifier: Apache-2.0
// What users ask, and what they are told.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/job_json.h"
#include "coordinator/cluster/job_number.h"
#include "coordinator/cluster/plain_text.h"
#include "coordinator/cluster/request_field.h"
#include "coordinator/policies/nearest_name.h"
#include "coordinator/policies/one_kind.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

constexpr std::size_t kEndedShown = 1000;
constexpr std::int32_t kMostQuota = 1'000'000;

/// What others will read; without a name a job has its number.
void check_name(std::string_view what, const std::string& name) {
  try {
    check_plain_name(what, name);
  } catch (const std::invalid_argument& error) {
    throw RequestRefused("malformed", error.what());
  }
}

std::string reason_in(const json& request, const char* otherwise) {
  auto reason = field<std::string>(request, "reason", otherwise);
  try {
    check_plain_text("a reason", reason, kMostReason);
  } catch (const std::invalid_argument& error) {
    throw RequestRefused("malformed", error.what());
  }
  return reason;
}

/// "; did you mean ...?", if there is a name.
std::string guess(const std::string& written, const std::vector<std::string>& names) {
  const std::string nearest = policies::similar_name(written, names);
  return nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
}

json shown_transition(const Transition& line) {
  return {{"number", line.number},
          {"job", line.job.str()},
          {"at_ms", in_milliseconds(line.at)},
          {"from", to_string(line.from)},
          {"to", to_string(line.to)},
          {"attempt", line.attempt},
          {"reason", line.reason}};
}

json shown_places(const std::vector<DevicePlace>& placement) {
  json places = json::array();
  for (const DevicePlace& place : placement) {
    places.push_back({{"node", place.node}, {"device", place.device}});
  }
  return places;
}

}  // namespace

json ClusterCoordinator::answer(const json& request, TimePoint now) {
  now_ = now;
  const auto type = field<std::string>(request, "type");
  if (type == "submit") return submit(request);
  if (type == "queue") {
    json answer{{"jobs", json::array()}};
    queue(request, now,
          [&](const JobRecord&, json job) { answer["jobs"].push_back(std::move(job)); });
    return answer;
  }
  if (type == "explain") return explain(request);
  if (type == "cancel") return cancel(request);
  if (type == "resume") return resume(request);
  if (type == "logs") return logs(request);
  if (type == "nodes") return nodes();
  if (type == "state") return state();
  if (type == "health") return health();
  if (type == "backup") return back_up();
  if (type == "tenants") return tenants();
  if (type == "quota") return set_quota(request);
  if (type == "drain") return drain(request);
  if (type == "undrain") return undrain(request);
  if (type == "report_loss") return report_loss(request);
  if (type == "first_step") return first_step(request);
  if (type == "report_input") return report_input(request);
  if (type == "inputs") return inputs(request);
  if (type == "add_input") return add_input(request);
  if (type == "remove_input") return remove_input(request);
  throw RequestRefused("unknown_type", fmt::format("no request has the type \"{}\"", type));
}

json ClusterCoordinator::submit(const json& request) {
  JobSpec spec;
  try {
    spec = spec_from_json(field<json>(request, "job"));
  } catch (const std::invalid_argument& error) {
    throw RequestRefused("malformed", error.what());
  }
  if (spec.tenant.empty()) spec.tenant = "default";
  const auto name = field<std::string>(request, "request", "");
  // What was accepted stays so, whatever is the matter now: its sender has not heard it.
  const std::string tried_name = name.empty() ? "" : name + " (pre-run)";
  if (const auto known = store_.added(spec.tenant, name)) {
    json answer{{"id", known->str()}};
    if (const auto before = store_.added(spec.tenant, tried_name))
      answer["pre_run"] = before->str();
    return answer;
  }
  check(spec);
  const auto tried = pre_run_of(spec, request);
  if (!taken_) taken_ = engine_.highest_job();
  if (!tried) return {{"id", add(spec, name).str()}};
  const JobId before = add(*tried, tried_name);
  spec.after = before;
  return {{"id", add(spec, name).str()}, {"pre_run", before.str()}};
}

/// Adds a job that was looked at; a repeated request has the job of before.
JobId ClusterCoordinator::add(const JobSpec& spec, const std::string& request) {
  JobId id;
  try {
    id = store_.add(spec, request, wall_(), *taken_);
  } catch (const std::invalid_argument& error) {
    throw RequestRefused("refused", error.what());
  }
  wrote();
  const auto known = jobs_.find(job_number(id));
  if (known == jobs_.end()) {
    if (auto added = store_.job(id); added && !is_end(added->state)) {
      begins_to_wait(jobs_.emplace(job_number(id), *std::move(added)).first->second);
      submitted_[job_number(id)] = now_;
    }
  }
  return id;
}

void ClusterCoordinator::check_tenant(const std::string& tenant) const {
  if (tenants_.contains(tenant)) return;
  std::vector<std::string> names;
  names.reserve(tenants_.size());
  for (const auto& [name, record] : tenants_) names.emplace_back(name);
  throw RequestRefused(
      "unknown_tenant",
      fmt::format("unknown tenant \"{0}\"{1} ('commensal quota set {0} N' makes it)", tenant,
                  guess(tenant, names)));
}

void ClusterCoordinator::check(const JobSpec& spec) {
  if (!spec.name.empty()) check_name("the name of a job", spec.name);
  check_tenant(spec.tenant);
  if (spec.gpus < 1) {
    throw RequestRefused("refused",
                         fmt::format("a job has at least one device, not {}", spec.gpus));
  }
  const auto tenant = tenants_.find(spec.tenant);
  policies::DeviceKinds kinds;
  for (const EngineNode& node : nodes_) kinds.add(node.device_type, std::ssize(node.devices));
  const std::int64_t devices = kinds.gpus + kinds.cores;
  if (spec.gpus > devices && engine_problem_.empty()) {
    throw RequestRefused("refused", fmt::format("the job asks for {} and the cluster has {}",
                                                counted(spec.gpus), devices));
  }
  if (engine_problem_.empty()) {
    for (const std::string& lack : {policies::lack_of_one_kind(spec.gpus, kinds),
                                    lack_of_memory(spec, nodes_), lack_of_host(spec, nodes_)}) {
      if (!lack.empty()) throw RequestRefused("refused", lack);
    }
  }
  const auto& quota = tenant->second.quota;
  if (spec.asked == policies::AskedClass::kGuaranteed && quota && spec.gpus > *quota) {
    throw RequestRefused("refused",
                         fmt::format("a guaranteed job of {} is above the quota of tenant {}: {}",
                                     counted(spec.gpus), spec.tenant, *quota));
  }
  if (spec.after && !jobs_.contains(job_number(*spec.after)) && !store_.job(*spec.after)) {
    throw RequestRefused("unknown_job",
                         fmt::format("unknown job \"{}\" to start after", spec.after->str()));
  }
}

std::optional<std::string> ClusterCoordinator::tenant_of(const std::string& id) const {
  const JobId job{id};
  if (const auto found = jobs_.find(job_number(job)); found != jobs_.end()) {
    return found->second.spec.tenant;
  }
  const auto ended = store_.job(job);
  return ended ? std::optional{ended->spec.tenant} : std::nullopt;
}

JobEnd ClusterCoordinator::end_of(const JobId& id) const {
  if (const auto found = jobs_.find(job_number(id)); found != jobs_.end()) {
    const JobRecord& job = found->second;
    return is_end(job.state) ? JobEnd{false, job.changed} : JobEnd{true, std::nullopt};
  }
  const auto ended = store_.job(id);
  return ended ? JobEnd{false, ended->changed} : JobEnd{};
}

JobRecord ClusterCoordinator::find(const json& request) {
  const JobId id{field<std::string>(request, "id")};
  if (const auto found = jobs_.find(job_number(id)); found != jobs_.end()) return found->second;
  if (auto ended = store_.job(id)) return *std::move(ended);
  throw RequestRefused("unknown_job", fmt::format("unknown job \"{}\"", id.str()));
}

void ClusterCoordinator::queue(const json& request, TimePoint now,
                               const std::function<void(const JobRecord&, json)>& take) {
  now_ = now;
  const bool all = field<bool>(request, "all", false);
  refresh_estimates();
  if (all) {
    const std::vector<JobRecord> ended = store_.ended(kEndedShown);
    std::for_each(ended.rbegin(), ended.rend(),
                  [&](const JobRecord& job) { take(job, shown(job)); });
  }
  for (const auto& [number, job] : jobs_) {
    if (!is_end(job.state)) take(job, shown(job));
  }
}

json ClusterCoordinator::shown(const JobRecord& job) const {
  // A field at a time: a list of pairs would be made first.
  json answer = json::object();
  answer["id"] = job.id.str();
  answer["name"] = job.spec.name;
  answer["tenant"] = job.spec.tenant;
  answer["state"] = to_string(job.state);
  answer["reason"] = why(job);
  answer["asked"] = to_string(job.spec.asked);
  answer["gpus"] = job.spec.gpus;
  answer["attempt"] = job.attempt;
  answer["submitted_ms"] = in_milliseconds(job.submitted);
  answer["changed_ms"] = in_milliseconds(job.changed);
  answer["placement"] = shown_places(job.placement);
  answer["cancelling"] = is_being_ended(job);
  answer.update(to_json(job.spec.terms));
  if (is_placed(job.state)) answer["class"] = to_string(job.job_class);
  if (waits(job.state)) answer["estimate"] = estimate_of(job);
  if (flat_rule(job.spec) && is_placed(job.state)) answer["rule"] = rule_of(job);
  if (job.exit_code) answer["exit_code"] = *job.exit_code;
  return answer;
}

std::string ClusterCoordinator::why(const JobRecord& job) const {
  if (job.state != JobState::kQueued && job.state != JobState::kReserved) return job.reason;
  if (!engine_problem_.empty()) return engine_problem_;
  const Number number = job_number(job.id);
  if (const auto at = not_before_.find(number); at != not_before_.end()) return job.reason;
  if (!may_start(job)) {
    const auto before = jobs_.find(job_number(*job.spec.after));
    if (before == jobs_.end()) return fmt::format("starts after job {}", job.spec.after->str());
    const bool parked = before->second.state == JobState::kParked;
    return fmt::format("starts after {}{}", who_it_follows(before->second),
                       parked ? ", which is parked" : "");
  }
  if (begin_anew_ || !admitted_.contains(number)) return job.reason;
  return scheduler_.why_waiting(job);
}

json ClusterCoordinator::explain(const json& request) {
  const JobRecord job = find(request);
  refresh_estimates();
  json history = json::array();
  for (const Transition& line : store_.history(job.id)) history.push_back(shown_transition(line));
  return {{"job", shown(job)}, {"spec", to_json(job.spec)}, {"history", std::move(history)}};
}

json ClusterCoordinator::cancel(const json& request) {
  const JobRecord job = find(request);
  if (is_end(job.state)) {
    throw RequestRefused("refused",
                         fmt::format("job {} has ended: {}", job.id.str(), to_string(job.state)));
  }
  happen(job.id, {.kind = EventKind::kCancel,
                  .attempt = job.attempt,
                  .reason = reason_in(request, "cancelled by its user")});
  const auto before = job.spec.after ? jobs_.find(job_number(*job.spec.after)) : jobs_.end();
  if (before != jobs_.end() && before->second.spec.pre_run && !is_end(before->second.state)) {
    happen(before->second.id,
           {.kind = EventKind::kCancel,
            .attempt = before->second.attempt,
            .reason = fmt::format("job {}, whose pre-run it is, is cancelled", job.id.str())});
  }
  return {{"id", job.id.str()}, {"state", to_string(jobs_.at(job_number(job.id)).state)}};
}

json ClusterCoordinator::resume(const json& request) {
  const JobRecord job = find(request);
  if (job.state != JobState::kParked) {
    const bool soon = is_placed(job.state) && job.park_asked;
    throw RequestRefused(
        "refused",
        soon ? fmt::format("job {} is not parked yet: it is {}", job.id.str(), to_string(job.state))
             : fmt::format("job {} is not parked: it is {}", job.id.str(), to_string(job.state)));
  }
  happen(job.id, {.kind = EventKind::kResume,
                  .attempt = job.attempt,
                  .reason = reason_in(request, "resumed by its user")});
  return {{"id", job.id.str()}, {"state", to_string(jobs_.at(job_number(job.id)).state)}};
}

json ClusterCoordinator::logs(const json& request) {
  const JobRecord job = find(request);
  const auto attempt = field<std::uint32_t>(request, "attempt", job.attempt);
  return {{"id", job.id.str()},
          {"state", to_string(job.state)},
          {"attempt", attempt},
          {"files", engine_.logs({job.id, attempt})}};
}

json ClusterCoordinator::nodes() const {
  std::map<std::pair<std::string, std::int32_t>, json> jobs_on;
  for (const auto& [number, job] : jobs_) {
    if (!is_placed(job.state)) continue;
    for (const DevicePlace& place : job.placement) {
      jobs_on[{place.node, place.device}].push_back(
          {{"id", job.id.str()}, {"class", to_string(job.job_class)}});
    }
  }
  json nodes = json::array();
  for (const EngineNode& node : nodes_) {
    json devices = json::array();
    for (std::size_t i = 0; i < node.devices.size(); ++i) {
      const auto found = jobs_on.find({node.name, static_cast<std::int32_t>(i)});
      json on = found == jobs_on.end() ? json::array() : std::move(found->second);
      const Bytes memory = node.device_memory;
      devices.push_back({{"id", node.devices[i]},
                         {"type", node.device_type},
                         {"memory_bytes", memory.is_zero() ? json(nullptr) : json(memory.count())},
                         {"jobs", std::move(on)}});
    }
    const auto drained = drained_.find(node.name);
    const bool is_drained = drained != drained_.end();
    const auto avoided = health_.avoided(node.name, now_);
    json shown{{"name", node.name},
               {"state", !node.up     ? "down"
                         : is_drained ? "drained"
                         : avoided    ? "avoided"
                                      : "up"},
               {"reason", !node.up     ? node.reason
                          : is_drained ? drained->second.reason
                                       : avoided.value_or("")},
               {"cores", static_cast<double>(node.cpu_milli) / 1000},
               {"memory_mib", node.memory_mib},
               {"devices", std::move(devices)}};
    nodes.push_back(std::move(shown));
  }
  return {{"coordinator",
           {{"pid", config_.pid},
            {"engine", engine_.name()},
            {"policy", config_.policy},
            {"problem", engine_problem_},
            {"page", config_.page},
            {"page_token_file", config_.page_token_file}}},
          {"nodes", std::move(nodes)}};
}

json ClusterCoordinator::health() const {
  json health = config_.surroundings ? config_.surroundings() : json::object();
  health["time_ms"] = in_milliseconds(wall_());
  return {{"health", std::move(health)}};
}

json ClusterCoordinator::back_up() {
  if (config_.backups.empty()) {
    throw RequestRefused("refused", "this coordinator has no folder for copies of its store");
  }
  try {
    return {{"file", store_.back_up(config_.backups, wall_()).native()}};
  } catch (const StoreFailed& error) {
    // The store goes on; only the copy is not there.
    throw RequestRefused("unavailable", error.what());
  }
}

json ClusterCoordinator::picture(const PictureSize& size) {
  refresh_estimates();
  json placed = json::array();
  json parked = json::array();
  json waiting = json::array();
  const auto show = [this](json& into, std::size_t most, const JobRecord& job) {
    if (into.size() < most) into.push_back(shown(job));
  };
  for (const auto& [number, job] : jobs_) {
    if (is_placed(job.state)) show(placed, size.placed, job);
    if (job.state == JobState::kParked) show(parked, size.parked, job);
    if (waits(job.state)) show(waiting, size.waiting, job);
  }
  json jobs = std::move(placed);
  for (json& job : parked) jobs.push_back(std::move(job));
  for (json& job : waiting) jobs.push_back(std::move(job));
  for (const JobRecord& job : store_.ended(size.ended)) jobs.push_back(shown(job));
  json events = json::array();
  for (const Transition& line : store_.newest_events(size.events)) {
    events.push_back(shown_transition(line));
  }
  json picture = nodes();
  picture["summary"] = summary(picture["nodes"]);
  picture["jobs"] = std::move(jobs);
  picture["tenants"] = tenants()["tenants"];
  picture["events"] = std::move(events);
  return picture;
}

JobCounts ClusterCoordinator::counts() const {
  JobCounts counts;
  for (const auto& [number, job] : jobs_) {
    if (waits(job.state)) ++counts.waiting;
    if (!is_placed(job.state)) continue;
    ++(job.job_class == JobClass::kGuaranteed ? counts.guaranteed : counts.opportunistic);
  }
  return counts;
}

json ClusterCoordinator::summary(const json& nodes) const {
  std::map<std::pair<JobState, std::string>, int> counts;
  for (const JobState state : {JobState::kStarting, JobState::kRunning, JobState::kUpgrading}) {
    for (const JobClass job_class : {JobClass::kGuaranteed, JobClass::kOpportunistic}) {
      counts[{state, std::string{to_string(job_class)}}] = 0;
    }
  }
  for (const JobState state :
       {JobState::kSubmitted, JobState::kQueued, JobState::kReserved, JobState::kParked}) {
    counts[{state, "none"}] = 0;
  }
  int waiting = 0;
  std::optional<WallTime> oldest;
  for (const auto& [number, job] : jobs_) {
    if (is_end(job.state)) continue;
    const bool placed = is_placed(job.state);
    ++counts[{job.state, placed ? std::string{to_string(job.job_class)} : "none"}];
    if (!waits(job.state)) continue;
    ++waiting;
    oldest = std::min(oldest.value_or(job.submitted), job.submitted);
  }
  json jobs = json::array();
  for (const auto& [key, count] : counts) {
    jobs.push_back({{"state", to_string(key.first)}, {"class", key.second}, {"count", count}});
  }
  json devices{
      {"free", 0}, {"guaranteed", 0}, {"opportunistic", 0}, {"shared", 0}, {"unavailable", 0}};
  json machines{{"up", 0}, {"down", 0}, {"drained", 0}, {"avoided", 0}};
  const auto count_one = [](json& of) { of = of.get<int>() + 1; };
  for (const json& node : nodes) {
    count_one(machines[node["state"].get<std::string>()]);
    for (const json& device : node["devices"]) {
      const auto has = [&](const char* job_class) {
        return std::any_of(device["jobs"].begin(), device["jobs"].end(),
                           [&](const json& job) { return job["class"] == job_class; });
      };
      const bool guaranteed = has("guaranteed");
      const bool opportunistic = has("opportunistic");
      count_one(devices[guaranteed && opportunistic ? "shared"
                        : guaranteed                ? "guaranteed"
                        : opportunistic             ? "opportunistic"
                        : node["state"] == "up"     ? "free"
                                                    : "unavailable"]);
    }
  }
  return {{"jobs", std::move(jobs)},
          {"waiting", waiting},
          {"oldest_waiting_ms", oldest ? json(in_milliseconds(*oldest)) : json(nullptr)},
          {"devices", std::move(devices)},
          {"nodes", std::move(machines)}};
}

std::int32_t ClusterCoordinator::charged(const std::string& tenant) const {
  return std::accumulate(jobs_.begin(), jobs_.end(), 0, [&](std::int32_t sum, const auto& entry) {
    const JobRecord& job = entry.second;
    const bool counts =
        job.spec.tenant == tenant && is_placed(job.state) &&
        (job.job_class == JobClass::kGuaranteed || job.state == JobState::kUpgrading);
    return counts ? sum + job.spec.gpus : sum;
  });
}

json ClusterCoordinator::tenants() const {
  json tenants = json::array();
  for (const auto& [name, tenant] : tenants_) {
    std::int32_t opportunistic = 0;
    std::int32_t waiting = 0;
    for (const auto& [number, job] : jobs_) {
      if (job.spec.tenant != name || is_end(job.state)) continue;
      if (waits(job.state)) ++waiting;
      if (is_placed(job.state) && job.job_class == JobClass::kOpportunistic &&
          job.state != JobState::kUpgrading) {
        opportunistic += job.spec.gpus;
      }
    }
    tenants.push_back({{"name", name},
                       {"quota", tenant.quota ? json(*tenant.quota) : json(nullptr)},
                       {"guaranteed_devices", charged(name)},
                       {"opportunistic_devices", opportunistic},
                       {"waiting_jobs", waiting}});
  }
  return {{"tenants", std::move(tenants)}};
}

json ClusterCoordinator::set_quota(const json& request) {
  const auto name = field<std::string>(request, "tenant");
  // One of an earlier version may be called anything.
  if (!tenants_.contains(name)) check_name("the name of a tenant", name);
  TenantRecord tenant{.name = name, .quota = std::nullopt};
  if (const auto quota = request.find("quota"); quota != request.end() && !quota->is_null()) {
    tenant.quota = field<std::int32_t>(request, "quota", std::nullopt, Between{0, kMostQuota});
    if (const std::int32_t used = charged(name); *tenant.quota < used) {
      throw RequestRefused("refused",
                           fmt::format("quota below use: tenant {} has guaranteed jobs on "
                                       "{}, the quota would be {}",
                                       name, counted(used), *tenant.quota));
    }
  }
  const bool made = !tenants_.contains(name);
  store_.put(tenant);
  tenants_[name] = tenant;
  wrote();
  begin_anew_ = changed_ = true;
  return {{"tenant", name},
          {"quota", tenant.quota ? json(*tenant.quota) : json(nullptr)},
          {"made", made}};
}

void ClusterCoordinator::check_node(const std::string& name) const {
  std::vector<std::string> names;
  for (const EngineNode& node : nodes_) {
    if (node.name == name) return;
    names.emplace_back(node.name);
  }
  throw RequestRefused("unknown_node",
                       fmt::format("unknown node \"{}\"{}", name, guess(name, names)));
}

json ClusterCoordinator::drain(const json& request) {
  DrainedNode node{.node = field<std::string>(request, "node"),
                   .reason = reason_in(request, "drained by an operator"),
                   .since = wall_()};
  check_node(node.node);
  store_.put(node);
  drained_[node.node] = node;
  wrote();
  begin_anew_ = changed_ = true;
  return {{"node", node.node}, {"state", "drained"}};
}

json ClusterCoordinator::undrain(const json& request) {
  const auto name = field<std::string>(request, "node");
  check_node(name);
  store_.undrain(name);
  drained_.erase(name);
  health_.forgive(name);
  wrote();
  begin_anew_ = changed_ = true;
  return {{"node", name}, {"state", "up"}};
}

}  // namespace commensal::cluster
