// SPDX-License-Identifier: Apache-2.0
// The kernel's idle scheduling class for the threads of an opportunistic process.
#pragma once

#include <string>
#include <string_view>

namespace commensal {

/// What a change of the scheduling class did.
struct IdleClassResult {
  int changed = 0;
  int failed = 0;      ///< threads that the kernel did not let change
  std::string reason;  ///< of the first failure; empty: none
};

/// Tells by name that a thread stays out of the idle class: this project's own (mover, client,
/// heartbeat) and ZeroMQ's, which answer the coordinator.
[[nodiscard]] bool stays_out_of_idle_class(std::string_view thread_name) noexcept;

/// Whether the calling thread is in it.
[[nodiscard]] bool is_in_idle_class() noexcept;

/// Puts all threads of this process into SCHED_IDLE; threads that they start later inherit it.
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
