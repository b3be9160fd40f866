// SPDX-License-Identifier: Apache-2.0
// The memory of a GPU as that of a session. C functions, which Python loads by ctypes.
#pragma once

extern "C" {

/// Lets sessions that start from now on manage memory of a GPU (`SessionConfig::device` "cuda").
/// Makes no CUDA call.
void commensal_torch_cuda_offer();

/// Puts the active session's memory, which must be that of a GPU, under PyTorch's CUDA tensors: of
/// the device that is used first. As `commensal_torch_cuda_install`.
/// @return null on success, else one sentence; nothing has changed then. Valid until the thread's
///         next call.
const char* commensal_torch_cuda_install_session();

/// Leaves GPU memory to PyTorch's own allocator, for the active session, and watches it: each GPU
/// becomes one of the session's devices with its first block, the first one instead of the host;
/// its memory fraction follows the limit there, and at the ends of steps what is cached above it is
/// given back. At any time; makes no CUDA call.
/// @return as above.
const char* commensal_torch_cuda_install_native();

/// Makes a GPU that is used already one of the session's devices, as its next block would. CUDA
/// must have started.
/// @param why  for people: why its memory is not watched; empty: it is.
/// @return as above.
const char* commensal_torch_cuda_use(int device, const char* why);
}
