// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's functions, found at run time: the program starts and speaks without a driver.
#pragma once

#include <cuda.h>

#include <stdexcept>
#include <string>

namespace probes {

// Each name is written as in the manual; cuda.h turns it into the version that its types belong to.
// clang-format off
#define PROBES_DRIVER_FUNCTIONS(X) \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetCount) \
  X(cuDeviceGetName) X(cuDeviceGetUuid) X(cuDeviceTotalMem) X(cuDeviceGetAttribute) \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent) \
  X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) \
  X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) \
  X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD32Async) \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) \
  X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAllocationGranularity) X(cuPointerGetAttribute) \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) \
  X(cuStreamWriteValue32) X(cuStreamWaitValue32) X(cuStreamBeginCapture) X(cuStreamEndCapture) \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) \
  X(cuEventElapsedTime) X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphExecDestroy) \
  X(cuGraphDestroy) X(cuLibraryLoadData) X(cuLibraryGetKernel) X(cuModuleLoadData) \
  X(cuModuleGetFunction) X(cuLaunchKernel) X(cuCheckpointProcessLock) \
  X(cuCheckpointProcessUnlock) X(cuCheckpointProcessCheckpoint) X(cuCheckpointProcessRestore) \
  X(cuDeviceGetDevResource) X(cuDevSmResourceSplitByCount) X(cuDevResourceGenerateDesc) \
  X(cuGreenCtxCreate) X(cuGreenCtxDestroy) X(cuGreenCtxStreamCreate) X(cuGreenCtxGetDevResource) \
  X(cuStreamWaitEvent) X(cuCtxRecordEvent) X(cuMemExportToShareableHandle) \
  X(cuMemImportFromShareableHandle)
// clang-format on

/// Says that a probe cannot be answered here, and why. No failure.
class NotRun : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says that there is no driver or no device at all.
class NoDevice : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A driver call that failed.
class DriverError : public std::runtime_error {
 public:
  DriverError(const std::string& function, CUresult result);
};

/// One pointer a function; null where this driver does not have it.
struct Driver {
#define PROBES_MEMBER(name) decltype(&::name) name = nullptr;
  PROBES_DRIVER_FUNCTIONS(PROBES_MEMBER)
#undef PROBES_MEMBER

  /// Loads libcuda.so.1 at the first call. @throws NoDevice if it is not there.
  static const Driver& get();
};

/// "CUDA_ERROR_..." of a result.
std::string name_of(CUresult result);

/// Tells whether the driver is a simulation: it says so by a symbol of its own.
bool driver_is_simulated();

/// Throws DriverError unless the call succeeded.
inline void check(const char* function, CUresult result) {
  if (result != CUDA_SUCCESS) throw DriverError(function, result);
}

template <typename Function, typename... Arguments>
CUresult attempt(const char* name, Function* function, Arguments... arguments) {
  if (function == nullptr) throw NotRun(std::string{"this driver has no "} + name);
  return function(arguments...);
}

// CU(cuMemMap, ...) calls and throws DriverError if it fails; TRY_CU returns the result instead.
// A function that the driver lacks is NotRun in both.
#define TRY_CU(name, ...) ::probes::attempt(#name, ::probes::Driver::get().name, __VA_ARGS__)
#define CU(name, ...) ::probes::check(#name, TRY_CU(name, __VA_ARGS__))

}  // namespace probes
