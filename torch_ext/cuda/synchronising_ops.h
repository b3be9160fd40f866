// SPDX-License-Identifier: Apache-2.0
// Ops in which a guaranteed job's host waits for its GPU, told without a callback.
#pragma once

namespace commensal {

/// Has `item()` of a CUDA tensor (`float`, `bool`, an `if`) and copies to the host that are waited
/// for (`cpu`, `tolist`, `numpy`, `print`) end in a gap of the phase `synchronisation`, and copies
/// into a CUDA tensor that is there be signs of work: they allocate nothing. Kernels of ours stand
/// where the dispatcher looks for those two ops of CUDA tensors and call PyTorch's, so results stay
/// what they were, and no other op is touched. What else waits is not told (`nonzero`, libraries).
/// Once a process; asks CUDA nothing.
void show_synchronising_ops();

}  // namespace commensal
