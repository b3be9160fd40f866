// SPDX-License-Identifier: Apache-2.0
// What the session does on the job's own threads: ranges, steps, safe points, asking for memory.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "allocator/base/relaxed.h"
#include "allocator/host/thread_stopper.h"
#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

/// An allocation that nothing else can serve waits at least so long for more memory: the
/// coordinator's own answer comes within five seconds.
constexpr Duration kLastResortWait = std::chrono::seconds{6};
/// After a refusal, allocations go to the slower tier at once for this long.
constexpr Duration kAskPause = std::chrono::seconds{1};
constexpr Bytes kSmallestUnit = 2_MiB;
constexpr Bytes kLargestUnit = 32_MiB;
constexpr Duration kStopDeadline = std::chrono::milliseconds{50};
/// A job that is idle for at least so long between most of its steps serves requests.
constexpr Duration kLeastPause = std::chrono::milliseconds{1};

/// Fetches that are open on this thread, and whether the outermost one was taken for a wait.
struct FetchState {
  int depth;
  bool counted;
};
thread_local constinit FetchState fetches{0, false};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

RangeKind range_kind(std::string_view name) noexcept {
  if (name.starts_with("Optimizer.step#")) return RangeKind::kOptimizerStep;
  if (name.starts_with("Optimizer.zero_grad#")) return RangeKind::kZeroGrad;
  if (name.starts_with("enumerate(DataLoader)#")) return RangeKind::kFetch;
  return RangeKind::kOther;
}

void Session::Impl::range_begin(std::string_view name) noexcept {
  switch (range_kind(name)) {
    case RangeKind::kFetch: fetch_begin(); return;
    case RangeKind::kOptimizerStep:
      in_optimizer.store(true, kRelaxed);
      activity.worked();  // a fused one allocates nothing
      gate.begin_part(StepPart::kOptimizer);
      (void)steps.optimizer_range_begin();
      return;
    case RangeKind::kZeroGrad:
    case RangeKind::kOther: return;
  }
}

void Session::Impl::range_end(std::string_view name) noexcept {
  switch (range_kind(name)) {
    case RangeKind::kFetch: fetch_end(); return;
    case RangeKind::kOptimizerStep:
      in_optimizer.store(false, kRelaxed);
      gate.begin_part(StepPart::kAfterOptimizer);
      training_thread.store(this_thread(), kRelaxed);
      activity.worked();
      if (steps.optimizer_range_end()) step_ended();
      optimizer_ended();
      return;
    case RangeKind::kZeroGrad:
      gate.begin_part(StepPart::kGradients);
      activity.zeroed();
      (void)steps.zero_grad_end();
      return;
    case RangeKind::kOther: return;
  }
}

void Session::Impl::optimizer_ended() noexcept {
  if (steps.inside_optimizer()) return;
  activity.trained();
  activity.boundary_begin();
}

void Session::Impl::fetch_begin() noexcept {
  if (fetches.depth++ != 0) return;
  // A thread that only prefetches batches says nothing about whether the job waits.
  const void* trainer = training_thread.load(kRelaxed);
  fetches.counted = trainer == nullptr || trainer == this_thread();
  if (!fetches.counted) return;
  if (steps.fetch_begin()) step_ended();
  activity.fetch_begin();
}

void Session::Impl::fetch_end() noexcept {
  if (fetches.depth == 0) return;  // began before the session
  if (--fetches.depth != 0 || !fetches.counted) return;
  activity.wait_end();
  gate.begin_part(StepPart::kBatch);
}

void Session::Impl::batch_awaited() noexcept {
  if (fetches.depth != 0 && fetches.counted) activity.wait_goes_on();
}

void Session::Impl::batch_arrived() noexcept {
  if (fetches.depth != 0 && fetches.counted) activity.wait_ends_soon();
}

bool Session::Impl::checkpoint_begin() noexcept {
  // One that is written by a thread of its own is no reason why the job would wait.
  const void* trainer = training_thread.load(kRelaxed);
  if (trainer != nullptr && trainer != this_thread()) return false;
  activity.wait_begin(wire::GapPhase::kCheckpoint);
  return true;
}

void Session::Impl::synchronised() noexcept {
  const void* trainer = training_thread.load(kRelaxed);
  if (trainer == nullptr || trainer == this_thread()) activity.synchronised();
}

void Session::Impl::user_step() noexcept {
  gate.begin_part(StepPart::kStep);
  if (!steps.user_step()) return;
  if (steps.trains()) {
    step_ended();
    activity.boundary_begin();
    return;
  }
  // Without an optimizer these are requests: until the next one begins, the device is free. Where
  // the next one always follows at once it is a loop of the user's own.
  const Duration latency = activity.request_end();
  const bool serves =
      page.wait_typical_ns.load(kRelaxed) >= static_cast<std::uint64_t>(kLeastPause.count());
  training_thread.store(this_thread(), kRelaxed);
  page.step_kind.store(
      static_cast<std::uint64_t>(serves ? wire::StepKind::kRequests : wire::StepKind::kTraining),
      kRelaxed);
  publish_step(serves ? latency : steps.state().last);
  follow_thread_count();
  end_step_of_memory();
  safe_point();
  follow_multiprocessors();
}

// Within an allocation: no place for a safe point.
void Session::Impl::request_found(const FoundRequest& request) noexcept {
  if (!steps.request_found(request.ended)) return;
  training_thread.store(this_thread(), kRelaxed);
  page.step_kind.store(static_cast<std::uint64_t>(wire::StepKind::kRequests), kRelaxed);
  publish_step(request.length);
}

void Session::Impl::publish_step(Duration last) noexcept {
  const StepState step = steps.state();
  page.step_end_ns.store(to_page_time(step.last_end), kRelaxed);
  page.step_last_ns.store(static_cast<std::uint64_t>(last.count()), kRelaxed);
  page.step_number.store(step.number, std::memory_order_release);
}

void Session::Impl::step_ended() noexcept {
  training_thread.store(this_thread(), kRelaxed);
  stay_on_host();
  activity.worked();
  page.step_kind.store(static_cast<std::uint64_t>(wire::StepKind::kTraining), kRelaxed);
  publish_step(steps.state().last);
  in_optimizer.store(false, kRelaxed);  // where a step ended by an exception, nothing said so
  follow_thread_count();
  end_step_of_memory();
  safe_point();
  follow_multiprocessors();
}

bool Session::Impl::between_ops() noexcept {
  const Session* const session = Session::current();
  if (session == nullptr) return false;
  const Impl& impl = *session->impl_;
  if (impl.in_its_stead.load(kRelaxed) == this_thread()) return impl.gate.wants_callback();
  const void* trainer = impl.training_thread.load(kRelaxed);
  return trainer == nullptr ? ::syscall(SYS_gettid) == ::getpid() : trainer == this_thread();
}

void Session::Impl::equip_threads(bool did_work) noexcept {
  ThreadStopper* const stopper = ThreadStopper::existing();
  if (stopper == nullptr || !between_ops()) return;
  if (!stopper->stacks_wanted() && !(did_work && stopper->threads_changed())) return;
  (void)stopper->give_stacks(kStopDeadline);  // what it could not do, the next safe point tries
}

void Session::Impl::safe_point() noexcept {
  if (cores_due.load(kRelaxed)) apply_cores();
  last_safe_point_ns.store(clock.now().time_since_epoch().count(), kRelaxed);
  if (!memory_pending()) {
    equip_threads(false);
    return;
  }
  const Moving here(*this);
  try {
    const auto move = [&] { move_memory(); };
    if (on_host()) {
      release_and(move);
    } else {
      move_and(move);
    }
  } catch (const std::exception& error) {
    note(std::string("a safe point failed: ") + error.what());
  }
  equip_threads(true);
  if (allocator.work_pending()) mover.wake();
  last_safe_point_ns.store(clock.now().time_since_epoch().count(), kRelaxed);
}

std::string Session::Impl::ask_for_memory(SessionDevice& device, Bytes needed) noexcept {
  if (in_child.load(kRelaxed) || client.on_client_thread() || moving.load() != 0) {
    return "not asked while memory moves";
  }
  try {
    const TimePoint now = clock.now();
    const AllocatorStats stats = device.memory().stats();
    const LimitKeeper& bound = device.limits;
    device.note_need(stats, {}, needed, steps.state().number, now);
    if (!client.connected()) return "no coordinator: " + client.status().reason;
    if (bound.bound_by_itself()) return "the coordinator was not asked: the limit is the job's own";
    const bool last_resort = stats.host + needed > device.memory().slower_capacity();
    // One that hangs for a second on a busy machine is no reason to die.
    const bool hangs = !observer.observe(now).coordinator_alive;
    if (hangs && !last_resort) return "the coordinator shows no sign of life";
    const Duration patience =
        last_resort ? std::max<Duration>(config.ask_wait, kLastResortWait) : config.ask_wait;
    std::uint64_t refusals = 0;
    std::string name;
    {
      const MutexLock lock(ask_mutex);
      AskedMemory& about = device.asked;
      name = device.registered_as;
      if (now < about.again && !last_resort) {
        return "the coordinator was asked a moment ago" +
               (about.refusal.empty() ? about.refusal : ", and refused: " + about.refusal);
      }
      about.again = now + patience;  // one thread asks for all
      refusals = about.refusals;
    }
    // Memory comes in whole chunks, which are larger in a job that holds more.
    const Bytes held = held_by(stats);
    const Bytes unit = std::clamp(Bytes{held.count() / 16}, kSmallestUnit, kLargestUnit);
    const Bytes asks = round_up(needed, unit);
    client.post(wire::AskMemory{.job_id = config.job_id.str(),
                                .pid = ::getpid(),
                                .needed_bytes = asks.count(),
                                .held_bytes = held.count(),
                                .device = name});
    std::string answer;
    release_and([&]() COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
      const auto until = std::chrono::steady_clock::now() + patience;
      bool granted = false;
      bool late = false;
      ask_mutex.lock();
      AskedMemory& about = device.asked;
      // The limit may grow in several steps: what counts is that it is enough.
      while (!(granted = bound.allows(held + asks)) && about.refusals == refusals && !late) {
        late = ask_answered.wait_until(ask_mutex, until) == std::cv_status::timeout;
      }
      // A question that was waited for in vain stands: its answer comes without another one.
      const Duration stands = late ? kLastResortWait - patience : Duration{};
      about.again = granted ? TimePoint{} : clock.now() + std::max(kAskPause, stands);
      if (granted) {
        answer = "the coordinator granted " + to_string(held + asks);
      } else if (about.refusals != refusals) {
        answer = "the coordinator refused: " + about.refusal;
      } else {
        answer = "the coordinator did not grant " + to_string(asks) + " more within " +
                 std::to_string(
                     std::chrono::duration_cast<std::chrono::milliseconds>(patience).count()) +
                 " ms" + (hangs ? ", and shows no sign of life" : "");
      }
      ask_mutex.unlock();
    });
    return answer;
  } catch (const std::exception& error) {
    note(std::string("asking for memory failed: ") + error.what());
    return std::string("asking the coordinator failed: ") + error.what();
  }
}

LimitTicket Session::Impl::set_memory_limit(Bytes max) {
  const Bytes min = memory_minimum();
  if (max < min) {
    throw std::invalid_argument("memory limit below the job's minimum: " + to_string(max) + " < " +
                                to_string(min));
  }
  // Another thread than the one that trains cannot know whether that one is between two ops.
  const void* trainer = training_thread.load(kRelaxed);
  const bool here = trainer == nullptr || trainer == this_thread();
  LimitTicket ticket;
  {
    const Moving now(*this);
    if (here) give_back_of_others(std::min(max, first_device.limits.effective().value_or(max)));
    move_and([&] { ticket = limit_devices(max, here); });
  }
  mover.wake();
  if (here) {
    last_safe_point_ns.store(clock.now().time_since_epoch().count(), kRelaxed);
  } else if (!ticket.deferred.is_zero() && ticket.reason.empty()) {
    ticket.reason = "applies at the training thread's next safe point";
  }
  if (const std::string above = above_device("memory limit", max); !above.empty()) {
    ticket.reason = ticket.reason.empty() ? above : above + "; " + ticket.reason;
  }
  wire::SetRequest request;
  request.job = config.job_id.str();
  request.terms.memory = MemoryRange{min, max};
  client.post(request);
  return ticket;
}

void Session::Impl::set_compute_share(double max) {
  if (!(max >= 0.0 && max <= 1.0)) {
    throw std::invalid_argument("compute share outside 0..1: " + number(max));
  }
  double min = 0.0;
  {
    const MutexLock lock(mutex);
    if (max > 0.0 && max < terms.share.min) {
      throw std::invalid_argument("compute share below the job's minimum: " + number(max) + " < " +
                                  number(terms.share.min));
    }
    terms.share.max = max;
    min = terms.share.min;
  }
  if (max < 1.0 && config.terms.law.empty() && gate.stats().law == "open") {
    use_law("duty_cycle");  // the class's default cannot hold a share
  }
  gate.set_share(min, max);
  wire::SetRequest request;
  request.job = config.job_id.str();
  request.terms.share = ShareRange{std::min(min, max), max};
  client.post(request);
}

}  // namespace commensal
