// SPDX-License-Identifier: Apache-2.0
// Runtime API: devices, errors, versions, entry points of the driver.
#include "tests/simulated_cuda/core/device.h"

#include <cstring>

#include "tests/simulated_cuda/runtime/entry.h"

using namespace commensal::simulated_cuda;

namespace {

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  device_attribute(&value, which, device);
  return value;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  COMMENSAL_RUNTIME_CALL(kNothing, count);
  *count = static_cast<int>(Process::get().contexts.size());
  return runtime_result(*count == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS);
}

cudaError_t cudaGetDevice(int* device) {
  COMMENSAL_RUNTIME_CALL(kInit, device);
  *device = thread_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  COMMENSAL_RUNTIME_CALL(kInit, device);
  if (!known(device)) return runtime_result(CUDA_ERROR_INVALID_DEVICE);
  Process& process = Process::get();
  thread_device() = device;
  Context* context = process.contexts[static_cast<std::size_t>(device)].get();
  if (context->retained == 0) {
    const CUresult error = process.retain(device, &context);
    if (error != CUDA_SUCCESS) return runtime_result(error);
  }
  process.set_current(context);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  COMMENSAL_RUNTIME_CALL(kInit, properties, device);
  if (!known(device)) return runtime_result(CUDA_ERROR_INVALID_DEVICE);
  const auto get = [device](CUdevice_attribute which) { return attribute(which, device); };
  const auto size = [&](CUdevice_attribute which) { return static_cast<std::size_t>(get(which)); };
  cudaDeviceProp& made = *properties;
  std::memset(&made, 0, sizeof made);
  std::strcpy(made.name, kDeviceName);
  const Process& process = Process::get();
  const auto uuid = device_uuid(process.settings.visible[static_cast<std::size_t>(device)]);
  std::memcpy(made.uuid.bytes, uuid.data(), uuid.size());
  made.totalGlobalMem = process.ledger.capacity();
  made.major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  made.minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  made.multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  made.warpSize = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  made.maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  made.maxThreadsPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  made.maxBlocksPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  made.maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  made.maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  made.maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  made.maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  made.maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  made.maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  made.sharedMemPerBlock = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  made.sharedMemPerBlockOptin = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  made.sharedMemPerMultiprocessor = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  made.regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  made.regsPerMultiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  made.totalConstMem = size(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  made.l2CacheSize = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  made.memoryBusWidth = get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  made.memPitch = size(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  made.textureAlignment = size(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  made.asyncEngineCount = get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  made.canMapHostMemory = get(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
  made.concurrentKernels = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
  made.ECCEnabled = get(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  made.pciBusID = get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  made.unifiedAddressing = get(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  made.streamPrioritiesSupported = get(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
  made.cooperativeLaunch = get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  made.canUseHostPointerForRegisteredMem =
      get(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  made.hostRegisterSupported = get(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  COMMENSAL_RUNTIME_CALL(kInit, value, which, device);
  if (!known(device)) return runtime_result(CUDA_ERROR_INVALID_DEVICE);
  // The runtime's attributes have the driver's numbers.
  *value = attribute(static_cast<CUdevice_attribute>(which), device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  COMMENSAL_RUNTIME_CALL(kInit, id, length, device);
  if (!known(device)) return runtime_result(CUDA_ERROR_INVALID_DEVICE);
  const std::string text =
      pci_bus_id(Process::get().settings.visible[static_cast<std::size_t>(device)]);
  if (length <= static_cast<int>(text.size())) return runtime_result(CUDA_ERROR_INVALID_VALUE);
  std::strcpy(id, text.c_str());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  COMMENSAL_RUNTIME_CALL(kContext, least, greatest);
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  COMMENSAL_RUNTIME_CALL(kInit, can, device, peer);
  if (!known(device) || !known(peer)) return runtime_result(CUDA_ERROR_INVALID_DEVICE);
  *can = device != peer && Process::get().settings.peer_access ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, peer, flags);
  if (!known(peer)) return runtime_result(CUDA_ERROR_INVALID_DEVICE);
  return runtime_result(Process::get().current()->enable_peer(peer));
}

cudaError_t cudaDeviceSynchronize() {
  COMMENSAL_RUNTIME_CALL(kContext);
  Process& process = Process::get();
  const CUresult refused =
      process.captures.check_not_capturing(nullptr, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (refused != CUDA_SUCCESS) return runtime_result(refused);
  process.current()->synchronize();
  return runtime_result(process.fate);
}

cudaError_t cudaDriverGetVersion(int* version) {
  COMMENSAL_RUNTIME_CALL(kNothing, version);
  *version = kDriverVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  COMMENSAL_RUNTIME_CALL(kNothing, version);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  const char* text = sentence_of(static_cast<CUresult>(error));
  return text == nullptr ? "unrecognized error code" : text;
}

const char* cudaGetErrorName(cudaError_t error) {
  const char* text = name_of(static_cast<CUresult>(error));
  return text == nullptr ? "unrecognized error code" : text;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error();
  // An error that ended all work stays.
  last_error() = static_cast<cudaError_t>(Process::get().fate.load());
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error(); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  COMMENSAL_RUNTIME_CALL(kNothing, symbol, function, version, flags);
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result =
      cuGetProcAddress(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return runtime_result(result);
}

extern "C" {  // their header is not in PyTorch's wheels

cudaError_t cudaProfilerStart() {
  COMMENSAL_RUNTIME_CALL(kContext);
  return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
  COMMENSAL_RUNTIME_CALL(kContext);
  return cudaSuccess;
}

}  // extern "C"
