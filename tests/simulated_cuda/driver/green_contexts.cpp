// SPDX-License-Identifier: Apache-2.0
// Driver API: multiprocessors as a resource, green contexts and their streams.
#include <algorithm>

#include "tests/simulated_cuda/core/device.h"
#include "tests/simulated_cuda/core/entry.h"
#include "tests/simulated_cuda/core/green_context.h"

using namespace commensal::simulated_cuda;

namespace {

HandleTable<ResourceSet, CUdevResourceDesc>& descriptors() {
  static auto* const table = new HandleTable<ResourceSet, CUdevResourceDesc>;
  return *table;
}

/// A green context by handle: CUDA_ERROR_INVALID_CONTEXT, or that it was destroyed.
CUresult find(CUgreenCtx handle, GreenContext** found) {
  *found = GreenContexts::get().find(handle);
  if (*found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return (*found)->part->gone ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult check_type(const CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

}  // namespace

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  COMMENSAL_DRIVER_CALL(kInit, device, resource, type);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  COMMENSAL_RETURN_IF_REFUSED(check_type(resource, type));
  *resource = whole_resource(device, kMultiprocessors);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource,
                                  CUdevResourceType type) {
  COMMENSAL_DRIVER_CALL(kInit, handle, resource, type);
  GreenContext* green = nullptr;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &green));
  COMMENSAL_RETURN_IF_REFUSED(check_type(resource, type));
  *resource = whole_resource(green->resources.device, green->resources.multiprocessors);
  return CUDA_SUCCESS;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned* count,
                                     const CUdevResource* whole, CUdevResource* remaining,
                                     unsigned flags, unsigned least) {
  COMMENSAL_DRIVER_CALL(kInit, parts, count, whole, remaining, flags, least);
  if (count == nullptr || whole == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return split_resource(parts, count, *whole, remaining, flags, least);
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* descriptor, CUdevResource* parts,
                                   unsigned count) {
  COMMENSAL_DRIVER_CALL(kInit, descriptor, parts, count);
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ResourceSet set;
  COMMENSAL_RETURN_IF_REFUSED(collect_resources(parts, count, &set));
  *descriptor = descriptors().add(std::make_shared<ResourceSet>(set));
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc descriptor, CUdevice device,
                          unsigned flags) {
  COMMENSAL_DRIVER_CALL(kInit, handle, descriptor, device, flags);
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (handle == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<ResourceSet> resources = descriptors().find(descriptor);
  if (resources == nullptr || resources->device != device) return CUDA_ERROR_INVALID_VALUE;
  COMMENSAL_RETURN_IF_REFUSED(unsafe_call());
  Context* primary = nullptr;
  COMMENSAL_RETURN_IF_REFUSED(Process::get().retain(device, &primary));
  *handle = reinterpret_cast<CUgreenCtx>(&GreenContexts::get().add(*primary, *resources));
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  COMMENSAL_DRIVER_CALL(kInit, handle);
  GreenContext* green = nullptr;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &green));
  COMMENSAL_RETURN_IF_REFUSED(unsafe_call());
  green->part->gone = true;
  return Process::get().release(green->resources.device);
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  COMMENSAL_DRIVER_CALL(kInit, context, handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GreenContext* green = nullptr;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &green));
  *context = reinterpret_cast<CUcontext>(&green->converted);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx handle, unsigned flags, int priority) {
  COMMENSAL_DRIVER_CALL(kInit, stream, handle, flags, priority);
  GreenContext* green = nullptr;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &green));
  if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const int meant = std::clamp(priority, kGreatestPriority, kLeastPriority);
  *stream = Process::get().streams.add(green->converted.make_stream(flags, meant));
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
  COMMENSAL_DRIVER_CALL(kContext, handle, green);
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(Process::get().find_stream(handle, &stream));
  *green = reinterpret_cast<CUgreenCtx>(GreenContexts::get().of(*stream));
  return CUDA_SUCCESS;
}
