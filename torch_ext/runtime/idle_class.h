// SPDX-License-Identifier: Apache-2.0
// The kernel's idle scheduling class for the threads of an opportunistic process.
#pragma once

#include <string>

namespace commensal {

/// What a change of the scheduling class did.
struct IdleClassResult {
  int changed = 0;
  int failed = 0;      ///< threads that the kernel did not let change
  std::string reason;  ///< of the first failure; empty: none
};

/// Whether the calling thread is in it.
[[nodiscard]] bool is_in_idle_class() noexcept;

/// Puts all threads of this process into SCHED_IDLE, but for this project's own, which answer the
/// coordinator (own_threads.h); threads that they start later inherit it.
/// Thread counts are never changed: that would change results.
[[nodiscard]] IdleClassResult enter_idle_class();
/// Puts all threads back into SCHED_OTHER. The kernel lets an ordinary user do so only where
/// RLIMIT_NICE allows it; the result says so.
[[nodiscard]] IdleClassResult leave_idle_class();
/// The same for the processes below this one, which have inherited its class (DataLoader workers):
/// those that were not forked here by then are left out.
[[nodiscard]] IdleClassResult children_enter_idle_class();
[[nodiscard]] IdleClassResult children_leave_idle_class();

}  // namespace commensal
