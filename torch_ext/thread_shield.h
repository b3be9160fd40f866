// SPDX-License-Identifier: Apache-2.0
// Marks threads that run inside a communication library, where nothing may wait at the gate.
#pragma once

#include <atomic>
#include <memory>

// A few bytes at a fixed distance from the thread's own pointer, as PyTorch's OpenMP has them: the
// usual call to find a variable of a loaded library costs an op 6 ns, twice. There is little room
// for such variables in a process, so only pointers and counters that every op needs.
#define COMMENSAL_QUICK_THREAD_LOCAL [[gnu::tls_model("initial-exec")]] thread_local

namespace commensal {

/// Counts a thread's open communication ranges. Shared, because such a range may end on another
/// thread, after the first one is gone.
using ShieldCount = std::shared_ptr<std::atomic<int>>;

/// Returns the calling thread's count.
[[nodiscard]] const ShieldCount& this_thread_shield();
/// The calling thread's count; null as long as it never was in a communication range. Nothing but
/// a pointer, for every op looks at it.
COMMENSAL_QUICK_THREAD_LOCAL inline constinit const std::atomic<int>* t_shield_count = nullptr;

/// Returns whether the calling thread is inside a communication range.
[[nodiscard]] inline bool is_thread_shielded() noexcept {
  return t_shield_count != nullptr && t_shield_count->load(std::memory_order_relaxed) > 0;
}

}  // namespace commensal
