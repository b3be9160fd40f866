// SPDX-License-Identifier: Apache-2.0
// Samples ops in short windows: the only op callback that a guaranteed job ever has.
#include "torch_ext/op_sampler.h"

#include <ATen/record_function.h>

#include <atomic>

#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"
#include "allocator/base/relaxed.h"
#include "torch_ext/gate/device_time.h"
#include "torch_ext/op_work.h"
#include "torch_ext/runtime/sample_windows.h"
#include "torch_ext/runtime/session.h"

namespace commensal {
namespace {

/// A window is ended from within an op if it is late by as much again.
constexpr Duration kLate = 2 * SampleWindows::kLength;

std::atomic<Session*> g_sampled{nullptr};  // null before installation and in a forked child
at::CallbackHandle g_sampler = at::INVALID_CALLBACK_HANDLE;
std::atomic<std::int64_t> g_ends_ns{0};  // when ops may end the window; 0: none is open

Mutex& sampler_mutex() {
  static Mutex& mutex = *new Mutex;  // never destroyed, as the op callback's
  return mutex;
}

struct Sampled final : public at::ObserverContext {
  TimePoint began = SteadyClock::instance().now();
  Duration ran = CpuThreadTime::instance().total();
};

void end_window() noexcept {
  if (g_ends_ns.exchange(0) != 0) at::disableCallback(g_sampler);
}

std::unique_ptr<at::ObserverContext> on_sampled_begin(const at::RecordFunction& /*event*/) {
  if (g_sampled.load(kRelaxed) == nullptr) {
    end_window();
    return nullptr;
  }
  return std::make_unique<Sampled>();
}

void on_sampled_end(const at::RecordFunction& event, at::ObserverContext* context) {
  Session* const session = g_sampled.load(kRelaxed);
  if (session == nullptr || context == nullptr) return;
  const auto& sampled = static_cast<const Sampled&>(*context);
  const TimePoint now = SteadyClock::instance().now();
  const OpWork work = op_work(event.name());
  session->op_sampled({.name = event.name(),
                       .work = to_string(work),
                       .took = elapsed(sampled.began, now),
                       .ran = CpuThreadTime::instance().total() - sampled.ran});
  const std::int64_t ends = g_ends_ns.load(kRelaxed);
  if (ends != 0 && now.time_since_epoch().count() > ends) end_window();
}

void switch_sampler(bool on) {
  const MutexLock lock(sampler_mutex());
  if (g_sampled.load(kRelaxed) == nullptr) return;
  if (!on) return end_window();
  const TimePoint ends = SteadyClock::instance().now() + kLate;
  if (g_ends_ns.exchange(ends.time_since_epoch().count()) == 0) at::reenableCallback(g_sampler);
}

}  // namespace

void install_op_sampler(Session& session) {
  g_sampler = at::addGlobalCallback(at::RecordFunctionCallback(&on_sampled_begin, &on_sampled_end)
                                        .scopes({at::RecordScope::FUNCTION})
                                        .samplingProb(kSampleProbability));
  at::disableCallback(g_sampler);
  g_sampled.store(&session, std::memory_order_release);
  session.on_sampling_switch(&switch_sampler);
}

void prepare_op_sampler_for_fork() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  sampler_mutex().lock();
}

void release_op_sampler_in_parent() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  sampler_mutex().unlock();
}

void disarm_op_sampler_in_child() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  g_sampled.store(nullptr, kRelaxed);
  sampler_mutex().unlock();
}

}  // namespace commensal
