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
  hello.terms.memory.max = awaits ? config.terms.memory.max : limits.own_max();
  hello.terms.law = !hello.terms.law.empty() || law == "duty_cycle" ? law : "";
  hello.terms.share.min = std::min(hello.terms.share.min, hello.terms.share.max);
  hello.pid = ::getpid();
  hello.start_ticks = start_ticks();
  told_role = role.load();
  hello.role = to_string(told_role);
  if (!on_host() || awaits) {
    const MutexLock lock(ask_mutex);
    hello.device = device_id;
  }
  hello.rank = rank.load();
  hello.world_size = world_size.load();
  hello.revision = limits.revision();
  // What a helper holds is under no limit of the coordinator's.
  const bool managed = told_role != MemberRole::kHelper;
  if (managed) hello.held_bytes = held_by(memory_stats()).count();
  if (managed && hello.revision != 0) {  // had a grant from a coordinator before
    if (const auto limit = limits.effective()) hello.limit_bytes = limit->count();
  }
  for (const FurtherMemory* const more : further()) {
    if (!hello.further) hello.further.emplace();
    wire::FurtherDevice& there = hello.further->emplace_back();
    there.device = more->id;
    there.held_bytes = held_by(more->memory.stats()).count();
    there.revision = more->limits.revision();
    if (there.revision == 0) continue;
    if (const auto limit = more->limits.effective()) there.limit_bytes = limit->count();
  }
  return hello;
}

nlohmann::json Session::Impl::statistics() { return to_json(view()); }

void Session::Impl::answer(const LimitAnswer& limit_answer, const FurtherMemory* more) {
  const AllocatorStats stats = more != nullptr ? more->memory.stats() : memory_stats();
  std::optional<JobClass> in_force;
  if (more == nullptr) in_force = class_now();
  client.post(wire::Answer{.job_id = config.job_id.str(),
                           .pid = ::getpid(),
                           .revision = limit_answer.revision,
                           .outcome = limit_answer.outcome,
                           .done_bytes = limit_answer.done.count(),
                           .deferred_bytes = limit_answer.deferred.count(),
                           .held_bytes = held_by(stats).count(),
                           .reason = limit_answer.reason,
                           .device = more != nullptr ? std::optional(more->id) : std::nullopt,
                           .job_class = in_force});
}

void Session::Impl::take_grant(Bytes limit, Revision revision, FurtherMemory* more) {
  LimitKeeper& bound = more != nullptr ? more->limits : limits;
  const bool grows = !bound.allows(limit);
  const auto done = bound.grant(limit, revision, clock.now());
  if (more == nullptr) claims.granted(limit, revision);
  if (done) answer(*done, more);
  if (more == nullptr) mover.wake();
  {
    const MutexLock lock(ask_mutex);  // whoever waits has looked at the limit before, or will now
    if (grows) (more != nullptr ? more->asked : asked).again = TimePoint{};
  }
  ask_answered.notify_all();
}

void Session::Impl::further_registered(FurtherMemory& more, const wire::Registered& registered) {
  more.paused = more.parked = false;  // a change that follows says so if it is to stay so
  follow_pauses();
  more.limits.start_over(registered.revision);
  if (told_role != MemberRole::kHelper) {
    take_grant(Bytes{registered.limit_bytes}, registered.revision, &more);
  }
  if (!registered.reason.empty()) note("on " + more.id + ": " + registered.reason);
  {
    const MutexLock lock(ask_mutex);
    more.known = true;
  }
  ask_answered.notify_all();
}

// How the job is paced is said by the first device's coordinator.
void Session::Impl::further_changed(FurtherMemory& more, const wire::Change& change) {
  if (change.revision < more.limits.revision()) {
    answer({.revision = change.revision,
            .outcome = "stale",
            .done = {},
            .deferred = {},
            .reason = "revision " + std::to_string(more.limits.revision()) + " is newer"},
           &more);
    return;
  }
  more.paused = change.paused.value_or(more.paused);
  more.parked = change.parked.value_or(more.parked);
  follow_pauses();
  gate.refresh();
  if (change.limit_bytes) {
    take_grant(Bytes{*change.limit_bytes}, change.revision, &more);
  } else if (more.limits.note_revision(change.revision)) {
    answer({.revision = change.revision,
            .outcome = "applied",
            .done = {},
            .deferred = {},
            .reason = {}},
           &more);
  }
}

void Session::Impl::follow_pauses() {
  bool any = pause_asked;
  for (const FurtherMemory* const more : further()) any = any || more->paused;
  observer.set_paused(any);
}

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
    if (!limits.waiting_since() || held_by(allocator.stats()) > limits.effective()) return;
    // The limit is met already: this moves nothing, it only says so.
    const Moving here(*this);
    if (const auto owed = limits.after_safe_point(allocator.safe_point())) answer(*owed);
  } catch (const std::exception& error) {
    note(std::string("answering to a limit failed: ") + error.what());
  }
}

void Session::Impl::on_registered(const wire::Registered& registered) {
  if (FurtherMemory* const more = further(registered.device); more != nullptr) {
    further_registered(*more, registered);
    return;
  }
  forget_parking();  // a change that follows says so if it is to stay parked
  limits.start_over(registered.revision);
  // Until it has said on which GPU its memory is, it is listed with the machine.
  const bool told_gpu = registered.device.value_or(std::string(kHostMemory)) != kHostMemory;
  placed = on_host() ? !awaits_device.load() : told_gpu;
  if (has_grant()) take_grant(Bytes{registered.limit_bytes}, registered.revision);
  use_class(registered.job_class, registered.reason);
  if (!registered.law.empty()) use_law(registered.law);
  {
    const MutexLock lock(mutex);
    terms.share = registered.share;
  }
  // The trickle comes with the device page from now on.
  gate.set_share(0.0, registered.share.max);
  {
    const MutexLock lock(ask_mutex);
    known_role = told_role;
    known_placed = placed;
  }
  ask_answered.notify_all();
}

void Session::Impl::on_change(const wire::Change& change) {
  if (change.device) {
    FurtherMemory* const more = further(change.device);
    if (more != nullptr) further_changed(*more, change);
    if (more == nullptr) note("the coordinator names a device that is not used: " + *change.device);
    return;
  }
  if (change.revision < limits.revision()) {
    answer({.revision = change.revision,
            .outcome = "stale",
            .done = {},
            .deferred = {},
            .reason = "revision " + std::to_string(limits.revision()) + " is newer"});
    return;
  }
  std::string refusal;
  try {
    // What is wrong changes nothing.
    refusal = wire::problem_with(change.terms, change.job_class.value_or(class_now()));
    if (refusal.empty() && change.job_class) refusal = change_class(change);
    if (refusal.empty()) use_terms(change.terms);
  } catch (const std::invalid_argument& wrong) {
    refusal = wrong.what();
  }
  if (!refusal.empty()) {
    answer({.revision = change.revision,
            .outcome = "refused",
            .done = {},
            .deferred = {},
            .reason = refusal});
    return;
  }
  pause_asked = change.paused.value_or(pause_asked);
  follow_pauses();
  if (change.parked) {
    park_asked = *change.parked;
    parked_at = TimePoint{};
  }
  gate.refresh();
  {
    const MutexLock lock(mutex);
    reason = change.reason;
  }
  if (change.limit_bytes && has_grant()) {
    take_grant(Bytes{*change.limit_bytes}, change.revision);
  } else if (limits.note_revision(change.revision)) {
    answer({.revision = change.revision,
            .outcome = "applied",
            .done = {},
            .deferred = {},
            .reason = {}});
  }
}

void Session::Impl::on_set_reply(const wire::SetReply& reply) {
  const bool taken = reply.outcome == "applied" || reply.outcome == "deferred";
  limits.own_bound_answered(taken);
  for (FurtherMemory* const more : further()) more->limits.own_bound_answered(taken);
  if (!taken) note("the coordinator did not take the job's own bound: " + reply.reason);
}

void Session::Impl::on_error(const wire::Error& error) {
  if (error.code == "unknown_job") throw std::runtime_error(error.what);  // register again
  FurtherMemory* const more = further(error.device);
  if (error.code == "no_memory") {
    {
      const MutexLock lock(ask_mutex);
      AskedMemory& about = more != nullptr ? more->asked : asked;
      ++about.refusals;
      about.refusal = error.what;
    }
    ask_answered.notify_all();
    return;
  }
  note("the coordinator says " + error.code + ": " + error.what);
  if (error.code != "no_device" && more == nullptr) return;
  {
    const MutexLock lock(ask_mutex);
    (more != nullptr ? more->known : known_placed) = true;  // as far as it ever will be
    if (more == nullptr) {
      for (FurtherMemory* const each : further()) each->known = true;  // not looked at, then
    }
  }
  ask_answered.notify_all();
}

void Session::Impl::on_disconnected() {
  for (FurtherMemory* const more : further()) {
    if (more->parked) more->paused = more->parked = false;
  }
  forget_parking();
  ask_answered.notify_all();
  gate.refresh();
}

void Session::Impl::on_device_page(wire::MappedPage device_page) {
  const char* const id = device_page.as<wire::DevicePage>()->device_id;
  if (further(std::string(id, ::strnlen(id, wire::kIdSize))) != nullptr) {
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
  const std::vector<TagResidency> tags = allocator.tags();
  Bytes want;
  {
    const MutexLock lock(mutex);
    published = now;
    Bytes need = needed_now(stats, tags);
    if (stats.peak_live > peak_seen) {
      peak_seen = stats.peak_live;
      need = std::max(need, peak_seen);
    }
    wanted.note(need, step.number, now);
    want = resting.load() ? Bytes{} : wanted.wanted();
  }
  for (FurtherMemory* const more : further()) {
    more->note_need(more->memory.stats(), Bytes{}, step.number, now);
  }
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
  const auto owed_since = limit_waits_since();
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
  if (const auto still = limit_waits_since(); still && !memory_pending()) {
    if (const auto owed = limits.after_safe_point(memory_safe_point())) answer(*owed);
  }
  work_since = clock.now();
}

void Session::Impl::forget_parking() {
  if (park_asked) pause_asked = false;
  park_asked = false;
  follow_pauses();
}

void Session::Impl::park_further(TimePoint now) {
  std::vector<FurtherMemory*> due = further();
  std::erase_if(
      due, [](const FurtherMemory* more) { return !more->parked || !more->memory.work_pending(); });
  if (due.empty() || gate.ops_in_flight() != 0 || now - further_moved_at < kParkAgain) return;
  const Moving here(*this);
  try {
    const InItsStead acts(*this);
    move_and([&] {
      for (FurtherMemory* const more : due) move_further(*more);
    });
  } catch (const std::exception& error) {
    note(std::string("parking on a further device failed: ") + error.what());
  }
  further_moved_at = clock.now();
}

void Session::Impl::park_if_asked(TimePoint now) {
  // Ops that were let in before the gate closed may still run; what they touch would come back. A
  // helper's ops go on, as the gate does not hold them.
  if (!park_asked || is_native() || role.load() == MemberRole::kHelper ||
      gate.ops_in_flight() != 0 || now - parked_at < kParkAgain)
    return;
  const AllocatorStats stats = allocator.stats();
  if ((stats.device + stats.host).is_zero()) return;
  const Moving here(*this);
  try {
    const InItsStead acts(*this);
    move_and([&] { (void)allocator.park(); });
  } catch (const std::exception& error) {
    note(std::string("parking failed: ") + error.what());
  }
  parked_at = clock.now();
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
  park_further(now);
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
  view.devices = devices_view();
  view.tags = allocator.tags();
  view.kept = allocator.kept_in_place();
  view.memory_min = memory_minimum();
  view.memory_max = limits.own_max();
  view.revision = limits.revision();
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
  view.wanted = resting.load() ? Bytes{} : wanted.wanted();
  view.notes.insert(view.notes.end(), notes.begin(), notes.end());
  view.idle_class = in_idle_class;
  view.sample_windows = sample_windows.windows();
  view.sampled = sample_windows.total();
  view.idle_class_reason = idle_class_reason;
  return view;
}

}  // namespace commensal
