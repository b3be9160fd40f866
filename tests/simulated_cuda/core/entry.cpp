// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/entry.h"

namespace commensal::simulated_cuda {
namespace {

/// "cuMemAlloc_v2" -> "cuMemAlloc": the name that a program writes.
std::string_view without_version(std::string_view name) {
  const auto length = name.size();
  const bool versioned = length > 3 && name[length - 3] == '_' && name[length - 2] == 'v';
  return versioned ? name.substr(0, length - 3) : name;
}

}  // namespace

CUresult enter(std::string_view function, const CallLog::Arguments& given, Needs needs) {
  Process& process = Process::get();
  const CUresult on_demand =
      process.log.enter(without_version(function), given, process.captures.any());
  if (in_stream_worker()) return CUDA_ERROR_NOT_PERMITTED;
  if (on_demand != CUDA_SUCCESS) return on_demand;
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  if (process.forked || !process.initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (const CUresult fate = process.fate; fate != CUDA_SUCCESS) return fate;
  if (needs == Needs::kContext && process.current() == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return CUDA_SUCCESS;
}

}  // namespace commensal::simulated_cuda
