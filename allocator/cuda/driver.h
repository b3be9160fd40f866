// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's functions, found at run time: nothing here is linked against libcuda.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

namespace commensal {

// Every driver function that is used, by its name in the manual; cuda.h turns it into the version
// that its types belong to.
// clang-format off
#define COMMENSAL_CUDA_FUNCTIONS(X) \
  X(cuInit) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGet) X(cuDeviceGetAttribute) \
  X(cuDeviceTotalMem) X(cuDeviceGetUuid) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) \
  X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetStreamPriorityRange) X(cuCtxRecordEvent) \
  X(cuStreamIsCapturing) X(cuThreadExchangeStreamCaptureMode) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) \
  X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAllocationGranularity) \
  X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister) \
  X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuStreamWriteValue64) X(cuMemcpyAsync) \
  X(cuMemsetD8Async) X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) \
  X(cuStreamWaitEvent) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) \
  X(cuEventSynchronize) X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) \
  X(cuLaunchKernel) X(cuDeviceGetDevResource) X(cuDevSmResourceSplitByCount) \
  X(cuDevResourceGenerateDesc) X(cuGreenCtxCreate) X(cuGreenCtxDestroy) \
  X(cuGreenCtxGetDevResource) X(cuGreenCtxStreamCreate)
// clang-format on

/// One pointer a function; none is null.
///
/// The one place that looks for the driver, at the first call of `get`: until then a process needs
/// none. It is never unloaded. Thread safety: everything may be called from any thread.
struct CudaDriver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member
#define COMMENSAL_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  COMMENSAL_CUDA_FUNCTIONS(COMMENSAL_CUDA_MEMBER)
#undef COMMENSAL_CUDA_MEMBER

  /// Loads libcuda.so.1 and initialises it, once.
  /// @throws SourceError naming what is missing: the driver, a function of it, a device. The next
  /// call tries again.
  static const CudaDriver& get();

  /// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  [[nodiscard]] std::string describe(CUresult result) const;
};

/// Throws unless a call succeeded: OutOfMemory for CUDA_ERROR_OUT_OF_MEMORY, else SourceError.
/// @param call  the function and its values: "cuMemCreate of 2 MiB on the device".
void check_cuda(CUresult result, const std::string& call);

/// Makes a call that puts something back as it was; tries it again where the driver refuses, which
/// most often does not last. Returns what the last try came to.
template <typename Call>
CUresult insist(Call call) noexcept {
  CUresult result = call();
  for (int i = 0; i < 2 && result != CUDA_SUCCESS; ++i) result = call();
  return result;
}

[[nodiscard]] inline CUdeviceptr to_cuda(const void* address) noexcept {
  return reinterpret_cast<CUdeviceptr>(address);
}
[[nodiscard]] inline std::byte* from_cuda(CUdeviceptr address) noexcept {
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace commensal
