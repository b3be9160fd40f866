// SPDX-License-Identifier: Apache-2.0
// Driver API: initialisation, devices, contexts, errors.
#include "tests/simulated_cuda/core/device.h"

#include <cstring>

#include "tests/simulated_cuda/core/entry.h"
#include "tests/simulated_cuda/core/green_context.h"
#include "tests/simulated_cuda/core/stream_calls.h"

using namespace commensal::simulated_cuda;

namespace {

int physical(CUdevice device) {
  return Process::get().settings.visible[static_cast<std::size_t>(device)];
}

Context& context_of(CUdevice device) {
  return *Process::get().contexts[static_cast<std::size_t>(device)];
}

bool is_context(CUcontext context) {
  for (const auto& made : Process::get().contexts) {
    if (reinterpret_cast<CUcontext>(made.get()) == context) return true;
  }
  const GreenContext* const green =
      GreenContexts::get().of(reinterpret_cast<const Context*>(context));
  return green != nullptr && !green->part->gone;
}

}  // namespace

CUresult cuInit(unsigned flags) {
  COMMENSAL_DRIVER_CALL(kNothing, flags);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Process& process = Process::get();
  if (process.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (process.contexts.empty()) return CUDA_ERROR_NO_DEVICE;
  process.initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  COMMENSAL_DRIVER_CALL(kNothing, version);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  COMMENSAL_DRIVER_CALL(kNothing, error);
  *text = sentence_of(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  COMMENSAL_DRIVER_CALL(kNothing, error);
  *text = name_of(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  COMMENSAL_DRIVER_CALL(kInit, count);
  *count = static_cast<int>(Process::get().contexts.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  COMMENSAL_DRIVER_CALL(kInit, device, ordinal);
  if (!known(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  COMMENSAL_DRIVER_CALL(kInit, name, length, device);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::strncpy(name, kDeviceName, static_cast<std::size_t>(length));
  name[length - 1] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  COMMENSAL_DRIVER_CALL(kInit, uuid, device);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto bytes = device_uuid(physical(device));
  std::memcpy(uuid->bytes, bytes.data(), bytes.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  COMMENSAL_DRIVER_CALL(kInit, id, length, device);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::string text = pci_bus_id(physical(device));
  if (length <= static_cast<int>(text.size())) return CUDA_ERROR_INVALID_VALUE;
  std::strcpy(id, text.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  COMMENSAL_DRIVER_CALL(kInit, bytes, device);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = Process::get().ledger.capacity();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  COMMENSAL_DRIVER_CALL(kInit, value, attribute, device);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  device_attribute(value, attribute, device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  COMMENSAL_DRIVER_CALL(kInit, can, device, peer);
  if (!known(device) || !known(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && Process::get().settings.peer_access ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  COMMENSAL_DRIVER_CALL(kInit, context, device);
  Context* found = nullptr;
  COMMENSAL_RETURN_IF_REFUSED(Process::get().retain(device, &found));
  *context = reinterpret_cast<CUcontext>(found);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  COMMENSAL_DRIVER_CALL(kInit, device);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  return Process::get().release(device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  COMMENSAL_DRIVER_CALL(kInit, device);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = context_of(device).scheduling;
  *active = context_of(device).retained > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kInit, device, flags);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  context_of(device).scheduling = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  COMMENSAL_DRIVER_CALL(kInit, context);
  *context = reinterpret_cast<CUcontext>(Process::get().current());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  COMMENSAL_DRIVER_CALL(kInit, context);
  if (context != nullptr && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  Process::get().set_current(reinterpret_cast<Context*>(context));
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  COMMENSAL_DRIVER_CALL(kInit, context);
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  Process::stack().push_back(reinterpret_cast<Context*>(context));
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  COMMENSAL_DRIVER_CALL(kInit, context);
  auto& stack = Process::stack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = reinterpret_cast<CUcontext>(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  COMMENSAL_DRIVER_CALL(kContext, device);
  *device = Process::get().current()->device();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned* flags) {
  COMMENSAL_DRIVER_CALL(kContext, flags);
  *flags = Process::get().current()->scheduling;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  COMMENSAL_DRIVER_CALL(kContext, least, greatest);
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  COMMENSAL_DRIVER_CALL(kContext, value, limit);
  *value = 1UL << 20;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
  COMMENSAL_DRIVER_CALL(kContext, limit, value);
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, peer, flags);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_context(peer)) return CUDA_ERROR_INVALID_CONTEXT;
  return Process::get().current()->enable_peer(reinterpret_cast<Context*>(peer)->device());
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  COMMENSAL_DRIVER_CALL(kInit, context, event);
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  return record_event_of_context(*reinterpret_cast<Context*>(context), event);
}

CUresult cuCtxSynchronize(void) {
  COMMENSAL_DRIVER_CALL(kContext);
  Process& process = Process::get();
  COMMENSAL_RETURN_IF_REFUSED(
      process.captures.check_not_capturing(nullptr, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  process.current()->synchronize();
  return process.fate;
}
