// SPDX-License-Identifier: Apache-2.0
// Which message belongs to which device, and what concerns several.
#include "coordinator/node/node_coordinator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "allocator/base/clock.h"

namespace commensal::node {
namespace {

using nlohmann::json;

/// Adds what another device's coordinator says of a job.
void merge_status(json& into, const json& other) {
  for (const char* section : {"lease", "memory"}) {
    for (const auto& [name, value] : other[section].items()) {
      const bool sum = value.is_number_unsigned() && into[section][name].is_number_unsigned();
      if (!sum || name == "revision") continue;
      into[section][name] = into[section][name].get<std::uint64_t>() + value.get<std::uint64_t>();
    }
  }
  for (const json& member : other["members"]) into["members"].push_back(member);
  for (const json& device : other["devices"]) into["devices"].push_back(device);
}

/// Where two devices have a process of a job, the one with the lower number speaks for it: first
/// ranks, then what started them; where they were first, then where else they are.
std::int64_t place_of(const Job& job) {
  constexpr std::int64_t kAfterRanks = std::int64_t{1} << 32U;
  std::int64_t place = INT64_MAX;
  for (const Member& member : job.members) {
    if (!job.trains(member)) continue;
    const std::int64_t number = member.role == "rank" ? member.rank : kAfterRanks;
    place = std::min(place, 2 * number + (member.first ? 0 : 1));
  }
  return place;
}

/// What a report says of another device than the first, as if that were the only one.
json part_of(const json& stats, const std::string& device) {
  json part = stats;
  json memory = json::object();
  const json all =
      stats.is_object() ? stats.value(json::json_pointer("/memory/devices"), json()) : json();
  for (const json& each : all.is_array() ? all : json::array()) {
    if (each.is_object() && each.value("device", json()) == device) memory = each;
  }
  if (part.is_object()) part["memory"] = std::move(memory);
  return part;
}

/// How a job stands on one of its devices.
json lease_on(const std::string& device, const json& status) {
  json told{{"device", device}};
  for (const char* field : {"granted_bytes", "charged_bytes", "beyond_budget_bytes", "held_bytes",
                            "unmanaged_bytes", "target_bytes", "state", "reason"}) {
    told[field] = status["lease"][field];
  }
  return told;
}

bool has_ranks(const Job& job) {
  return std::any_of(job.members.begin(), job.members.end(),
                     [](const Member& member) { return member.role == "rank"; });
}

}  // namespace

NodeCoordinator::NodeCoordinator(CoordinatorConfig config, Device host, std::int64_t pid,
                                 std::uint64_t start_ticks, TimePoint now, CoreTopology topology,
                                 FindDevice find)
    : config_(std::move(config)),
      pid_(pid),
      start_ticks_(start_ticks),
      started_(now),
      find_(std::move(find)),
      topology_(std::move(topology)) {
  devices_.push_back(
      std::make_unique<DeviceCoordinator>(config_, std::move(host), pid_, start_ticks_, now));
}

void NodeCoordinator::send(const PeerId& peer, wire::Message message) {
  outgoing_.push_back({peer, std::move(message)});
}

std::vector<Outgoing> NodeCoordinator::take_outgoing() {
  std::vector<Outgoing> all = std::exchange(outgoing_, {});
  for (const auto& device : devices_) {
    std::vector<Outgoing> part = device->take_outgoing();
    std::move(part.begin(), part.end(), std::back_inserter(all));
  }
  std::vector<Outgoing> replies = class_changes_.take_outgoing();
  std::move(replies.begin(), replies.end(), std::back_inserter(all));
  return all;
}

// --- who is where -------------------------------------------------------------------------------

DeviceCoordinator& NodeCoordinator::add_device(Device device, TimePoint now) {
  if (DeviceCoordinator* const known = find_device(device.id); known != nullptr) return *known;
  CoordinatorConfig config = config_;
  // Contexts, libraries and programs of others take memory of a GPU, too.
  config.charge_unmanaged = config.charge_unmanaged || device.kind == DeviceKind::kGpu;
  devices_.push_back(std::make_unique<DeviceCoordinator>(std::move(config), std::move(device), pid_,
                                                         start_ticks_, now));
  devices_.back()->take_cores(core_share_.cores, core_share_reason_, now);
  return *devices_.back();
}

DeviceCoordinator* NodeCoordinator::find_device(const std::string& id) const {
  const auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const auto& each) { return each->device().id == id; });
  return found == devices_.end() ? nullptr : found->get();
}

std::vector<DeviceCoordinator*> NodeCoordinator::devices_with(const JobId& job) const {
  std::vector<DeviceCoordinator*> found;
  for (const auto& device : devices_) {
    if (device->table().find(job) != nullptr) found.push_back(device.get());
  }
  return found;
}

std::vector<DeviceCoordinator*> NodeCoordinator::places_of(const JobId& id,
                                                           std::int64_t pid) const {
  std::vector<DeviceCoordinator*> places;
  for (DeviceCoordinator* const device : devices_with(id)) {
    const Member* const member = device->table().find(id)->member(pid);
    if (member == nullptr) continue;
    places.insert(member->first ? places.begin() : places.end(), device);
  }
  return places;
}

std::vector<const DeviceCoordinator*> NodeCoordinator::devices_of(const JobId& id,
                                                                  std::int64_t pid) const {
  const std::vector<DeviceCoordinator*> places = places_of(id, pid);
  return {places.begin(), places.end()};
}

// The host, for who is nowhere: there he is told so.
DeviceCoordinator& NodeCoordinator::where(const JobId& id, std::int64_t pid) const {
  const std::vector<DeviceCoordinator*> places = places_of(id, pid);
  return places.empty() ? *devices_.front() : *places.front();
}

DeviceCoordinator* NodeCoordinator::device_to_ask(const JobId& job) const {
  const auto found = devices_with(job);
  const auto lowest =
      std::min_element(found.begin(), found.end(), [&](const auto* a, const auto* b) {
        return place_of(*a->table().find(job)) < place_of(*b->table().find(job));
      });
  return lowest == found.end() ? nullptr : *lowest;
}

bool NodeCoordinator::has_jobs() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const auto& device) { return !device->table().jobs().empty(); });
}

bool NodeCoordinator::has_job(const JobId& job) const { return !devices_with(job).empty(); }

std::vector<const Job*> NodeCoordinator::jobs() const {
  std::vector<const Job*> all;
  for (const auto& device : devices_) {
    for (const Job& job : std::as_const(*device).table().jobs()) all.push_back(&job);
  }
  return all;
}

FoundJob NodeCoordinator::find_live(const std::string& id_or_name) const {
  std::vector<JobName> names;
  for (const Job* const job : jobs()) names.push_back({job->id, job->name});
  return find_job(names, id_or_name);
}

// --- messages -----------------------------------------------------------------------------------

template <typename Message>
void NodeCoordinator::hand_on(const PeerId& peer, const Message& message, TimePoint now) {
  if constexpr (requires {
                  message.pid + 0;
                  message.job_id;
                }) {
    DeviceCoordinator* device = &where(JobId{message.job_id}, message.pid);
    if constexpr (requires { message.device; }) {
      if (message.device != kHostId) device = find_device(message.device);
      if (device == nullptr) {
        send(peer, wire::Error{"unknown_job", "process " + std::to_string(message.pid) +
                                                  " of job '" + message.job_id +
                                                  "' is not registered on " + message.device});
        return;
      }
    }
    device->receive(peer, message, now);
  } else {
    host().receive(peer, message, now);  // which refuses it
  }
}

void NodeCoordinator::receive(const PeerId& peer, const wire::Message& message, TimePoint now) {
  std::visit(
      [&](const auto& m) {
        if constexpr (requires { handle(peer, m, now); }) {
          handle(peer, m, now);
        } else {
          hand_on(peer, m, now);
        }
      },
      message);
  update_classes(now);
}

void NodeCoordinator::receive_malformed(const PeerId& peer, const wire::BadMessage& problem) {
  ++malformed_total_;
  send(peer, wire::Error{problem.code(), problem.what()});
}

std::uint64_t NodeCoordinator::malformed_total() const {
  std::uint64_t total = malformed_total_;
  for (const auto& device : devices_) total += device->malformed_total();
  return total;
}

DeviceCoordinator* NodeCoordinator::find_or_add(const std::string& id, std::string& problem,
                                                TimePoint now) {
  if (DeviceCoordinator* const known = find_device(id); known != nullptr) return known;
  FoundDevice found = find_ != nullptr ? find_(id) : FoundDevice{{}, "GPUs are not managed here"};
  if (found.device) return &add_device(*std::move(found.device), now);
  problem = "no device '" + id + "': " + found.problem;
  return nullptr;
}

void NodeCoordinator::handle(const PeerId& peer, const wire::Register& message, TimePoint now) {
  const JobId job{message.job_id};
  std::vector<DeviceCoordinator*> used;
  std::vector<wire::UsedDevice> there;
  for (const wire::UsedDevice& each : message.devices) {
    // On a GPU that is not known yet: where its cores are.
    const std::string id = each.device.empty() ? kHostId : each.device;
    std::string problem;
    DeviceCoordinator* const to = find_or_add(id, problem, now);
    if (to == nullptr) send(peer, wire::Error{"no_device", problem, id});
    if (to == nullptr && used.empty()) return;
    if (to == nullptr) continue;
    used.push_back(to);
    there.push_back(each);
  }
  std::optional<Job> before;
  for (DeviceCoordinator* const device : devices_with(job)) {
    if (std::find(used.begin(), used.end(), device) != used.end()) continue;
    std::optional<Job> gone =
        device->member_moved(job, message.pid, used.front()->device().id, now);
    if (gone) before = std::move(gone);
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    DeviceCoordinator& to = *used[i];
    const bool is_new = to.table().find(job) == nullptr;
    wire::Register part = message;
    part.devices = {there[i]};
    std::optional<Held> held;
    if (const wire::Placement* const placed = expected_.find(job); placed != nullptr) {
      held = hold_to(*placed, part);
    }
    to.register_process(peer, part, held ? &*held : nullptr, i == 0, now);
    if (is_new) go_on(to, before, job, now);
    Job* const known = to.table().find(job);
    if (known == nullptr || known->member(message.pid) == nullptr) break;  // it was refused
  }
  update_expected(now);
  update_gangs(now);
}

// A job that is new to a device goes on there as it is elsewhere, or was until now.
void NodeCoordinator::go_on(DeviceCoordinator& to, const std::optional<Job>& before,
                            const JobId& job, TimePoint now) {
  const auto go_on_as = [&](const Job& elsewhere) {
    to.go_on_as(elsewhere);
    to.follow_class(elsewhere, now);
  };
  if (before) go_on_as(*before);
  for (const DeviceCoordinator* const device : devices_with(job)) {
    if (device != &to) go_on_as(*device->table().find(job));
  }
}

// One report tells of all devices of a process.
void NodeCoordinator::handle(const PeerId& peer, const wire::Stats& message, TimePoint now) {
  const JobId job{message.job_id};
  where(job, message.pid).receive(peer, message, now);
  for (DeviceCoordinator* const device : places_of(job, message.pid)) {
    if (device->table().find(job)->member(message.pid)->first) continue;
    wire::Stats part = message;
    part.stats = part_of(message.stats, device->device().id);
    device->receive(peer, part, now);
  }
}

void NodeCoordinator::handle(const PeerId& peer, const wire::StatusRequest& message,
                             TimePoint now) {
  send(peer, wire::StatusReply{status(message.job, now)});
}

// A job is changed on all its devices, or on none.
void NodeCoordinator::handle(const PeerId& peer, const wire::SetRequest& message, TimePoint now) {
  const FoundJob found = find_live(message.job);
  if (!found.id) {
    send(peer, wire::SetReply{message.job, 0, wire::Outcome::kRefused, found.problem});
    return;
  }
  const std::vector<DeviceCoordinator*> devices = devices_with(*found.id);
  for (DeviceCoordinator* const device : devices) {
    if (device->problem_with(*found.id, message).empty()) continue;
    send(peer, device->set(*found.id, message, now));  // refuses it, with the reason
    return;
  }
  if (message.job_class) return set_with_class(peer, *found.id, message, now);
  send(peer, set_on(devices, *found.id, message, now));
  update_gangs(now);
}

wire::SetReply NodeCoordinator::set_on(const std::vector<DeviceCoordinator*>& devices,
                                       const JobId& job, const wire::SetRequest& message,
                                       TimePoint now) {
  wire::SetReply all;
  for (DeviceCoordinator* const device : devices) {
    wire::SetReply reply = device->set(job, message, now);
    if (devices.size() > 1) reply.reason = device->device().id + ": " + reply.reason;
    if (!all.reason.empty()) reply.reason = all.reason + "; " + reply.reason;
    reply.revision = std::max(all.revision, reply.revision);
    all = std::move(reply);
  }
  return all;
}

// Memory, share, law and SLO are those of the new class; how threads run is set beside it.
void NodeCoordinator::set_with_class(const PeerId& peer, const JobId& job,
                                     const wire::SetRequest& message, TimePoint now) {
  const std::vector<DeviceCoordinator*> devices = devices_with(job);
  const bool is_so = std::all_of(devices.begin(), devices.end(), [&](const auto* device) {
    return std::as_const(*device).table().find(job)->job_class == *message.job_class;
  });
  wire::SetRequest rest = message;
  rest.job_class.reset();
  if (!is_so) rest.terms = wire::process_terms(rest.terms);
  const bool more = rest.paused || !wire::is_empty(rest.terms);
  const bool waits = !class_changes_.status(job).is_null();
  if (is_so && more && !waits) {  // of that class already: a change as any other
    send(peer, set_on(devices, job, rest, now));
    return update_gangs(now);
  }
  class_changes_.ask(
      peer, job, message, [this](const JobId& id) { return devices_with(id); }, now);
  if (more) (void)set_on(devices, job, rest, now);
  update_gangs(now);
  update_cores(now);
}

void NodeCoordinator::update_classes(TimePoint now) {
  class_changes_.update([this](const JobId& id) { return devices_with(id); }, now);
}

void NodeCoordinator::handle(const PeerId& peer, const wire::MapRequest& message, TimePoint now) {
  const FoundJob found = find_live(message.job);
  if (!found.id) {
    send(peer, wire::Error{"unknown_job", found.problem});
    return;
  }
  wire::MapRequest request = message;
  request.job = found.id->str();
  const bool known = message.pid && !places_of(*found.id, *message.pid).empty();
  DeviceCoordinator& device = known ? where(*found.id, *message.pid) : *device_to_ask(*found.id);
  device.receive(peer, request, now);
}

void NodeCoordinator::handle(const PeerId& peer, const wire::ExplainRequest& message,
                             TimePoint now) {
  const Told told = find_told(message.job);
  if (told.job == nullptr) {
    send(peer, wire::Error{"unknown_job", told.problem});
    return;
  }
  const double most = in_seconds(kHistory);
  if (!(message.seconds > 0.0 && message.seconds <= most)) {
    receive_malformed(
        peer,
        wire::BadMessage("malformed", "field 'seconds' must be above 0 and at most " +
                                          json(most).dump() + ": " + json(message.seconds).dump()));
    return;
  }
  const Duration last{std::llround(message.seconds * 1e9)};
  send(peer, wire::ExplainReply{explain(told, last, message.series, now)});
}

json NodeCoordinator::explain(const Told& told, Duration last, bool series, TimePoint now) const {
  return told.device->explain(*told.job, told.ended, last, series, now);
}

NodeCoordinator::Told NodeCoordinator::find_told(const std::string& id_or_name) const {
  const FoundJob live = find_live(id_or_name);
  if (live.id) {
    const DeviceCoordinator* const device = device_to_ask(*live.id);
    return {device, device->table().find(*live.id), nullptr, ""};
  }
  const auto has_name = [&](const Job& job) { return job.name == id_or_name; };
  std::string known;
  std::vector<JobName> added;
  const auto add = [&](const Job& job, const char* more) {
    const JobName name{job.id, job.name + more};
    if (std::find(added.begin(), added.end(), name) != added.end()) return;  // on another device
    added.push_back(name);
    known += (known.empty() ? "" : ", ") + name.id.str() + " (" + name.name + ")";
  };
  for (const Job* const job : jobs()) {
    if (has_name(*job)) return {nullptr, nullptr, nullptr, live.problem};  // more than one
    add(*job, "");
  }
  Told newest;
  for (const auto& device : devices_) {
    const std::deque<DeviceCoordinator::Ended>& ended = device->ended();
    for (std::size_t i = ended.size(); i-- > 0;) {
      const DeviceCoordinator::Ended& past = ended[i];
      if (!past.job) continue;
      add(*past.job, ", ended");
      if (past.job->id.str() != id_or_name && !has_name(*past.job)) continue;
      if (newest.job != nullptr && newest.ended->ended >= past.ended) continue;
      newest = {device.get(), &*past.job, &past, ""};
    }
  }
  if (newest.job != nullptr) return newest;
  return {nullptr, nullptr, nullptr,
          "no job '" + id_or_name + "' of the last ten minutes; " +
              (known.empty() ? "none is known" : "known: " + known)};
}

// --- what is seen -------------------------------------------------------------------------------

void NodeCoordinator::observe_held(const JobId& job, std::int64_t pid, Bytes held,
                                   const std::optional<std::string>& device) {
  DeviceCoordinator* const on = device ? find_device(*device) : &where(job, pid);
  if (on != nullptr) on->observe_held(job, pid, held);
}

void NodeCoordinator::observe_page(const JobId& job, std::int64_t pid, const PageReading& reading,
                                   TimePoint now) {
  for (DeviceCoordinator* const device : places_of(job, pid)) {
    const Member& member = *device->table().find(job)->member(pid);
    PageReading there = reading;
    if (!member.first) there.memory_wanted = Bytes{};  // the page's is that of the first device
    device->observe_page(job, pid, there, now);
  }
}

void NodeCoordinator::observe_cpu(const JobId& job, std::int64_t pid, const ThreadTimes& threads,
                                  std::optional<Duration> io_stalled, TimePoint now) {
  for (DeviceCoordinator* const device : places_of(job, pid)) {
    device->observe_cpu(job, pid, threads, io_stalled, now);
  }
}

void NodeCoordinator::observe_need(const JobId& job, const ThreadTimes& threads,
                                   const wire::CoreSet& allowed, TimePoint now) {
  for (DeviceCoordinator* const device : devices_with(job)) {
    device->observe_need(job, threads, allowed, now);
  }
}

void NodeCoordinator::observe_group(const JobId& job, const GroupOutcome& outcome) {
  for (DeviceCoordinator* const device : devices_with(job)) device->observe_group(job, outcome);
}

void NodeCoordinator::observe_use(const DeviceId& id, const JobId& job, JobUse use, TimePoint now) {
  DeviceCoordinator* const device = find_device(id.str());
  if (device != nullptr) device->observe_use(job, std::move(use), now);
}

void NodeCoordinator::observe_available(const DeviceId& id, Bytes available, TimePoint now,
                                        const std::map<std::int64_t, Bytes>& holders) {
  DeviceCoordinator* const device = find_device(id.str());
  if (device != nullptr) device->observe_available(available, holders, now);
}

void NodeCoordinator::observe_busy(const DeviceId& id, double share, TimePoint now) {
  DeviceCoordinator* const device = find_device(id.str());
  if (device != nullptr) device->observe_busy(share, now);
}

std::vector<LeaseKey> NodeCoordinator::take_timed() {
  std::vector<LeaseKey> all;
  for (const auto& device : devices_) {
    for (LeaseKey& key : device->take_timed()) {
      if (std::find(all.begin(), all.end(), key) == all.end()) all.push_back(std::move(key));
    }
  }
  return all;
}

void NodeCoordinator::member_gone(const JobId& job, std::int64_t pid, Departure departure,
                                  TimePoint now) {
  for (DeviceCoordinator* const device : places_of(job, pid)) {
    device->member_gone(job, pid, departure, now);
  }
  update_classes(now);
  update_gangs(now);
  update_cores(now);
}

// --- time ---------------------------------------------------------------------------------------

void NodeCoordinator::sample(TimePoint now) {
  for (const auto& device : devices_) device->sample(now);
  update_gangs(now);
}

void NodeCoordinator::take_placements(const std::vector<wire::Placement>& list, TimePoint now) {
  expected_.take(list, now);
  update_expected(now);
}

void NodeCoordinator::update_expected(TimePoint now) {
  expected_.update([this](const JobId& job) { return has_job(job); }, now);
  for (const auto& device : devices_) {
    device->set_claims(expected_.claims_on(device->device().id), now);
  }
}

void NodeCoordinator::tick(TimePoint now) {
  update_expected(now);
  for (const auto& device : devices_) device->tick(now);
  update_classes(now);
  update_gangs(now);
  update_cores(now);
}

bool NodeCoordinator::wants_sampling() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const auto& device) { return device->wants_sampling(); });
}

Duration NodeCoordinator::sampling_period(TimePoint now) const noexcept {
  Duration shortest = devices_.front()->sampling_period(now);
  for (const auto& device : devices_) {
    if (device->wants_sampling()) shortest = std::min(shortest, device->sampling_period(now));
  }
  return shortest;
}

TimePoint NodeCoordinator::next_sample() const noexcept {
  TimePoint next = TimePoint::max();
  for (const auto& device : devices_) next = std::min(next, device->next_sample());
  return next;
}

TimePoint NodeCoordinator::idle_since() const {
  TimePoint last = started_;
  for (const auto& device : devices_) last = std::max(last, device->idle_since());
  return last;
}

// Ranks on several devices are one gang: an order to close on one of them is one for all.
void NodeCoordinator::update_gangs(TimePoint now) {
  for (const auto& device : devices_) {
    for (const Job& job : device->table().jobs()) {
      if (job.job_class != JobClass::kOpportunistic || device_to_ask(job.id) != device.get()) {
        continue;
      }
      GangView view{now, job.gang.world_size, false, {}};
      const std::vector<DeviceCoordinator*> parts = devices_with(job.id);
      const bool any = std::any_of(parts.begin(), parts.end(), [&](const auto* part) {
        return has_ranks(*part->table().find(job.id));
      });
      for (DeviceCoordinator* const part : parts) {
        const Job& there = *part->table().find(job.id);
        if (!any || has_ranks(there)) part->add_ranks(there, view);  // else it only started them
      }
      std::sort(view.ranks.begin(), view.ranks.end(),
                [](const GangRank& a, const GangRank& b) { return a.rank < b.rank; });
      const std::string news = job.gang_keeper->update(view);
      if (!news.empty()) device->log(job.id, "gang", news, now);
    }
  }
}

void NodeCoordinator::update_cores(TimePoint now) {
  CoreShareInput input;
  input.now = now;
  input.cores = host().device().cores;
  for (const auto& device : devices_) device->add_needs(input);
  CoreShareDecision decision = decide_cores(input, core_share_, topology_);
  core_share_ = std::move(decision.state);
  core_share_reason_ = std::move(decision.reason);
  for (const auto& device : devices_) {
    device->take_cores(core_share_.cores, core_share_reason_, now);
  }
}

// --- status -------------------------------------------------------------------------------------

json NodeCoordinator::job_status(const JobId& id, TimePoint now) const {
  DeviceCoordinator* const first = device_to_ask(id);
  const auto status_on = [&](const DeviceCoordinator& device) {
    json status = device.job_status(*device.table().find(id), now);
    status["devices"] = {device.device().id};
    return status;
  };
  json status = status_on(*first);
  json leases = json::array({lease_on(first->device().id, status)});
  for (DeviceCoordinator* const other : devices_with(id)) {
    if (other == first) continue;
    const json there = status_on(*other);
    leases.push_back(lease_on(other->device().id, there));
    merge_status(status, there);
  }
  status["leases"] = std::move(leases);
  status["class_change"] = class_changes_.status(id);
  return status;
}

json NodeCoordinator::status(const std::string& job, TimePoint now) {
  const auto wanted = [&](const std::string& id, const std::string& name) {
    return job.empty() || job == id || job == name;
  };
  json jobs = json::array();
  json devices = json::array();
  double windows = 0.0;
  for (const auto& device : devices_) {
    json shown = device->device_status(now);
    windows += shown["window_seconds_total"].get<double>();
    shown["opportunistic_cpus"] = core_share_.cores.to_string();
    shown["opportunistic_cpus_reason"] = core_share_reason_;
    devices.push_back(std::move(shown));
    for (const Job& live : device->table().jobs()) {
      if (wanted(live.id.str(), live.name) && device_to_ask(live.id) == device.get()) {
        jobs.push_back(job_status(live.id, now));
      }
    }
  }
  std::map<std::pair<std::string, TimePoint>, std::size_t> ended_at;  // where in the list
  for (const auto& device : devices_) {
    for (const DeviceCoordinator::Ended& ended : device->ended()) {
      const json& identity = ended.status["job"];
      const auto id = identity["id"].get<std::string>();
      if (!wanted(id, identity["name"].get<std::string>())) continue;
      json leases = json::array({lease_on(device->device().id, ended.status)});
      const auto [at, first] = ended_at.try_emplace({id, ended.ended}, jobs.size());
      if (!first) {  // with a process that was on both devices
        jobs[at->second]["devices"].push_back(device->device().id);
        jobs[at->second]["leases"].push_back(std::move(leases[0]));
        continue;
      }
      jobs.push_back(ended.status);
      jobs.back()["devices"] = {device->device().id};
      jobs.back()["leases"] = std::move(leases);
      jobs.back()["started_seconds_ago"] = in_seconds(now - ended.started);
      jobs.back()["ended_seconds_ago"] = in_seconds(now - ended.ended);
    }
  }
  return json{{"schema", 1},
              {"coordinator",
               {{"instance", config_.instance},
                {"pid", pid_},
                {"version", config_.version},
                {"uptime_seconds", in_seconds(now - started_)},
                {"malformed_frames_total", malformed_total()},
                {"socket", config_.socket},
                {"slo", config_.compute.slo},
                {"trickle", config_.compute.trickle},
                {"window_seconds_total", windows}}},
              {"devices", std::move(devices)},
              {"jobs", std::move(jobs)},
              {"expected", expected_.status(job, now)}};
}

policies::NodeView NodeCoordinator::view(TimePoint now) const {
  policies::NodeView node{policies::NodeId{config_.instance}, now, {}};
  for (const auto& device : devices_) node.devices.push_back(device->view(now));
  return node;
}

}  // namespace commensal::node
