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

/// Bounds PyTorch's own allocator of the current GPU by the active session's limits: its memory
/// fraction follows them, and at the ends of steps what it caches above them is given back. For
/// processes where the former failed. CUDA must have started.
/// @param why  for people: why it failed.
/// @return as above.
const char* commensal_torch_cuda_cap_only(const char* why);
}
