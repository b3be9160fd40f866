// SPDX-License-Identifier: Apache-2.0
// What the driver says about a pointer, and how memory with an address goes back.
#pragma once

#include <cuda.h>

namespace commensal::simulated_cuda {

/// Answers `cuPointerGetAttribute`.
CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address);

/// Sets the answer for a pointer that the driver does not know.
void clear_pointer_attribute(void* data, CUpointer_attribute attribute);

/// Frees as `cuMemFree`: null does nothing; waits for all work of the device.
CUresult free_device_memory(CUdeviceptr address);

/// Frees as `cuMemFreeHost`.
CUresult free_pinned_memory(void* address);

}  // namespace commensal::simulated_cuda
