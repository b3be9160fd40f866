// SPDX-License-Identifier: Apache-2.0
// The C functions of libcommensal_torch_cuda, which Python loads by ctypes where PyTorch has CUDA.
#pragma once

extern "C" {

/// Puts commensal's CUDA allocator over PyTorch's own. Once a process; a second call does nothing.
///
/// Makes no CUDA call. Call it at the end of `import torch`, before anything starts CUDA, and only
/// after `commensal_torch_check` of the adaptor beside this library has accepted the PyTorch that
/// runs: the interface is another one in each minor version.
/// @return null on success, else one sentence; nothing has changed then. Valid until the thread's
///         next call.
const char* commensal_torch_cuda_install();

/// Says why commensal's CUDA allocator could not take the place of PyTorch's own now; changes
/// nothing and makes no CUDA call.
/// @return null: it could. Else as above.
const char* commensal_torch_cuda_problem();

/// Returns 1 if commensal's CUDA allocator serves this process, else 0.
int commensal_torch_cuda_is_installed();

/// Between the two the slower tier of elastic memory serves no new block: the program looks for a
/// batch that fits. They may nest. Without elastic memory: nothing.
void commensal_torch_cuda_begin_trial();
void commensal_torch_cuda_end_trial();

/// Between the two PyTorch's own allocator serves the calling thread, so that what is to be shared
/// with another process gets a place that stays.
/// @return whether it begins: `block` is one of elastic memory, and no graph knows its address.
int commensal_torch_cuda_begin_sharing(const void* block);
void commensal_torch_cuda_end_sharing();
}
