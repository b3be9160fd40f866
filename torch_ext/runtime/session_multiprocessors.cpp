// SPDX-License-Identifier: Apache-2.0
// On how many of a GPU's multiprocessors the session's work runs.
#include <utility>

#include "torch_ext/runtime/session_impl.h"

namespace commensal {

std::optional<double> Session::Impl::multiprocessor_share() const {
  const MutexLock lock(mutex);
  return job_class == JobClass::kOpportunistic ? terms.sm_share : std::nullopt;
}

void Session::Impl::follow_multiprocessors() noexcept {
  MultiprocessorDial* const dial = sm_dial.load(std::memory_order_acquire);
  if (dial == nullptr || !config.sm_held_by.empty()) return;
  const std::optional<double> most = multiprocessor_share();
  if (!most && !sm_followed.load(std::memory_order_relaxed)) return;  // nobody ever asked
  if (sm_busy.exchange(true)) return;  // another thread ends a step, too
  std::optional<MultiprocessorState> state = dial->follow(most);
  sm_busy.store(false);
  if (!state) return;
  sm_followed.store(true, std::memory_order_relaxed);
  try {
    const std::string why = state->reason;
    {
      const MutexLock lock(mutex);
      std::swap(sm_state, state);
    }
    // `state` is now the one before.
    if (!why.empty() && (!state || state->reason != why)) note("no share of the SMs: " + why);
  } catch (const std::exception&) {
    return;  // no memory for words
  }
}

StatisticsView::Multiprocessors Session::Impl::multiprocessors_view() const {
  StatisticsView::Multiprocessors view;
  view.share = multiprocessor_share();
  if (!view.share) return view;
  if (!config.sm_held_by.empty()) {
    view.reason = config.sm_held_by;
    return view;
  }
  if (on_host()) {
    view.reason = "this process uses no GPU";
    return view;
  }
  const MutexLock lock(mutex);
  if (!sm_state) {
    view.reason = "from the end of the first step on a GPU";
    return view;
  }
  view.state = *sm_state;
  view.reason = sm_state->reason;
  return view;
}

}  // namespace commensal
