// SPDX-License-Identifier: Apache-2.0
// Serves PyTorch's CPU tensors from the session's elastic allocator.
#pragma once

namespace commensal {

class Session;

/// Makes `session`'s allocator the one of every CPU tensor from now on. Once a process.
///
/// Blocks that were handed out before stay valid: they carry their own deleter. Ours also takes
/// blocks that are not ours (a forked child's, a caller that mixes `raw_deallocate`) and hands
/// them to the allocator that was there before. The allocator object is never destroyed, for
/// tensors are freed after exit handlers.
/// @throws std::runtime_error if another allocator has taken a higher priority.
void install_cpu_allocator(Session& session);

}  // namespace commensal
