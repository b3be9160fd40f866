// SPDX-License-Identifier: Apache-2.0
// Lets large copies between host and GPU pass the gate by their bytes.
#pragma once

namespace commensal {

/// Puts a kernel of ours before PyTorch's own for `aten::copy_` of CUDA tensors, where it has none
/// for CUDA alone: whatever copies between host and GPU (`to`, `cuda`, `cpu`, `copy_`) comes by it.
/// It calls PyTorch's, so results stay what they were. For opportunistic jobs, once a process.
void install_copy_gate();

}  // namespace commensal
