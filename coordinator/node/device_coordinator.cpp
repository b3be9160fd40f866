// SPDX-License-Identifier: Apache-2.0
// What a device's coordinator does with the messages of its jobs.
#include "coordinator/node/device_coordinator.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "coordinator/node/percent.h"
#include "coordinator/wire/laws.h"
#include "coordinator/wire/pages.h"

namespace commensal::node {
namespace {

using namespace std::chrono_literals;
using policies::DeviceView;
using policies::JobView;

constexpr Duration kLease = 2s;
constexpr Duration kSampling = 20ms;
constexpr Duration kCalmSampling = 100ms;
constexpr Duration kCalmAfter = 1s;
constexpr std::uint64_t kLeastGrowth = 1U << 20U;
/// What the kernel shows beside a job's word is noise up to here.
constexpr Bytes kMeasuringError{32U << 20U};
/// Kept available on the machine: a part of the capacity, and at most so much.
constexpr std::uint64_t kReservePart = 32;
constexpr Bytes kMostReserve{256U << 20U};

/// On the page of who takes part and has no turn: long ago.
constexpr TimePoint kNoTurn{Duration{1}};
/// Of the 99th percentile of requests, where nobody asks for another: 1 % of it cannot be measured.
constexpr double kServingSlo = 0.1;
/// The law whose shares the controller sets, and the one that needs turns.
constexpr std::string_view kControlled = "gap";
constexpr std::string_view kTurns = "token_window";
constexpr const char* kElsewhere = "the class of its job was changed before it registered";

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

DeviceCoordinator::DeviceCoordinator(CoordinatorConfig config, Device device, std::int64_t pid,
                                     std::uint64_t start_ticks, TimePoint now)
    : config_(std::move(config)),
      device_(std::move(device)),
      pid_(pid),
      start_ticks_(start_ticks),
      started_(now),
      idle_since_(now),
      ledger_(device_.capacity, config_.confirm),
      compute_(config_.compute) {}

void DeviceCoordinator::send(const PeerId& peer, wire::Message message) {
  outgoing_.push_back({peer, std::move(message)});
}

std::vector<Outgoing> DeviceCoordinator::take_outgoing() { return std::exchange(outgoing_, {}); }

void DeviceCoordinator::receive(const PeerId& peer, const wire::Message& message, TimePoint now) {
  std::visit(
      [&](const auto& m) {
        if constexpr (requires { handle(peer, m, now); }) {
          handle(peer, m, now);
        } else {
          receive_malformed(
              peer, wire::BadMessage("unknown_type", "a coordinator does not take such a message"));
        }
      },
      message);
}

void DeviceCoordinator::receive_malformed(const PeerId& peer, const wire::BadMessage& problem) {
  ++malformed_total_;
  send(peer, wire::Error{problem.code(), problem.what()});
}

// --- registration -----------------------------------------------------------------------------

double DeviceCoordinator::minimum_shares_except(const JobId& job) const {
  double sum = 0.0;
  for (const Job& other : table_.jobs()) {
    if (other.id != job && other.job_class == JobClass::kOpportunistic)
      sum += other.terms.share.min;
  }
  return sum;
}

double DeviceCoordinator::slo_of(const Job& job) const {
  return job.terms.slo.value_or(job.serves() ? kServingSlo : config_.compute.slo);
}

Bytes DeviceCoordinator::floors_except(const JobId& job) const {
  Bytes sum;
  for (const Job& other : table_.jobs()) {
    if (other.id == job || other.memory_class() != JobClass::kGuaranteed) continue;
    if (other.managed_count() > 0) sum += other.memory_bounds().min;
  }
  return sum;
}

void DeviceCoordinator::update_floors() {
  for (const Job& job : table_.jobs()) {
    const bool guaranteed = job.memory_class() == JobClass::kGuaranteed;
    const Bytes floor = guaranteed ? job.memory_bounds().min : Bytes{};
    for (const Member& member : job.members) {
      ledger_.set_floor(job.key(member), job.part_of(floor, member));
    }
  }
}

std::string DeviceCoordinator::problem_with(const JobId& job, JobClass job_class,
                                            const std::optional<MemoryRange>& memory,
                                            const std::optional<ShareRange>& share) const {
  if (share) {
    if (std::string problem = wire::problem_with(*share); !problem.empty()) return problem;
    const double others = minimum_shares_except(job);
    if (job_class == JobClass::kOpportunistic && share->min > 0 && others + share->min > 1.0) {
      return "minimum shares add up to more than the device: " + number(share->min) + " and " +
             number(others) + " of other jobs";
    }
  }
  if (!memory) return "";
  if (std::string problem = wire::problem_with(*memory); !problem.empty()) return problem;
  const Bytes min = memory->min;
  if (min > device_.capacity) {
    return "memory minimum above the device: " + to_string(min) + " > " +
           to_string(device_.capacity);
  }
  const Bytes left = saturating_sub(device_.capacity, floors_except(job));
  if (job_class == JobClass::kGuaranteed && min > left) {
    return "its floor does not fit beside other floors: " + to_string(min) + " > " +
           to_string(left);
  }
  return "";
}

Job* DeviceCoordinator::admit_held(const PeerId& peer, const wire::Register& message,
                                   const Held* held, TimePoint now) {
  if (held == nullptr || held->reason.empty()) return admit(peer, message, now);
  Job* const job = admit(peer, held->message, now);
  if (job == nullptr) return nullptr;
  job->reason = held->reason + (job->reason.empty() ? "" : "; ") + job->reason;
  log(job->id, "placement", held->reason, now);
  return job;
}

Job* DeviceCoordinator::admit(const PeerId& peer, const wire::Register& message, TimePoint now) {
  Job job;
  job.id = JobId{message.job_id};
  job.name = message.name;
  job.tenant = message.tenant;
  job.job_class = job.asked_class = message.job_class;
  job.gang = {policies::GangId{message.gang}, message.epoch, message.world_size};
  job.started = now;
  job.terms = message.terms;
  // What it may have on a GPU that is not known yet is judged there.
  const bool placed = !message.devices.front().device.empty();
  const std::string problem = problem_with(
      job.id, message.job_class, placed ? std::optional(message.terms.memory) : std::nullopt,
      message.terms.share);
  if (!problem.empty()) {
    job.job_class = JobClass::kOpportunistic;
    job.reason = "runs as opportunistic without a minimum: " + problem;
    job.terms.memory.min = Bytes{};
    if (!wire::problem_with(message.terms.memory).empty()) job.terms.memory.max.reset();
    if (!wire::problem_with(message.terms.share).empty()) job.terms.share = {};
    job.terms.share.min = 0.0;
  }
  if (job.job_class != message.job_class) {  // these are of the class that it does not have
    job.terms.law.clear();
    job.terms.slo.reset();
  }
  if (const std::string dropped = wire::drop_unusable(job.terms, job.job_class); !dropped.empty()) {
    job.reason += (job.reason.empty() ? "" : "; ") + dropped;
  }
  if (job.terms.law.empty()) {
    job.terms.law = job.job_class == JobClass::kGuaranteed ? "open" : config_.law;
  }
  if (job.job_class == JobClass::kOpportunistic) forget_speeds();
  Job* added = table_.add(std::move(job), wire::kMaxDeviceEntries);
  if (added != nullptr) {
    log(added->id, "arrival",
        std::string{to_string(added->job_class)} + ", law " + added->terms.law +
            (added->reason.empty() ? "" : ": " + added->reason),
        now);
  } else {
    send(peer, wire::Error{"full",
                           "the device page has no entry left for job '" + message.job_id +
                               "': all " + std::to_string(wire::kMaxDeviceEntries) + " are in use",
                           device_.id});
  }
  return added;
}

void DeviceCoordinator::send_registered(const Job& job, const Member& member) {
  wire::Registered reply;
  reply.job_id = job.id.str();
  reply.coordinator = config_.instance;
  reply.coordinator_pid = pid_;
  reply.capacity_bytes = device_.capacity.count();
  reply.limit_bytes = ledger_.limit(job.key(member)).count();
  reply.share = job.terms.share;
  reply.law = job.terms.law;
  reply.job_class = job.job_class;
  reply.device = device_.id;
  reply.revision = job.revision;
  reply.reason = job.reason;
  if (reply.reason.empty() && !member.placed) reply.reason = "it has not used its device yet";
  if (reply.reason.empty() && !member.is_managed()) reply.reason = "listed only: " + member.role;
  if (reply.reason.empty() && job.job_class == JobClass::kGuaranteed) {
    for (const Job& other : table_.jobs()) {
      if (other.id == job.id || other.job_class != JobClass::kGuaranteed) continue;
      reply.reason =
          "beside another guaranteed job, '" + other.name +
          "': opportunistic jobs yield to both, and these two do not yield to each other";
      break;
    }
  }
  send(member.peer, reply);
}

void DeviceCoordinator::register_process(const PeerId& peer, const wire::Register& message,
                                         const Held* held, bool first, TimePoint now) {
  if (message.role != "main" && message.role != "rank" && message.role != "helper") {
    receive_malformed(peer, wire::BadMessage("malformed",
                                             "field 'role' must be \"main\", \"rank\" or "
                                             "\"helper\": '" +
                                                 message.role + "'"));
    return;
  }
  const JobId id{message.job_id};
  Job* job = table_.find(id);
  Member* member = job != nullptr ? job->member(message.pid) : nullptr;
  if (member != nullptr && member->start_ticks != message.start_ticks) {
    member_gone(id, message.pid, Departure::kReplaced, now);
    job = table_.find(id);
    member = nullptr;
  }
  const bool placed = !message.devices.front().device.empty();
  if (member != nullptr && member->role == message.role && member->placed == placed) {
    member->peer = peer;  // said again, perhaps on a new connection
    member->last_heard = now;
    member->first = first;
    send_registered(*job, *member);
    if (message.job_class != job->asked_class) tell_class(*job, *member, kElsewhere, now);
    tell_paused(*job, *member);
    return;
  }
  if (job == nullptr) job = admit_held(peer, message, held, now);
  if (job == nullptr) return;
  if (member == nullptr) member = &enlist(*job, message);
  member->role = message.role;  // a helper may have become a rank
  member->placed = placed;
  member->first = first;
  member->rank = message.rank;
  member->peer = peer;
  member->last_heard = now;
  job->gang.world_size = std::max(job->gang.world_size, message.world_size);
  // A first limit only ever grows from what it has, so that it needs no answer.
  const LeaseKey key = job->key(*member);
  const bool has_memory = !ledger_.charged(key).is_zero();
  member->registered = has_memory;
  if (has_memory) send_registered(*job, *member);
  rebalance(now);
  if (!has_memory) {
    member->registered = true;
    send_registered(*job, *member);
  }
  if (message.job_class != job->asked_class) tell_class(*job, *member, kElsewhere, now);
  tell_paused(*job, *member);
  update_shares(now);
}

void DeviceCoordinator::tell_paused(Job& job, const Member& member) {
  if (!job.paused && !job.parked()) return;
  wire::Change change;
  change.job_id = job.id.str();
  change.revision = ++job.revision;
  change.paused = true;
  if (job.parked()) change.parked = true;
  change.reason = job.parked() ? job.stage_reason : "the job is paused";
  send_to(member, std::move(change));
}

Member& DeviceCoordinator::enlist(Job& job, const wire::Register& message) {
  Member member;
  member.pid = message.pid;
  member.start_ticks = message.start_ticks;
  const wire::UsedDevice& used = message.devices.front();
  member.held = Bytes{used.held_bytes};
  job.revision = std::max(job.revision, used.revision);
  const Bytes limit{used.limit_bytes.value_or(used.held_bytes)};
  const bool has_memory = !member.held.is_zero() || !limit.is_zero();
  if (has_memory && device_.fraction > 0 && message.start_ticks < start_ticks_) {
    // It held this when the available memory was read, so it was not counted then.
    const double held = static_cast<double>(std::min(member.held, device_.machine).count());
    const Bytes counted{static_cast<std::uint64_t>(held * device_.fraction)};
    device_.capacity = std::min(device_.machine, device_.capacity + counted);
    ledger_.set_capacity(device_.capacity);
  }
  ledger_.open(job.key(member), member.held, limit, job.revision, Bytes{});
  job.members.push_back(std::move(member));
  return job.members.back();
}

// --- reports and answers ------------------------------------------------------------------------

DeviceCoordinator::Sender DeviceCoordinator::find_sender(const PeerId& peer,
                                                         const std::string& job_id,
                                                         std::int64_t pid, TimePoint now) {
  Job* job = table_.find(JobId{job_id});
  Member* member = job != nullptr ? job->member(pid) : nullptr;
  if (member == nullptr) {
    send(peer, wire::Error{"unknown_job", "process " + std::to_string(pid) + " of job '" + job_id +
                                              "' is not registered here"});
    return {};
  }
  member->peer = peer;
  member->last_heard = now;
  return {job, member};
}

void DeviceCoordinator::handle(const PeerId& peer, const wire::Stats& message, TimePoint now) {
  const auto [job, member] = find_sender(peer, message.job_id, message.pid, now);
  if (member == nullptr) return;
  const bool was_idle_class = job->in_idle_class();
  member->stats = message.stats;
  member->left = member->left || message.final;
  if (const auto held = member->told_held()) member->held = *held;
  if (was_idle_class != job->in_idle_class()) update_shares(now);
}

void DeviceCoordinator::handle(const PeerId& peer, const wire::Answer& message, TimePoint now) {
  const auto [job, member] = find_sender(peer, message.job_id, message.pid, now);
  if (member == nullptr) return;
  const wire::Outcome outcome = message.outcome;
  note_class_answer(*job, *member, message);
  if (outcome == wire::Outcome::kStale) {
    // It knows a newer change than this one: ours of before a restart, or this one said twice.
    job->revision = std::max(job->revision, message.revision);
    member->outcome = outcome;
    return;
  }
  if (outcome == wire::Outcome::kRefused) {
    member->outcome = outcome;
    member->answer_reason = message.reason;
    return;
  }
  const Bytes said{message.held_bytes};
  const Bytes shown = shown_or_said(*member, said);
  if (!ledger_.confirm(job->key(*member), message.revision, shown)) return;
  member->held = said;
  member->outcome = outcome;
  member->answer_reason = message.reason;
  if (shown > said && ledger_.shrinking(job->key(*member))) {
    member->answer_reason += (message.reason.empty() ? "" : "; ") +
                             std::string{"says that it holds "} + to_string(said) +
                             (is_host() ? ", the kernel shows " : ", the driver shows ") +
                             to_string(shown);
  }
  rebalance(now);
}

void DeviceCoordinator::handle(const PeerId& peer, const wire::AskMemory& message, TimePoint now) {
  const auto [job, member] = find_sender(peer, message.job_id, message.pid, now);
  if (member == nullptr) return;
  member->held = Bytes{message.held_bytes};
  if (!member->is_managed()) {
    send_to(*member,
            wire::Error{"no_memory", "a " + member->role + " of a job has no part of its limit"});
    return;
  }
  // More than the device is answered like all that does not fit; so the sum cannot overflow.
  const Bytes most = device_.capacity + Bytes{1};
  const Bytes total =
      std::min(most, std::min(most, member->held) + std::min(most, Bytes{message.needed_bytes}));
  member->ask = Member::Ask{total, now + config_.ask_timeout};
  rebalance(now);
}

// --- memory -------------------------------------------------------------------------------------

Bytes DeviceCoordinator::shown_or_said(const Member& member, Bytes said) const {
  // What it usually holds beside must be known, or all of that would look like memory kept back.
  if (!config_.prove_releases || !member.resident || !member.beside.known()) return said;
  const Bytes shown = saturating_sub(*member.resident, member.beside.value());
  return shown > said + kMeasuringError ? shown : said;
}

void DeviceCoordinator::observe_held(const JobId& id, std::int64_t pid, Bytes held) {
  Job* job = table_.find(id);
  Member* member = job != nullptr ? job->member(pid) : nullptr;
  if (member != nullptr) member->held = held;
}

void DeviceCoordinator::observe_standstill(const LeaseKey& process, std::string why,
                                           bool reachable) {
  Job* job = table_.find(process.job);
  Member* member = job != nullptr ? job->member(process.pid) : nullptr;
  if (member == nullptr) return;
  member->standstill = std::move(why);
  member->reachable = reachable;
}

std::vector<LeaseKey> DeviceCoordinator::outdated() const {
  std::vector<LeaseKey> processes;
  for (const Job& job : table_.jobs()) {
    for (const Member& member : job.members) {
      const LeaseKey key = job.key(member);
      if (member.registered && ledger_.outdated(key)) processes.push_back(key);
    }
  }
  return processes;
}

void DeviceCoordinator::recall(const LeaseKey& process, TimePoint now) {
  Job* job = table_.find(process.job);
  const Member* still = job != nullptr ? job->member(process.pid) : nullptr;
  if (still == nullptr) return;
  log(job->id, "memory",
      "process " + std::to_string(process.pid) + " is " + still->standstill +
          ": it is charged what it holds, and takes nothing before it has read its limit",
      now);
  // The page has one number for all processes of the job: each needs a revision from there on.
  const Revision first = job->revision + 1;
  for (Member& member : job->members) {
    if (member.is_managed())
      tell(*job, member, ledger_.limit(job->key(member)), job->target_reason, now);
  }
  job->recalled = first;
}

void DeviceCoordinator::settle_recall(const LeaseKey& process, Bytes taken, TimePoint now) {
  Job* job = table_.find(process.job);
  Member* member = job != nullptr ? job->member(process.pid) : nullptr;
  if (member == nullptr) return;
  const Bytes holds = shown_or_said(*member, taken);
  if (ledger_.confirm(process, ledger_.revision(process), holds)) member->held = taken;
  rebalance(now);
}

void DeviceCoordinator::observe_use(const JobId& id, JobUse use, TimePoint now) {
  Job* job = table_.find(id);
  if (job == nullptr) return;
  job->note_use(now, std::move(use));
  if (config_.charge_unmanaged) ledger_.set_unmanaged(id, job->unmanaged());
}

void DeviceCoordinator::observe_cpu(const JobId& id, std::int64_t pid, const ThreadTimes& threads,
                                    std::optional<Duration> io_stalled, TimePoint now) {
  Job* job = table_.find(id);
  Member* member = job != nullptr ? job->member(pid) : nullptr;
  if (member == nullptr) return;
  member->cpu.note(threads, pid);
  // What a job does before its first step is no part of its steps.
  const bool steps = member->page && member->page->step_number > 0;
  if (job->job_class != JobClass::kGuaranteed || !job->trains(*member)) return;
  member->pace.note(member->cpu.totals());
  if (steps) {
    member->time_use.note(now, member->cpu.totals(), io_stalled.value_or(Duration{}), was_quiet_);
  }
}

void DeviceCoordinator::observe_need(const JobId& id, const ThreadTimes& threads,
                                     const wire::CoreSet& allowed, TimePoint now) {
  Job* job = table_.find(id);
  if (job == nullptr) return;
  job->need.note(now, threads);
  job->allowed = allowed;
}

void DeviceCoordinator::observe_group(const JobId& id, const GroupOutcome& outcome) {
  if (Job* job = table_.find(id); job != nullptr) job->group = outcome;
}

std::vector<LeaseKey> DeviceCoordinator::take_timed() {
  std::vector<LeaseKey> processes;
  if (!std::exchange(stretch_changed_, false)) return processes;
  for (const Job& job : table_.jobs()) {
    if (job.job_class != JobClass::kGuaranteed) continue;
    for (const Member& member : job.members) {
      if (job.trains(member)) processes.push_back(job.key(member));
    }
  }
  return processes;
}

void DeviceCoordinator::observe_available(Bytes available,
                                          const std::map<std::int64_t, Bytes>& holders,
                                          TimePoint now) {
  available_ = available;
  Bytes used = holders.empty() ? ledger_.total_unmanaged() : Bytes{};
  Bytes leased;
  for (const Job& job : table_.jobs()) {
    for (const Member& member : job.members) {
      // Of what it says, as much as the kernel shows: what is not there is free, too.
      leased += std::min(
          {member.held, ledger_.charged(job.key(member)), member.resident.value_or(member.held)});
      const Bytes said = std::min(member.held, device_.capacity);
      const auto told = holders.find(member.pid);
      if (told != holders.end()) {
        used += std::min(told->second, device_.capacity);
      } else {
        used += holders.empty() ? said : said + member.beside.value();
      }
    }
  }
  const Bytes reserve = std::min(kMostReserve, Bytes{device_.capacity.count() / kReservePart});
  const Bytes usable = used + saturating_sub(available, reserve);
  physical_ = leased + saturating_sub(available, reserve);
  outside_.note(now, saturating_sub(device_.capacity, usable));
  ledger_.set_outside(outside_.value());
}

DeviceView DeviceCoordinator::view(TimePoint now) const {
  DeviceView device;
  device.id = DeviceId{device_.id};
  device.kind = to_string(device_.kind);
  device.now = now;
  device.capacity = device_.capacity;
  device.outside = ledger_.outside();
  device.cores = device_.cores;
  device.claimed = claimed();
  for (const Job& job : table_.jobs()) {
    if (job.managed_count() == 0) continue;  // its memory is elsewhere
    JobView view;
    view.id = job.id;
    view.tenant = TenantId{job.tenant};
    view.job_class = job.memory_class();
    view.gang = job.gang;
    view.memory = job.memory_bounds();
    view.share = job.terms.share;
    view.paused = job.paused;
    view.limit = job.target;
    for (const Member& member : job.members) {
      if (!member.is_managed()) continue;
      view.ranks.push_back({member.rank, ledger_.limit(job.key(member)), member.held});
      view.held += member.held;
      view.wanted += member.wanted();
      if (member.ask) view.asked = std::max(view.asked, member.ask->total * job.managed_count());
    }
    view.unmanaged = ledger_.unmanaged(job.id);
    view.lease = job.lease.lease();
    view.speeds = job.speeds.points();
    view.owed = job.owed;
    view.owed_since = job.owed_since;
    view.stage = job.stage;
    view.stage_since = job.stage_since;
    std::sort(view.ranks.begin(), view.ranks.end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
    device.jobs.push_back(std::move(view));
  }
  return device;
}

Bytes DeviceCoordinator::claimed() const {
  Bytes sum;
  for (const auto& [id, bytes] : claims_) {
    const Job* const job = table_.find(id);
    if (job != nullptr && job->managed_count() > 0) continue;  // its floor counts
    sum = std::min(device_.capacity, sum + std::min(device_.capacity, bytes));
  }
  return sum;
}

void DeviceCoordinator::set_claims(std::map<JobId, Bytes> claims, TimePoint now) {
  if (claims == claims_) return;
  claims_ = std::move(claims);
  rebalance(now);
}

void DeviceCoordinator::observe_jobs(TimePoint now) {
  update_floors();
  for (Job& job : table_.jobs()) {
    Bytes wanted;
    Bytes asked;
    Bytes owed;
    for (const Member& member : job.members) {
      const LeaseKey key = job.key(member);
      owed += saturating_sub(ledger_.charged(key), ledger_.limit(key));
      if (!member.is_managed()) continue;
      wanted += member.wanted();
      if (member.ask) asked = std::max(asked, member.ask->total * job.managed_count());
    }
    job.lease.note(now, std::max(wanted, asked));
    if (job.owed.is_zero()) job.owed_since = now;
    job.owed = owed;
  }
}

void DeviceCoordinator::change_stage(Job& job, const policies::StageChange& change, TimePoint now) {
  job.stage = change.stage;
  job.stage_since = now;
  job.stage_reason = change.reason;
  log(job.id, "memory", std::string{policies::to_string(change.stage)} + ": " + change.reason, now);
  wire::Change message;
  message.job_id = job.id.str();
  message.revision = ++job.revision;
  message.paused = job.paused || job.parked();
  message.parked = job.parked();
  message.reason = change.reason;
  for (const Member& member : job.members) {
    if (member.registered) send_to(member, message);
  }
}

void DeviceCoordinator::rebalance(TimePoint now) {
  observe_jobs(now);
  const policies::Plan plan = decide_memory(view(now), config_.memory);
  for (const auto& change : plan.stages) change_stage(*table_.find(change.job), change, now);
  for (const auto& change : plan.memory) {
    Job* job = table_.find(change.job);
    if (job->target != change.limit) {
      log(job->id, "memory", "limit " + to_string(change.limit) + ": " + change.reason, now);
    }
    job->target = change.limit;
    job->target_reason = change.reason;
  }
  apply_targets(now);
  take_last_resort(now);
  settle_asks(now);
}

Debtor DeviceCoordinator::debtor(const Job& job, TimePoint now) const {
  Debtor debtor;
  debtor.id = job.id;
  debtor.name = job.name;
  debtor.owed_for = now - job.owed_since;
  debtor.ending = job.told_to_end != TimePoint{};
  debtor.settled = debtor.stopped = debtor.reachable = true;
  for (const Member& member : job.members) {
    const LeaseKey key = job.key(member);
    const Bytes charged = ledger_.charged(key);
    debtor.charged += charged;
    debtor.reachable = debtor.reachable && member.reachable;
    if (!ledger_.shrinking(key)) continue;
    debtor.owed += charged - ledger_.limit(key);
    debtor.settled = debtor.settled && !ledger_.outdated(key);
    debtor.stopped = debtor.stopped && !member.standstill.empty();
  }
  return debtor;
}

ResortView DeviceCoordinator::resort_view(TimePoint now) const {
  ResortView view;
  for (const Job& job : table_.jobs()) {
    const bool guaranteed = job.memory_class() == JobClass::kGuaranteed;
    if (guaranteed) view.lacking += floor_lacks(job.id);
    Debtor one = debtor(job, now);
    if (one.owed.is_zero()) continue;
    one.reachable = one.reachable && !guaranteed;  // nobody stops or ends it
    view.debtors.push_back(std::move(one));
  }
  view.physical = saturating_sub(physical_, std::max(ledger_.total_charged(), device_.capacity));
  if (view.physical.count() < kLeastGrowth) view.physical = Bytes{};
  return view;
}

void DeviceCoordinator::take_last_resort(TimePoint now) {
  if (now < started_ + config_.recovery) return;
  const ResortView view = resort_view(now);
  ResortDecision decision = next_resort(view, config_.resort);
  Job* const debtor = decision.debtor ? table_.find(view.debtors[*decision.debtor].id) : nullptr;
  if (decision.resort == Resort::kBeyondBudget) grant_beyond_budget(decision.reason, now);
  if (decision.resort == Resort::kStop && !debtor->stopped) {
    debtor->stopped = true;
    log(debtor->id, "memory", decision.reason, now);
    signal_all(*debtor, ProcessSignal::kStop);
  }
  if (decision.resort == Resort::kEnd) end_for_others(*debtor, decision.reason, now);
  for (Job& job : table_.jobs()) {
    const bool needed = !view.lacking.is_zero() && job.memory_class() == JobClass::kOpportunistic;
    if (!needed) job.told_to_end = TimePoint{};
    if (!job.stopped || needed) continue;
    job.stopped = false;
    log(job.id, "memory", "goes on: no guaranteed job lacks its minimum any more", now);
    signal_all(job, ProcessSignal::kGoOn);
  }
  resort_ = std::move(decision);
}

void DeviceCoordinator::grant_beyond_budget(const std::string& reason, TimePoint now) {
  ledger_.set_physical(physical_);
  for (Job& job : table_.jobs()) {
    if (job.memory_class() != JobClass::kGuaranteed) continue;
    const Bytes lacked = floor_lacks(job.id);
    if (lacked.is_zero()) continue;
    for (Member& member : job.members) move_toward_target(job, member, false, now);
    if (floor_lacks(job.id) < lacked) log(job.id, "memory", reason, now);
  }
  ledger_.set_physical(Bytes{});
}

void DeviceCoordinator::end_for_others(Job& job, const std::string& reason, TimePoint now) {
  const bool noticed = job.told_to_end != TimePoint{};
  if (noticed && now - job.told_to_end < config_.resort.notice) return;
  log(job.id, "memory", noticed ? "killed: it did not end by itself; " + reason : reason, now);
  if (!noticed) job.told_to_end = now;
  job.end_reason = "ended by the coordinator: " + reason;
  signal_all(job, noticed ? ProcessSignal::kKill : ProcessSignal::kEnd);
  if (noticed || !std::exchange(job.stopped, false)) return;
  signal_all(job, ProcessSignal::kGoOn);  // so that it can end
}

void DeviceCoordinator::signal_all(const Job& job, ProcessSignal signal) {
  for (const Member& member : job.members) signals_.push_back({job.key(member), signal});
}

void DeviceCoordinator::apply_targets(TimePoint now) {
  for (const bool shrink : {true, false}) {
    if (!shrink && now < started_ + config_.recovery) return;
    for (const JobClass job_class : {JobClass::kGuaranteed, JobClass::kOpportunistic}) {
      for (Job& job : table_.jobs()) {
        if (job.memory_class() != job_class) continue;
        for (Member& member : job.members) move_toward_target(job, member, shrink, now);
      }
    }
  }
}

void DeviceCoordinator::move_toward_target(Job& job, Member& member, bool shrink, TimePoint now) {
  const Bytes target = job.part_of(job.target, member);
  const Bytes limit = ledger_.limit(job.key(member));
  if (shrink) {
    if (target >= limit) return;
    tell(job, member, target, job.target_reason, now);
    // It counts as stopped once that is seen anew: by then it is charged what it holds, where its
    // page allows that, so that no more than the rest is granted beyond the budget.
    member.standstill.clear();
    return;
  }
  if (target <= limit) return;
  const Bytes reachable = ledger_.reachable(job.key(member), target);
  // A part of the way is worth a message when it is a good part.
  const bool guaranteed = job.memory_class() == JobClass::kGuaranteed;
  const Bytes floor = guaranteed ? job.part_of(job.memory_bounds().min, member) : Bytes{};
  const Bytes worthwhile{limit < floor ? kLeastGrowth
                                       : std::max(kLeastGrowth, target.count() / 10)};
  const bool is_floor = limit < floor && reachable >= floor;
  if (reachable == target || reachable >= limit + worthwhile || is_floor) {
    tell(job, member, reachable, job.target_reason, now);
  }
}

void DeviceCoordinator::tell(Job& job, Member& member, Bytes limit, const std::string& reason,
                             TimePoint now) {
  ++job.revision;
  ledger_.tell(job.key(member), limit, job.revision);
  member.told_at = now;
  if (member.ask && limit >= member.ask->total) member.ask.reset();
  if (!member.registered) return;
  wire::Change change;
  change.job_id = job.id.str();
  change.revision = job.revision;
  change.limit_bytes = limit.count();
  change.reason = reason;
  send_to(member, std::move(change));
}

void DeviceCoordinator::settle_asks(TimePoint now) {
  for (Job& job : table_.jobs()) {
    for (Member& member : job.members) {
      if (!member.ask) continue;
      const Bytes total = member.ask->total;
      const Bytes limit = ledger_.limit(job.key(member));
      if (limit >= total) {  // it may have it already: say so
        tell(job, member, limit, "within its limit", now);
        continue;
      }
      const bool hopeless = job.part_of(job.target, member) < total;
      if (!hopeless && now < member.ask->deadline) continue;
      const std::string why =
          hopeless ? "it may have " + to_string(job.part_of(job.target, member)) + " (" +
                         job.target_reason + ")"
                   : "other jobs did not give it back in time; limit " + to_string(limit);
      member.ask.reset();
      send_to(member, wire::Error{"no_memory", "needs " + to_string(total) + ": " + why});
    }
  }
}

void DeviceCoordinator::retell(TimePoint now) {
  for (Job& job : table_.jobs()) {
    for (Member& member : job.members) {
      const LeaseKey key = job.key(member);
      const bool refused = member.outcome == wire::Outcome::kRefused;
      const Duration wait = refused ? 10 * config_.retell_after : config_.retell_after;
      const bool open = ledger_.shrinking(key) || member.outcome == wire::Outcome::kStale;
      if (member.registered && open && now - member.told_at >= wait) {
        tell(job, member, ledger_.limit(key), job.target_reason, now);
      }
    }
  }
}

// --- time ---------------------------------------------------------------------------------------

void DeviceCoordinator::observe_page(const JobId& id, std::int64_t pid, const PageReading& reading,
                                     TimePoint now) {
  Job* job = table_.find(id);
  Member* member = job != nullptr ? job->member(pid) : nullptr;
  if (member == nullptr) return;
  if (!member->page || member->page->heartbeat != reading.heartbeat) member->last_heard = now;
  const bool moved = !member->page || member->page->step_number != reading.step_number ||
                     member->page->waits != reading.waits;
  if (moved && job->job_class == JobClass::kGuaranteed) newest_move_ = now;
  if (!is_host() && job->job_class == JobClass::kGuaranteed) {
    member->gpu_time.note(reading.waits_shown, now);
  }
  member->page = reading;
}

bool DeviceCoordinator::wants_sampling() const {
  const auto has = [&](JobClass job_class) {
    return std::any_of(table_.jobs().begin(), table_.jobs().end(),
                       [&](const Job& job) { return job.job_class == job_class; });
  };
  return gives_turns_ || (has(JobClass::kGuaranteed) && has(JobClass::kOpportunistic));
}

Duration DeviceCoordinator::sampling_period(TimePoint now) const noexcept {
  const bool gangs = std::any_of(table_.jobs().begin(), table_.jobs().end(), [](const Job& job) {
    return job.job_class == JobClass::kOpportunistic && job.gang.world_size > 1;
  });
  const bool by_cores = std::any_of(table_.jobs().begin(), table_.jobs().end(), [](const Job& job) {
    return job.job_class == JobClass::kGuaranteed && job.signal == StepSignal::kCores;
  });
  const bool calm = !gives_turns_ && !compute_.window_closed() && !gangs && !by_cores &&
                    now - newest_move_ >= kCalmAfter;
  return calm ? kCalmSampling : kSampling;
}

TimePoint DeviceCoordinator::next_sample() const noexcept {
  return gives_turns_ && !turns_.turn().holder.empty() ? turns_.turn().until : TimePoint::max();
}

void DeviceCoordinator::sample(TimePoint now) { update_shares(now); }

void DeviceCoordinator::measure_speeds(TimePoint now) {
  const bool alone = std::none_of(table_.jobs().begin(), table_.jobs().end(), [](const Job& job) {
    return job.job_class == JobClass::kGuaranteed;
  });
  for (Job& job : table_.jobs()) {
    Bytes granted;
    for (const Member& member : job.members) granted += ledger_.limit(job.key(member));
    const Member* speaker = job.speaker();
    const bool steps = speaker != nullptr && speaker->page && speaker->page->step_number > 0;
    // Beside a guaranteed job the gate paces it, whatever memory it has.
    const bool steady = alone && steps && !job.paused && !job.parked() && job.owed.is_zero() &&
                        granted.count() + job.members.size() >= job.target.count();
    job.speeds.note(now, job.target, steps ? speaker->page->step_number : 0, steady);
  }
}

void DeviceCoordinator::forget_speeds() noexcept {
  for (Job& job : table_.jobs()) job.speeds.clear();
}

void DeviceCoordinator::tick(TimePoint now) {
  measure_speeds(now);
  rebalance(now);
  retell(now);
  update_shares(now);
  keep_history(now);
  forget_ended(now);
}

void DeviceCoordinator::log(const JobId& job, std::string kind, std::string text, TimePoint now) {
  log_.note({now, job, std::move(kind), std::move(text)});
}

void DeviceCoordinator::update_shares(TimePoint now) {
  ComputeView view;
  view.now = now;
  view.device = DeviceId{device_.id};
  view.queues = !is_host();
  for (Job& job : table_.jobs()) {
    if (job.job_class == JobClass::kOpportunistic) {
      // The kernel's idle class is about cores.
      view.opportunistic.push_back({job.id, job.terms.share, job.paused || job.parked(),
                                    is_host() && job.in_idle_class(), job.terms.law == kControlled,
                                    used_of_late(job, now), job.hand_overs});
      continue;
    }
    follow_signal(job, now);
    ComputeView::Guaranteed seen{job.id, 0, {}, slo_of(job), job.signal, job.gaps};
    if (const Member* slowest = job.slowest_on_cores(); slowest != nullptr) {
      seen.stretch_number = job.step_knowledge().stretches;
      seen.stretch_last = slowest->pace.length();
    }
    if (const Member* slowest = job.slowest(); slowest != nullptr) {
      seen.step_number = slowest->page->step_number;
      seen.step_last = slowest->page->step_last;
      seen.step_end = slowest->page->step_end;
    }
    view.guaranteed.push_back(seen);
  }
  const policies::Plan plan = compute_.update(view);
  const bool quiet = compute_.window_closed() || !wants_sampling();
  const bool changed = quiet != std::exchange(was_quiet_, quiet);
  stretch_changed_ = stretch_changed_ || changed;
  for (const auto& change : plan.shares) {
    Job* job = table_.find(change.job);
    // What a window closes for a moment is one line, not one for each job and way.
    if (job->share_now != change.share && !compute_.window_closed() && !changed) {
      log(job->id, "share",
          percent(job->share_now) + " -> " + percent(change.share) + ": " + change.reason, now);
    } else if (compute_.window_closed() && changed) {
      log(job->id, "window", change.reason, now);
    }
    job->share_now = change.share;
    job->share_reason = change.reason;
    GapDecision rules = compute_.gap_rules(change.job);
    if (!is_host()) rules.rules = with_queues(rules.rules, queue_users());
    if (rules.state.level != job->gap_rules.state.level) {
      log(job->id, "gaps", rules.reason, now);
    }
    job->gap_rules = std::move(rules);
  }
  update_turns(now);
}

std::size_t DeviceCoordinator::queue_users() const {
  std::size_t jobs = 0;
  bool turns = false;
  for (const Job& job : table_.jobs()) {
    if (job.job_class == JobClass::kGuaranteed || job.paused || job.parked()) continue;
    if (job.terms.law == kTurns) {
      turns = true;
    } else {
      ++jobs;
    }
  }
  return jobs + (turns ? 1 : 0);
}

void DeviceCoordinator::follow_signal(Job& job, TimePoint now) {
  const StepKnowledge known = job.step_knowledge();
  const StepSignal before = std::exchange(job.signal, choose_signal(known, job.signal));
  if (job.signal == before) return;
  std::string why;
  if (job.signal == StepSignal::kCores) {
    why = known.number == 0 ? "time on its cores: no step was seen"
                            : "time on its cores: what it shows as steps is too irregular";
  } else {
    why = job.signal == StepSignal::kTail ? "the 99th percentile of its requests" : "its steps";
  }
  log(job.id, "steps", "slowdown is measured by " + why, now);
}

bool DeviceCoordinator::is_closed(const Job& job) const {
  return job.paused || job.parked() || (job.terms.law == kControlled && compute_.window_closed());
}

void DeviceCoordinator::add_ranks(const Job& job, GangView& view) const {
  view.closed = view.closed || is_closed(job);
  view.world_size = std::max(view.world_size, job.gang.world_size);
  for (const Member& member : job.members) {
    if (!job.trains(member) || !member.first) continue;
    GangRank rank{member.pid, member.rank, member.page.has_value(), {}, 0, 0, 0, 0};
    if (member.page) {
      rank.heartbeat = member.page->heartbeat;
      rank.begun = member.page->collectives_begun;
      rank.ended = member.page->collectives_ended;
      rank.epoch = member.page->gang_epoch;
      rank.stand = member.page->gang_stand;
    }
    view.ranks.push_back(rank);
  }
}

void DeviceCoordinator::update_turns(TimePoint now) {
  std::vector<TurnClient> clients;
  double requested = 0.0;
  for (const Job& job : table_.jobs()) {
    if (job.job_class == JobClass::kGuaranteed || job.terms.law != kTurns) continue;
    TurnClient client{
        job.id, job.terms.share.min, job.terms.share.max, !job.paused && !job.parked(), true, {}};
    for (const Member& member : job.members) {
      if (job.trains(member) && member.page)
        client.burst = std::max(client.burst, member.page->burst);
    }
    requested += client.request;
    clients.push_back(std::move(client));
  }
  const bool anybody = !clients.empty();
  for (const Job& job : table_.jobs()) {
    if (!anybody || job.job_class != JobClass::kGuaranteed) continue;
    const bool waits = std::all_of(job.members.begin(), job.members.end(), [&](const Member& m) {
      return !job.trains(m) || (m.page && m.page->waits);
    });
    // It requests what the others do not.
    clients.push_back(
        {job.id, std::max(job.terms.share.min, 1.0 - requested), 1.0, !waits, false, {}});
  }
  // Who is alone, and may use all, needs no turns.
  gives_turns_ = clients.size() > 1 || (anybody && clients.front().limit < 1.0);
  if (gives_turns_) {
    (void)turns_.update(now, clients);
  } else {
    turns_ = TurnScheduler{};
  }
}

void DeviceCoordinator::add_needs(CoreShareInput& input) const {
  for (const Job& job : table_.jobs()) {
    if (job.job_class == JobClass::kOpportunistic) {
      input.opportunistic = true;
      continue;
    }
    // Its cores are counted where its processes are first.
    if (std::all_of(job.members.begin(), job.members.end(),
                    [](const Member& member) { return !member.first; })) {
      continue;
    }
    const bool by_waiting = !compute_.looks_alone();
    const auto loss = by_waiting ? compute_.waiting(job.id) : compute_.slowdown(job.id);
    input.guaranteed.push_back(
        {job.name, job.need.seen(), job.allowed, loss, slo_of(job), by_waiting});
  }
}

void DeviceCoordinator::take_cores(const wire::CoreSet& cores, const std::string& reason,
                                   TimePoint now) {
  if (cores_ == cores) return;
  cores_ = cores;
  for (const Job& job : table_.jobs()) {
    if (job.job_class == JobClass::kOpportunistic) log(job.id, "cores", reason, now);
  }
  compute_.surroundings_changed(now);
}

std::vector<PageEntry> DeviceCoordinator::page_entries(TimePoint now) const {
  std::vector<PageEntry> entries;
  const bool closed = compute_.window_closed();
  double slo = config_.compute.slo;
  bool any_slo = false;
  for (const Job& job : table_.jobs()) {
    if (job.job_class != JobClass::kGuaranteed) continue;
    slo = any_slo ? std::min(slo, slo_of(job)) : slo_of(job);
    any_slo = true;
  }
  for (const Job& job : table_.jobs()) {
    PageEntry entry;
    entry.slot = job.slot;
    entry.job_id = job.id.str();
    entry.job_class = job.job_class;
    entry.law = job.terms.law;
    entry.paused = job.paused || job.parked();
    entry.slo = slo;
    if (gives_turns_ && job.terms.law == kTurns && job.job_class == JobClass::kOpportunistic) {
      entry.turn_until = turns_.turn().holder == job.id ? turns_.turn().until : kNoTurn;
    }
    for (const Member& m : job.members) entry.memory_grant += ledger_.limit(job.key(m));
    entry.memory_recalled = job.recalled;
    if (job.job_class == JobClass::kOpportunistic) entry.cores = cores_;
    if (job.job_class == JobClass::kOpportunistic) {
      entry.gang_epoch = job.gang_keeper->page_epoch();
    }
    if (job.job_class == JobClass::kGuaranteed) {
      entry.share_min = job.terms.share.min;
      entry.share_max = job.terms.share.max;
      entry.lease_until = now + kLease;
    } else if (job.terms.law == kControlled) {
      entry.gap_rules = job.gap_rules.rules;
      entry.share_min = closed ? 0.0 : job.share_now;
      entry.share_max = closed ? 0.0 : job.terms.share.max;
    } else {
      // Of turns: what is queued when one ends runs in the next.
      if (!is_host() && job.terms.law == kTurns) entry.gap_rules = with_queues({}, queue_users());
      entry.share_min = job.terms.share.min;
      entry.share_max = job.terms.share.max;
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

// --- departure ----------------------------------------------------------------------------------

void DeviceCoordinator::member_gone(const JobId& id, std::int64_t pid, Departure departure,
                                    TimePoint now) {
  Job* job = table_.find(id);
  Member* member = job != nullptr ? job->member(pid) : nullptr;
  if (member == nullptr) return;
  const bool last = member->role != "helper" &&
                    std::none_of(job->members.begin(), job->members.end(), [&](const Member& m) {
                      return m.pid != pid && m.role != "helper";
                    });
  if (last) {
    std::string reason = member->left ? "ended" : "killed or crashed: gone without a last report";
    if (departure == Departure::kSilent) reason = "no sign of life";
    if (!job->end_reason.empty()) reason = job->end_reason;
    end_job(*job, reason, now);
  } else {
    ledger_.close(job->key(*member));
    job->gone_core_time += member->cpu.totals().run;
    std::erase_if(job->members, [&](const Member& m) { return m.pid == pid; });
    if (job->members.empty()) end_job(*job, "ended", now);
  }
  rebalance(now);
  update_shares(now);
}

std::optional<Job> DeviceCoordinator::member_moved(const JobId& id, std::int64_t pid,
                                                   const std::string& where, TimePoint now) {
  Job* job = table_.find(id);
  Member* member = job != nullptr ? job->member(pid) : nullptr;
  if (member == nullptr) return std::nullopt;
  log(id, "device", "process " + std::to_string(pid) + " is on " + where + " now", now);
  ledger_.close(job->key(*member));
  std::erase_if(job->members, [&](const Member& m) { return m.pid == pid; });
  std::optional<Job> gone;
  if (job->members.empty()) {
    ledger_.set_unmanaged(id, Bytes{});
    if (job->job_class == JobClass::kOpportunistic) forget_speeds();
    gone = table_.take(id);
    idle_since_ = now;
  }
  rebalance(now);
  update_shares(now);
  return gone;
}

void DeviceCoordinator::go_on_as(const Job& elsewhere) {
  Job* job = table_.find(elsewhere.id);
  if (job == nullptr) return;
  job->started = elsewhere.started;
  job->paused = elsewhere.paused;
  job->gang_keeper = elsewhere.gang_keeper;
}

}  // namespace commensal::node
