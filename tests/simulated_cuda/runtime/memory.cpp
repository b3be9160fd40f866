// SPDX-License-Identifier: Apache-2.0
// Runtime API: allocations, pinned host memory, copies, fills, what a pointer points to.
#include "tests/simulated_cuda/core/pointer.h"
#include "tests/simulated_cuda/core/transfer.h"
#include "tests/simulated_cuda/runtime/entry.h"

using namespace commensal::simulated_cuda;

namespace {

CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

/// A direction that contradicts the pointers is refused.
bool direction_fits(const void* to, const void* from, cudaMemcpyKind kind) {
  const AddressSpace& memory = Process::get().memory;
  const auto on_device = [&](const void* address) {
    const Known known = memory.find(number(address));
    return known.device >= 0 || known.kind == Kind::kHole;
  };
  const auto pageable = [&](const void* address) {
    return memory.find(number(address)).kind == Kind::kPageable;
  };
  switch (kind) {
    case cudaMemcpyHostToHost: return !on_device(to) && !on_device(from);
    case cudaMemcpyHostToDevice: return !pageable(to) && !on_device(from);
    case cudaMemcpyDeviceToHost: return !on_device(to) && !pageable(from);
    case cudaMemcpyDeviceToDevice: return !pageable(to) && !pageable(from);
    default: return kind == cudaMemcpyDefault;
  }
}

cudaError_t copy_in(cudaStream_t handle, void* to, const void* from, std::size_t bytes,
                    cudaMemcpyKind kind, Wait wait, bool any_device = false) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    last_error() = cudaErrorInvalidMemcpyDirection;
    return cudaErrorInvalidMemcpyDirection;
  }
  std::shared_ptr<Stream> stream;
  if (const CUresult error = Process::get().find_stream(handle, &stream); error != CUDA_SUCCESS) {
    return runtime_result(error);
  }
  if (bytes > 0 && !direction_fits(to, from, kind)) {
    return runtime_result(CUDA_ERROR_INVALID_VALUE);
  }
  return runtime_result(copy(stream, number(to), number(from), bytes, wait, any_device));
}

cudaError_t fill_in(cudaStream_t handle, void* to, int value, std::size_t bytes, Wait wait) {
  std::shared_ptr<Stream> stream;
  if (const CUresult error = Process::get().find_stream(handle, &stream); error != CUDA_SUCCESS) {
    return runtime_result(error);
  }
  const auto pattern = static_cast<std::uint32_t>(static_cast<unsigned char>(value));
  return runtime_result(fill(stream, number(to), pattern, 1, bytes, wait));
}

}  // namespace

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  COMMENSAL_RUNTIME_CALL(kContext, free, total);
  Process& process = Process::get();
  *total = process.ledger.capacity();
  *free = *total - process.ledger.used(process.current()->device());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  COMMENSAL_RUNTIME_CALL(kContext, address, bytes);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return runtime_result(error);
  if (address == nullptr) return runtime_result(CUDA_ERROR_INVALID_VALUE);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  CUdeviceptr made = 0;
  Process& process = Process::get();
  const CUresult result = process.memory.allocate(&made, bytes, process.current()->device());
  *address = reinterpret_cast<void*>(made);
  return runtime_result(result);
}

cudaError_t cudaFree(void* address) {
  COMMENSAL_RUNTIME_CALL(kContext, address);
  return runtime_result(free_device_memory(number(address)));
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, address, bytes, flags);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return runtime_result(error);
  if (address == nullptr || flags > 7) return runtime_result(CUDA_ERROR_INVALID_VALUE);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  return runtime_result(Process::get().memory.pin(address, bytes, flags));
}

cudaError_t cudaFreeHost(void* address) {
  COMMENSAL_RUNTIME_CALL(kContext, address);
  if (address == nullptr) return cudaSuccess;
  return runtime_result(free_pinned_memory(address));
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, address, bytes, flags);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return runtime_result(error);
  return runtime_result(Process::get().memory.add_registration(address, bytes, flags));
}

cudaError_t cudaHostUnregister(void* address) {
  COMMENSAL_RUNTIME_CALL(kContext, address);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return runtime_result(error);
  return runtime_result(Process::get().memory.remove_registration(address));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  COMMENSAL_RUNTIME_CALL(kContext, attributes, address);
  const Known known = Process::get().memory.find(number(address));
  *attributes = {};
  attributes->device = -2;
  if (known.kind == Kind::kPageable || known.kind == Kind::kHole) {
    attributes->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
  }
  const bool on_host = known.device < 0;
  if (known.kind == Kind::kMapped && on_host && !Process::get().settings.host_pointer_attributes) {
    return runtime_result(CUDA_ERROR_INVALID_VALUE);
  }
  attributes->type = on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = on_host ? Process::get().current()->device() : known.device;
  attributes->devicePointer = const_cast<void*>(address);
  attributes->hostPointer = on_host ? const_cast<void*>(address) : nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  COMMENSAL_RUNTIME_CALL(kContext, to, from, bytes, kind);
  return copy_in(nullptr, to, from, bytes, kind, Wait::kYes);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, to, from, bytes, kind, stream);
  return copy_in(stream, to, from, bytes, kind, Wait::kNo);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, to, to_device, from, from_device, bytes, stream);
  return copy_in(stream, to, from, bytes, cudaMemcpyDefault, Wait::kNo, true);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, to, to_pitch, from, from_pitch, width, height, kind, stream);
  if (width > to_pitch || width > from_pitch) {
    last_error() = cudaErrorInvalidPitchValue;
    return cudaErrorInvalidPitchValue;
  }
  for (std::size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        copy_in(stream, static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, width, kind, Wait::kNo);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  COMMENSAL_RUNTIME_CALL(kContext, to, value, bytes);
  return fill_in(nullptr, to, value, bytes, Wait::kYes);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, to, value, bytes, stream);
  return fill_in(stream, to, value, bytes, Wait::kNo);
}

// Stream-ordered pools (PyTorch's backend cudaMallocAsync): this driver has none and says so, as
// in the attribute cudaDevAttrMemoryPoolsSupported.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  COMMENSAL_RUNTIME_CALL(kInit, pool, device);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, address, bytes, stream);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, address, stream);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void*) {
  COMMENSAL_RUNTIME_CALL(kInit, pool, attribute);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void*) {
  COMMENSAL_RUNTIME_CALL(kInit, pool, attribute);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc*, std::size_t count) {
  COMMENSAL_RUNTIME_CALL(kInit, pool, count);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t bytes) {
  COMMENSAL_RUNTIME_CALL(kInit, pool, bytes);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}
