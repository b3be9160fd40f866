// SPDX-License-Identifier: Apache-2.0
// Marks threads that run inside a communication library, where nothing may wait at the gate.
#pragma once

#include <atomic>
#include <memory>

namespace commensal {

/// Counts a thread's open communication ranges. Shared, because such a range may end on another
/// thread, after the first one is gone.
using ShieldCount = std::shared_ptr<std::atomic<int>>;

/// Returns the calling thread's count.
[[nodiscard]] const ShieldCount& this_thread_shield();
/// Returns whether the calling thread is inside a communication range.
[[nodiscard]] bool is_thread_shielded() noexcept;

}  // namespace commensal
