// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/pointer.h"

#include <cstdint>

#include "tests/simulated_cuda/core/process.h"

namespace commensal::simulated_cuda {
namespace {

template <typename Value, typename Given>
CUresult answer(void* data, Given value) {
  *static_cast<Value*>(data) = static_cast<Value>(value);
  return CUDA_SUCCESS;
}

CUcontext context_of(const Known& known) {
  // Memory that was mapped belongs to no context.
  if (known.kind == Kind::kMapped || known.device < 0) return nullptr;
  return reinterpret_cast<CUcontext>(
      Process::get().contexts[static_cast<std::size_t>(known.device)].get());
}

}  // namespace

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Process& process = Process::get();
  const Known known = process.memory.find(address);
  if (known.kind == Kind::kPageable || known.kind == Kind::kHole) return CUDA_ERROR_INVALID_VALUE;
  const bool on_host = known.device < 0;
  if (known.kind == Kind::kMapped && on_host && !process.settings.host_pointer_attributes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer<void*>(data, static_cast<void*>(context_of(known)));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer<unsigned>(data, on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!on_host) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = reinterpret_cast<void*>(address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return answer<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer<unsigned long long>(data, known.id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer<int>(data, on_host ? -1 : known.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer<int>(data, known.kind == Kind::kAllocated ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return answer<CUdeviceptr>(data, known.start);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return answer<std::size_t>(data, known.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED: return answer<int>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer<unsigned long long>(data, known.handle_types);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer<int>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer<void*>(data, static_cast<void*>(nullptr));
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return answer<unsigned long long>(data, known.id);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

void clear_pointer_attribute(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *static_cast<std::uint64_t*>(data) = 0; return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(data) = -2; return;
    default: *static_cast<int*>(data) = 0;
  }
}

CUresult free_device_memory(CUdeviceptr address) {
  if (address == 0) return CUDA_SUCCESS;
  Process& process = Process::get();
  if (const CUresult error = process.captures.check_unsafe_call(); error != CUDA_SUCCESS) {
    return error;
  }
  const Known known = process.memory.find(address);
  if (known.kind != Kind::kAllocated || known.start != address) return CUDA_ERROR_INVALID_VALUE;
  process.contexts[static_cast<std::size_t>(known.device)]->synchronize();
  return process.memory.deallocate(address);
}

CUresult free_pinned_memory(void* address) {
  Process& process = Process::get();
  if (const CUresult error = process.captures.check_unsafe_call(); error != CUDA_SUCCESS) {
    return error;
  }
  for (const auto& context : process.contexts) context->synchronize();
  return process.memory.unpin(address);
}

}  // namespace commensal::simulated_cuda
