// SPDX-License-Identifier: Apache-2.0
// A job that does nothing: neighbours see it, and it is parked if it wants that, until its next op.
// All on the client's thread.
#include <unistd.h>

#include <ctime>
#include <utility>

#include "allocator/base/relaxed.h"
#include "allocator/host/own_descriptors.h"
#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

constexpr Duration kLook = std::chrono::milliseconds{150};
constexpr Duration kAskAgain = std::chrono::seconds{1};
constexpr Duration kRests = std::chrono::seconds{2};  // as long as a process may show no heartbeat

Duration cpu_time(clockid_t of) {
  timespec time{};
  if (::clock_gettime(of, &time) != 0) return {};
  return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
}

std::string rounded_seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

void Session::Impl::follow_rest(TimePoint now) {
  {
    const MutexLock lock(mutex);
    if (job_class != JobClass::kGuaranteed || role.load() == MemberRole::kHelper) return;
  }
  SignsOfWork signs;
  signs.counted =
      steps.state().number + page.waits_total.load(kRelaxed) + page.last_touch_ns.load(kRelaxed);
  signs.cpu = cpu_time(CLOCK_PROCESS_CPUTIME_ID) - cpu_time(CLOCK_THREAD_CPUTIME_ID);
  if (now - rest_watch.look(signs, now) >= kRests) {
    activity.rest_begin();
  } else {
    activity.rest_end();
  }
}

SignsOfWork Session::Impl::signs_of_work(const AllocatorStats& stats) const {
  SignsOfWork signs;
  signs.counted = stats.allocations + stats.frees + steps.state().number + gate.stats().ops_seen +
                  page.waits_total.load(kRelaxed) + page.last_touch_ns.load(kRelaxed);
  signs.cpu = cpu_time(CLOCK_PROCESS_CPUTIME_ID) - cpu_time(CLOCK_THREAD_CPUTIME_ID);
  return signs;
}

void Session::Impl::set_resting(bool rests, TimePoint now) noexcept {
  resting.store(rests);
  // What neighbours see: a job that is parked is not busy.
  const auto paused = static_cast<std::uint64_t>(wire::Activity::kPaused);
  const auto busy = static_cast<std::uint64_t>(wire::Activity::kBusy);
  auto from = rests ? page.activity.load(kRelaxed) : paused;
  if (from == static_cast<std::uint64_t>(wire::Activity::kWaiting)) return;
  if (page.activity.compare_exchange_strong(from, rests ? paused : busy)) {
    page.activity_since_ns.store(to_page_time(now), kRelaxed);
  }
}

void Session::Impl::say(const std::string& line) {
  if (!config.quiet) print(line);
}

void Session::Impl::print(const std::string& line) {
  own_descriptors::write_line("commensal: " + line);
}

void Session::Impl::follow_idleness(TimePoint now) {
  // A helper's ops do not pass the gate: none would bring its memory back.
  if (!config.park_idle || ended.load() || role.load() == MemberRole::kHelper) return;
  if (is_native()) return;  // native memory of a GPU is not parked
  // Looking at all slow chunks costs something: not at every wake-up.
  if (!op_came.load() && returning.is_zero() && now - looked_at < kLook) return;
  looked_at = now;
  const AllocatorStats stats = allocator.stats();
  const TimePoint idle_since = idle_watch.look(signs_of_work(stats), now);
  if (closed_at != TimePoint{}) {
    // An op that began before the gate closed has shown itself by now.
    if (op_came.load() || idle_since > closed_at) {
      closed_at = TimePoint{};
      gate.wake();
    } else {
      park_idle_job(now - idle_since);
    }
  } else if (resting.load()) {
    // Another sign than an op: the kernel has served what reached parked memory by another way.
    const bool touched = stats.parked < parked_by_idleness;
    if (op_came.exchange(false) || touched || idle_since > rests_since) bring_back(now);
  } else if (!returning.is_zero()) {
    bring_more_back();
  } else if (now - idle_since >= *config.park_idle && !(stats.device + stats.host).is_zero() &&
             !first_device.parked && moving.load() == 0) {
    op_came.store(false);
    gate.doze(parks_away());  // an op that comes from here on waits until its memory is back
    if (parks_away()) {
      closed_at = now;
    } else {
      park_idle_job(now - idle_since);
    }
  }
}

// Whether nothing is mapped where parked memory belongs: what touches it then fails.
bool Session::Impl::parks_away() const noexcept {
  return source->capacity(Tier::kHost).is_zero() && !source->capacity(Tier::kParked).is_zero();
}

void Session::Impl::park_idle_job(Duration idle_for) {
  closed_at = TimePoint{};
  LimitTicket ticket;
  try {
    const Moving here(*this);
    const InItsStead acts(*this);
    const Parking how = parks_away() ? Parking::kUntouched : Parking::kUntilGrow;
    move_and([&] { ticket = allocator.park(how); });
  } catch (const std::exception& error) {
    ticket.reason = error.what();
  }
  const TimePoint now = clock.now();
  idle_watch.start_over(now);  // not again before another such time has passed
  parked_by_idleness = allocator.stats().parked;
  if (parked_by_idleness.is_zero()) {
    gate.wake();
    note("the idle job could not be parked: " + ticket.reason);
    return;
  }
  rests_since = now;
  (void)idle_watch.look(signs_of_work(allocator.stats()), now);
  set_resting(true, now);
  say("idle for " + rounded_seconds(idle_for) + ": parked, " + to_string(parked_by_idleness) +
      (parks_away() ? " saved to pinned memory" : " saved to the slower tier") +
      (ticket.deferred.is_zero() ? std::string()
                                 : ", " + to_string(ticket.deferred) + " not: " + ticket.reason));
}

void Session::Impl::bring_back(TimePoint now) {
  returning = parked_by_idleness;
  return_began = now;
  said_it_waits = false;
  set_resting(false, now);
  ask_to_come_back(now);
  bring_more_back();
}

// What was given away meanwhile has to be asked for; nobody waits for the answer.
void Session::Impl::ask_to_come_back(TimePoint now) {
  asked_back_at = now;
  const AllocatorStats stats = allocator.stats();
  const Bytes held = held_by(stats);
  if (const auto limit = first_device.limits.effective();
      limit && *limit < stats.live + stats.outside && client.connected()) {
    std::string name;
    {
      const MutexLock lock(ask_mutex);
      name = first_device.registered_as;
    }
    client.post(
        wire::AskMemory{.job_id = config.job_id.str(),
                        .pid = ::getpid(),
                        .needed_bytes = saturating_sub(stats.live + stats.outside, held).count(),
                        .held_bytes = held.count(),
                        .device = name});
  }
}

// As much as one move may take; the rest follows at the next ticks, while ops run.
void Session::Impl::bring_more_back() {
  LimitTicket ticket;
  try {
    const Moving here(*this);
    const InItsStead acts(*this);
    move_and([&] { ticket = allocator.grow(Bytes{UINT64_MAX}); });
  } catch (const std::exception& error) {
    ticket.reason = error.what();
  }
  const AllocatorStats stats = allocator.stats();
  idle_watch.start_over(clock.now());
  if (!stats.away.is_zero()) {  // no op may find it so, however long that takes
    if (clock.now() - asked_back_at >= kAskAgain) ask_to_come_back(clock.now());
    if (ticket.done.is_zero() && !std::exchange(said_it_waits, true)) {
      say("parked memory waits to come back: " + to_string(stats.away) +
          (ticket.reason.empty() ? ": the limit leaves no room" : ": " + ticket.reason));
    }
    return;
  }
  gate.wake();  // whatever came back: at the latest the slower tier serves the op
  if (!ticket.done.is_zero() && !(stats.parked + stats.host).is_zero()) return;
  const Bytes slow = stats.parked + stats.host;
  say("back from parking: " + to_string(saturating_sub(returning, slow)) + " in " +
      rounded_seconds(clock.now() - return_began) +
      (slow.is_zero() ? std::string()
                      : ", " + to_string(slow) + " on the slower tier" +
                            (ticket.reason.empty() ? "" : ": " + ticket.reason)));
  returning = Bytes{};
}

// The session ends: what is away comes back, whatever the limit, for what the program still does.
void Session::Impl::bring_away_back() {
  if (allocator.stats().away.is_zero()) return;
  const InItsStead acts(*this);
  LimitTicket ticket;
  (void)allocator.post_limit(Bytes{UINT64_MAX});
  for (Bytes away = allocator.stats().away; !away.is_zero();) {
    move_and([&] { ticket = allocator.grow(Bytes{UINT64_MAX}); });
    const Bytes left = allocator.stats().away;
    if (left == away) {
      own_descriptors::write_line("commensal: " + to_string(left) +
                                  " of parked memory cannot come back: " + ticket.reason);
      return;
    }
    away = left;
  }
}

}  // namespace commensal
