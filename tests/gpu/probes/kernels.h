// SPDX-License-Identifier: Apache-2.0
// The kernels of the probes, compiled at run time by NVRTC: no nvcc is needed.
#pragma once

#include <cuda.h>

#include <string>

namespace probes {

/// The kernels' source, CUDA C++.
extern const char* const kKernelSource;

/// Compiles the kernels for a device.
/// @param architecture  for example "sm_90".
/// @throws NotRun where there is no NVRTC, std::runtime_error with its log if the source is wrong.
std::string compile_kernels(const std::string& architecture);

/// Version of NVRTC, "13.0"; empty where there is none.
std::string compiler_version();

}  // namespace probes
