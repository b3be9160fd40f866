// SPDX-License-Identifier: Apache-2.0
// Samples ops in short windows: the only op callback that a guaranteed job ever has.
#pragma once

namespace commensal {

class Session;

/// Registers the sampling callback, switched off, and lets the session switch it for its windows.
/// Once a process.
///
/// While it is on PyTorch counts each op down to the next sample, one in a hundred; while off,
/// nothing. A window that nobody ends in time is ended by the next op that is sampled.
void install_op_sampler(Session& session);

/// Around fork(), as the op callback's.
void prepare_op_sampler_for_fork() noexcept;
void release_op_sampler_in_parent() noexcept;
void disarm_op_sampler_in_child() noexcept;

}  // namespace commensal
