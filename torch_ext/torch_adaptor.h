// SPDX-License-Identifier: Apache-2.0
// The C functions of libcommensal_torch, which Python loads by ctypes where torch is imported.
#pragma once

extern "C" {

/// Returns the PyTorch that this library was compiled for, for example "2.11".
const char* commensal_torch_built_for();

/// Compares a PyTorch version ("2.11.0+cu130") with the one this library was compiled for.
/// @return null if they belong together, else one sentence; valid until the thread's next call.
const char* commensal_torch_check(const char* torch_version);

/// Puts the active session's allocator, gate and step tracker under PyTorch. Once a process; a
/// second call does nothing. Call it from a thread that may wait for no other.
/// @return null on success, else one sentence; nothing has changed then.
const char* commensal_torch_install();
/// Puts only the allocator under PyTorch: in a process that may turn out to train, and whose
/// tensors are then to be managed. `commensal_torch_install` adds the rest.
const char* commensal_torch_install_memory();

/// Lets work that no op reports pass the gate, as an op of the calling thread: a replayed graph
/// (0), a kernel of Triton (1). May wait; releases Python's lock meanwhile if it is held.
/// @return whether it counts: then `commensal_torch_end_launch` has to follow on that thread.
int commensal_torch_begin_launch(unsigned what);
void commensal_torch_end_launch();
}
