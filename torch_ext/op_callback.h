// SPDX-License-Identifier: Apache-2.0
// Lets every thread's outermost dispatcher ops pass the gate.
#pragma once

#include "torch_ext/copy_durations.h"

namespace commensal {

class Session;

/// Registers the op callback, switched off, and lets the session's gate switch it. Once a process.
///
/// While it is on, each op costs 110 to 190 ns more; while off, nothing.
void install_op_callback(Session& session);

/// Work that no dispatcher op reports; numbers of the Python side (python/commensal/_launches.py).
enum class Launch : unsigned { kGraph, kKernel };
/// Lets the calling thread's launch pass the gate as an op does, while ops do. The caller holds no
/// Python lock, or one that may be released.
/// @return whether it counts: then `end_launch` has to follow on the same thread.
[[nodiscard]] bool begin_launch(Launch what) noexcept;
void end_launch() noexcept;

/// Lets a large copy between host and device pass the gate by its own length, within the op that
/// makes it; its bytes are counted.
/// @return whether it counts: then `end_copy` has to follow on the same thread.
[[nodiscard]] bool begin_copy(Bytes size, CopyWay way) noexcept;
void end_copy() noexcept;

/// Around fork(): no switch of the callback is under way while the process forks.
void prepare_op_callback_for_fork() noexcept;
void release_op_callback_in_parent() noexcept;
/// In a forked child: no op waits or is counted; the next event switches the callback off.
void disarm_op_callback_in_child() noexcept;

}  // namespace commensal
