// SPDX-License-Identifier: Apache-2.0
// What the session does on the client's thread: answers to the coordinator, the own page, ticks.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "allocator/base/relaxed.h"
#include "torch_ext/runtime/idle_class.h"
#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

/// While the gate may have to close, the device is looked at this often.
constexpr Duration kWatchTick = std::chrono::milliseconds{20};
/// Otherwise: often enough for the heartbeat, rare enough to cost nothing.
constexpr Duration kQuietTick = std::chrono::milliseconds{200};
/// To the next border of a sampling window, at least.
constexpr Duration kShortestTick = std::chrono::milliseconds{1};
/// A limit waits this long where ops are running all the time before the client's thread applies it
/// itself: stopping threads makes it right anywhere.
constexpr Duration kWithoutQuiet = std::chrono::seconds{1};
/// Parking that could not save all of it is tried again after this long.
constexpr Duration kParkAgain = std::chrono::seconds{2};

/// Field 22 of /proc/self/stat; zero if it cannot be read.
std::uint64_t start_ticks() {
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  constexpr int kFieldsAfterName = 20;
  for (int i = 0; i < kFieldsAfterName && fields >> field; ++i) {
  }
  return field.empty() ? 0 : std::strtoull(field.c_str(), nullptr, 10);
}

std::string_view activity_name(const wire::JobPage& page, TimePoint now) {
  if (wire::present_wait(page, to_page_time(now)).waits) return "waiting";
  switch (static_cast<wire::Activity>(page.activity.load(kRelaxed))) {
    case wire::Activity::kUnknown: return "unknown";
    case wire::Activity::kBusy: return "busy";
    case wire::Activity::kWaiting: return "waiting";
    case wire::Activity::kPaused: return "paused";
  }
  return "unknown";
}

}  // namespace

std::string_view to_string(MemberRole role) noexcept {
  switch (role) {
    case MemberRole::kMain: return "main";
    case MemberRole::kRank: return "rank";
    case MemberRole::kHelper: return "helper";
  }
  return "main";
}

wire::Register Session::Impl::registration() {
  wire::Register hello;
  hello.job_id = config.job_id.str();
  hello.name = config.name;
  hello.tenant = config.tenant;
  const bool awaits = awaits_device.load();
  // A share below 1 needs a law that can hold it; the class's default may not.
  const std::string law = gate.stats().law;
  {
    const MutexLock lock(mutex);
    hello.job_class = asked_class;
    hello.terms = terms;
  }
  // Those that it has not in this class stay for the other one.
  (void)wire::drop_unusable(hello.terms, hello.job_class);
  hello.terms.memory.max = awaits ? config.terms.memory.max : first_device.limits.own_max();
  hello.terms.law = !hello.terms.law.empty() || law == "duty_cycle" ? law : "";
  hello.terms.share.min = std::min(hello.terms.share.min, hello.terms.share.max);
  hello.pid = ::getpid();
  hello.start_ticks = start_ticks();
  told_role = role.load();
  hello.role = to_string(told_role);
  hello.rank = rank.load();
  hello.world_size = world_size.load();
  // What a helper holds is under no limit of the coordinator's.
  const bool managed = told_role != MemberRole::kHelper;
  hello.devices.clear();
  for (const auto& device : devices.all()) {
    wire::UsedDevice& used = hello.devices.emplace_back();
    used.device = device->id();
    used.revision = device->limits.revision();
    if (!managed) continue;
    used.held_bytes = held_by(device->memory().stats()).count();
    if (used.revision == 0) continue;  // had no grant from a coordinator before
    if (const auto limit = device->limits.effective()) used.limit_bytes = limit->count();
  }
  return hello;
}

nlohmann::json Session::Impl::statistics() { return to_json(view()); }

void Session::Impl::answer(const LimitAnswer& limit_answer, const SessionDevice& device) {
  std::optional<JobClass> in_force;
  if (&device == &first_device) in_force = class_now();
  std::string name;
  {
    const MutexLock lock(ask_mutex);
    name = device.registered_as;
  }
  client.post(wire::Answer{.job_id = config.job_id.str(),
                           .pid = ::getpid(),
                           .revision = limit_answer.revision,
                           .outcome = limit_answer.outcome,
                           .done_bytes = limit_answer.done.count(),
                           .deferred_bytes = limit_answer.deferred.count(),
                           .held_bytes = held_by(device.memory().stats()).count(),
                           .reason = limit_answer.reason,
                           .device = name,
                           .job_class = in_force});
}

void Session::Impl::take_grant(SessionDevice& device, Bytes limit, Revision revision) {
  const bool is_first = &device == &first_device;
  const bool grows = !device.limits.allows(limit);
  const auto done = device.limits.grant(limit, revision, clock.now());
  if (is_first) claims.granted(limit, revision);
  if (done) answer(*done, device);
  if (is_first) mover.wake();
  {
    const MutexLock lock(ask_mutex);  // whoever waits has looked at the limit before, or will now
    if (grows) device.asked.again = TimePoint{};
  }
  ask_answered.notify_all();
}

void Session::Impl::follow_pauses() { observer.set_paused(devices.any_paused()); }

void Session::Impl::follow_held_steps() noexcept {
  const std::uint64_t now = gate.wants_callback() ? gate.callback_switches() : 0;
  if (held_switch.load(kRelaxed) == now) return;
  held_switch.store(0);
  held_step.store(steps.state().number);
  held_switch.store(now);
}

void Session::Impl::move_between_steps(const std::function<void()>& batch) {
  if (has_host_memory()) return batch();
  const std::uint64_t since = held_switch.load();
  const bool all_pass = since != 0 && steps.state().number > held_step.load() &&
                        gate.wants_callback() && gate.callback_switches() == since;
  if (!all_pass) return;
  const InItsStead acts(*this);
  move_and([&batch] { batch(); });
}

void Session::Impl::moved_ahead() noexcept {
  try {
    LimitKeeper& limits = first_device.limits;
    if (!limits.waiting_since() || held_by(allocator.stats()) > limits.effective()) return;
    // The limit is met already: this moves nothing, it only says so.
    const Moving here(*this);
    const auto owed = limits.after_safe_point(allocator.safe_point());
    if (owed) answer(*owed, first_device);
  } catch (const std::exception& error) {
    note(std::string("answering to a limit failed: ") + error.what());
  }
}

void Session::Impl::on_registered(const wire::Registered& registered) {
  SessionDevice* const device = devices.find(registered.device);
  if (device == nullptr) {
    note("the coordinator names a device that is not used: " + registered.device);
    return;
  }
  const bool is_first = device == &first_device;
  forget_parking(*device);  // a change that follows says so if it is to stay parked
  device->limits.start_over(registered.revision);
  if (is_first) {
    // Until it has said on which GPU its memory is, it is listed with the machine.
    device->placed = on_host() ? !awaits_device.load() : registered.device != kHostMemory;
  }
  if (has_grant(*device)) take_grant(*device, Bytes{registered.limit_bytes}, registered.revision);
  if (is_first) {
    use_registration(registered);
  } else if (!registered.reason.empty()) {
    note("on " + registered.device + ": " + registered.reason);
  }
  {
    const MutexLock lock(ask_mutex);
    if (is_first) known_role = told_role;
    device->known = device->placed;
    device->registered_as = registered.device;
  }
  ask_answered.notify_all();
}

void Session::Impl::use_registration(const wire::Registered& registered) {
  use_class(registered.job_class, registered.reason);
  if (!registered.law.empty()) use_law(registered.law);
  {
    const MutexLock lock(mutex);
    terms.share = registered.share;
  }
  // The trickle comes with the device page from now on.
  gate.set_share(0.0, registered.share.max);
}

// What is wrong changes nothing.
std::string Session::Impl::use_change(const wire::Change& change) {
  try {
    std::string refusal = wire::problem_with(change.terms, change.job_class.value_or(class_now()));
    if (refusal.empty() && change.job_class) refusal = change_class(change);
    if (!refusal.empty()) return refusal;
    use_terms(change.terms);
  } catch (const std::invalid_argument& wrong) {
    return wrong.what();
  }
  const MutexLock lock(mutex);
  reason = change.reason;
  return {};
}

void Session::Impl::on_change(const wire::Change& change) {
  SessionDevice* const device = devices.find(change.device);
  if (device == nullptr) {
    note("the coordinator names a device that is not used: " + change.device);
    return;
  }
  LimitAnswer done{.revision = change.revision,
                   .outcome = wire::Outcome::kApplied,
                   .done = {},
                   .deferred = {},
                   .reason = {}};
  if (const Revision newest = device->limits.revision(); change.revision < newest) {
    done.outcome = wire::Outcome::kStale;
    done.reason = "revision " + std::to_string(newest) + " is newer";
    return answer(done, *device);
  }
  if (device == &first_device) done.reason = use_change(change);
  if (!done.reason.empty()) {
    done.outcome = wire::Outcome::kRefused;
    return answer(done, *device);
  }
  device->paused = change.paused.value_or(device->paused);
  device->parked = change.parked.value_or(device->parked);
  if (change.parked) device->parked_at = TimePoint{};
  follow_pauses();
  gate.refresh();
  if (change.limit_bytes && has_grant(*device)) {
    take_grant(*device, Bytes{*change.limit_bytes}, change.revision);
  } else if (device->limits.note_revision(change.revision)) {
    answer(done, *device);
  }
}

void Session::Impl::on_set_reply(const wire::SetReply& reply) {
  const bool taken =
      reply.outcome == wire::Outcome::kApplied || reply.outcome == wire::Outcome::kDeferred;
  for (const auto& device : devices.all()) device->limits.own_bound_answered(taken);
  if (!taken) note("the coordinator did not take the job's own bound: " + reply.reason);
}

void Session::Impl::on_error(const wire::Error& error) {
  if (error.code == "unknown_job") throw std::runtime_error(error.what);  // register again
  SessionDevice* const device = devices.find(error.device.value_or(std::string(kHostMemory)));
  if (error.code == "no_memory" && device != nullptr) {
    {
      const MutexLock lock(ask_mutex);
      ++device->asked.refusals;
      device->asked.refusal = error.what;
    }
    ask_answered.notify_all();
    return;
  }
  note("the coordinator says " + error.code + ": " + error.what);
  if (!error.device || device == nullptr) return;
  {
    const MutexLock lock(ask_mutex);
    device->known = true;  // as far as it ever will be
    if (device == &first_device) {
      for (const auto& each : devices.all()) each->known = true;  // not looked at, then
    }
  }
  ask_answered.notify_all();
}

void Session::Impl::on_disconnected() {
  for (const auto& device : devices.all()) forget_parking(*device);
  ask_answered.notify_all();
  gate.refresh();
}

void Session::Impl::on_device_page(wire::MappedPage device_page) {
  const char* const id = device_page.as<wire::DevicePage>()->device_id;
  const SessionDevice* const device =
      devices.find(std::string_view(id, ::strnlen(id, wire::kIdSize)));
  if (device != nullptr && device != &first_device) {
    observer.add_device_page(std::move(device_page));
  } else {
    observer.set_device_page(std::move(device_page));
  }
  gate.refresh();
}

void Session::Impl::on_peer_added(std::int64_t pid, wire::MappedPage peer_page) {
  observer.add_peer(pid, std::move(peer_page));
  gate.refresh();
}

void Session::Impl::on_peer_gone(std::int64_t pid) {
  observer.remove_peer(pid);
  gate.refresh();
}

void Session::Impl::use_law(const std::string& name) {
  if (gate.stats().law != name) gate.set_law(make_pacing_law(name));
}

void Session::Impl::use_terms(const wire::TermsPatch& change) {
  {
    const MutexLock lock(mutex);
    wire::apply(change, terms);
  }
  if (change.law) use_law(*change.law);
  if (change.share) gate.set_share(0.0, change.share->max);
  if (!change.idle_class) return;
  follow_class();
  std::string why;
  {
    const MutexLock lock(mutex);
    if (in_idle_class != *change.idle_class) why = idle_class_reason;
  }
  if (!why.empty()) note("not all threads changed the idle class: " + why);
}

void Session::Impl::publish(TimePoint now) {
  const AllocatorStats stats = memory_stats();
  const StepState step = steps.state();
  const GateStats gate_stats = gate.stats();
  {
    const MutexLock lock(mutex);
    published = now;
  }
  first_device.note_need(stats, allocator.tags(), Bytes{}, step.number, now);
  for (const auto& device : devices.others()) {
    device->note_need(device->memory().stats(), {}, Bytes{}, step.number, now);
  }
  const Bytes want = resting.load() ? Bytes{} : first_device.wanted();
  page.memory_page.store(on_host() ? observer.watched_page() : 0);
  page.step_median_ns.store(static_cast<std::uint64_t>(step.median.count()), kRelaxed);
  page.step_confidence_ppm.store(static_cast<std::uint64_t>(step.confidence * 1e6), kRelaxed);
  page.memory_limit.store(stats.limit.count(), kRelaxed);
  page.memory_device.store(stats.device.count(), kRelaxed);
  page.memory_host.store(stats.host.count(), kRelaxed);
  page.memory_parked.store(stats.parked.count(), kRelaxed);
  page.memory_live.store(stats.live.count(), kRelaxed);
  page.memory_cached.store(stats.cached.count(), kRelaxed);
  page.memory_moved_total.store((stats.moved_out + stats.moved_in).count(), kRelaxed);
  page.memory_wanted.store(want.count(), kRelaxed);
  page.gate_closed_ns_total.store(static_cast<std::uint64_t>(gate_stats.closed_total.count()),
                                  kRelaxed);
  page.gate_ops_total.store(gate_stats.ops_gated, kRelaxed);
  const std::string_view state = gate_stats.state;
  const bool paused = state == "paused" || resting.load();
  // Only between busy and paused: a wait that begins or ends meanwhile wins.
  auto from = static_cast<std::uint64_t>(paused ? wire::Activity::kBusy : wire::Activity::kPaused);
  const auto to =
      static_cast<std::uint64_t>(paused ? wire::Activity::kPaused : wire::Activity::kBusy);
  if (page.activity.compare_exchange_strong(from, to)) {
    page.activity_since_ns.store(to_page_time(now), kRelaxed);
  }
  page.gate_open.store(state == "open" || state == "off" ? 1 : 0, kRelaxed);
  const wire::LawId law = wire::to_law(gate_stats.law).value_or(wire::LawId::kOpen);
  page.gate_law.store(static_cast<std::uint64_t>(law), kRelaxed);
  page.gate_busy_ns_total.store(static_cast<std::uint64_t>(gate_stats.busy_total.count()),
                                kRelaxed);
  page.gate_burst_ns.store(static_cast<std::uint64_t>(gate_stats.burst.count()), kRelaxed);
  page.gate_hand_overs_total.store(gate_stats.hand_overs, kRelaxed);
}

void Session::Impl::apply_waiting_limit(TimePoint now) {
  if (resting.load()) return;  // holds nothing; more room is no reason to come back
  const auto owed_since = devices.limit_waits_since();
  if (!owed_since && !memory_pending()) {
    work_since = TimePoint{};
    return;
  }
  if (work_since == TimePoint{}) work_since = now;
  const TimePoint last_safe{Duration{last_safe_point_ns.load(kRelaxed)}};
  const Duration wait = wait_for_safe_point(steps.state(), now, owed_since.has_value());
  if (now - std::max(work_since, last_safe) < wait) return;
  const bool quiet = gate.ops_in_flight() == 0 || gate.paused();
  if (!quiet && now - work_since < kWithoutQuiet) return;
  safe_point();
  if (devices.limit_waits_since() && !memory_pending()) move_memory();
  work_since = clock.now();
}

void Session::Impl::forget_parking(SessionDevice& device) {
  if (device.parked) device.paused = false;
  device.parked = false;
  follow_pauses();
}

void Session::Impl::park_if_asked(TimePoint now) {
  // Ops that were let in before the gate closed may still run; what they touch would come back. A
  // helper's ops go on, as the gate does not hold them.
  if (role.load() == MemberRole::kHelper || gate.ops_in_flight() != 0) return;
  for (const auto& device : devices.all()) {
    if (!device->parked || now - device->parked_at < kParkAgain) continue;
    DeviceMemory& memory = device->memory();
    const AllocatorStats stats = memory.stats();
    if ((stats.device + stats.host).is_zero() && !memory.work_pending()) continue;
    const Moving here(*this);
    try {
      const InItsStead acts(*this);
      move_and([&] {
        const LimitTicket ticket = memory.park();
        if (const auto owed = device->limits.after_safe_point(ticket)) answer(*owed, *device);
      });
    } catch (const std::exception& error) {
      note("parking on " + device->id() + " failed: " + error.what());
    }
    device->parked_at = clock.now();
  }
}

TimePoint Session::Impl::follow_sampling(TimePoint now) {
  auto* const enable = switch_sampling.load(std::memory_order_acquire);
  if (enable == nullptr || !config.sample_ops || role.load() == MemberRole::kHelper) {
    return TimePoint::max();
  }
  bool was_open = false;
  bool open = false;
  TimePoint due = TimePoint::max();
  {
    const MutexLock lock(mutex);
    const bool samples_now = job_class == JobClass::kGuaranteed && !ended.load();
    was_open = sample_windows.is_open();
    open = sample_windows.advance(now, samples_now);
    if (samples_now) due = sample_windows.due();
  }
  if (open != was_open) enable(open);
  return due;
}

void Session::Impl::end_sampling() noexcept {
  if (auto* const enable = switch_sampling.load(std::memory_order_acquire)) enable(false);
}

Duration Session::Impl::on_tick() {
  const TimePoint now = clock.now();
  page.heartbeat_ns.store(to_page_time(now), kRelaxed);
  // On a GPU memory moves while no op runs, of any thread. On a host threads are stopped instead.
  if (!on_host()) gate.expect_hold(!is_native() && memory_pending());
  gate.refresh();
  follow_held_steps();
  apply_waiting_limit(now);
  park_if_asked(now);
  follow_idleness(now);
  follow_rest(now);
  bool due = false;
  {
    const MutexLock lock(mutex);
    due = published == TimePoint{} || now - published >= kQuietTick;
  }
  if (due) {
    publish(now);
    follow_cores(now);
    follow_obstacle();
  }
  const TimePoint sample_at = follow_sampling(now);
  const bool watch = gate.stats().law != "open";
  const bool at_work = work_since != TimePoint{} || !returning.is_zero();
  const Duration tick = watch || at_work ? kWatchTick : kQuietTick;
  return sample_at <= now + tick ? std::max<Duration>(kShortestTick, sample_at - now) : tick;
}

void Session::Impl::follow_obstacle() {
  std::string why = allocator.stats().deferred_reason;
  if (why.empty() || why == deferred_for) return;
  deferred_for = std::move(why);
  tell_obstacle(false);
}

StatisticsView Session::Impl::view() const {
  StatisticsView view;
  const ClientStatus line = client.status();
  view.job.id = config.job_id.str();
  view.job.name = config.name;
  view.job.tenant = config.tenant;
  view.job.active = !in_child.load();
  view.job.role = to_string(role.load());
  view.job.rank = rank.load();
  view.job.world_size = world_size.load();
  view.job.pid = ::getpid();
  view.job.coordinator = line.instance;
  view.job.coordinator_pid = line.coordinator_pid;
  view.job.malformed_frames = line.malformed_frames;
  view.memory = memory_stats();
  view.memory_policy = is_native() ? "native" : to_string(config.memory_policy);
  view.devices = other_devices_view();
  view.tags = allocator.tags();
  view.kept = allocator.kept_in_place();
  view.memory_min = memory_minimum();
  view.memory_max = first_device.limits.own_max();
  view.revision = first_device.limits.revision();
  view.gate = gate.stats();
  view.step = steps.state();
  view.activity.state = resting.load()  ? "parked"
                        : gate.paused() ? "paused"
                                        : activity_name(page, clock.now());
  view.samples = samples.sums();
  view.activity.waits = page.waits_total.load(kRelaxed);
  view.activity.waited = Duration{static_cast<Duration::rep>(page.wait_ns_total.load(kRelaxed))};
  view.activity.typical = Duration{static_cast<Duration::rep>(page.wait_typical_ns.load(kRelaxed))};
  view.activity.phase =
      wire::to_string(static_cast<wire::GapPhase>(page.wait_phase.load(kRelaxed)));
  view.activity.gaps = activity.gaps();
  if (const std::string smaller = allocator.reservation_notes(); !smaller.empty()) {
    view.notes.push_back(smaller);
  }
  if (const std::string no_tier = source->host_tier_reason(); !no_tier.empty()) {
    view.notes.push_back("no slower tier: " + no_tier);
  }
  view.cores = cores_view();
  view.multiprocessors = multiprocessors_view();
  const MutexLock lock(mutex);
  view.job.job_class = to_string(job_class);
  view.job.reason = line.connected ? reason : line.reason;
  view.wanted = resting.load() ? Bytes{} : first_device.wanted();
  view.notes.insert(view.notes.end(), notes.begin(), notes.end());
  view.idle_class = in_idle_class;
  view.sample_windows = sample_windows.windows();
  view.sampled = sample_windows.total();
  view.idle_class_reason = idle_class_reason;
  return view;
}

}  // namespace commensal
