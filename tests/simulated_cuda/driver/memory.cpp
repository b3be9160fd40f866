// SPDX-License-Identifier: Apache-2.0
// Driver API: allocations, pinned host memory, copies, fills, what a pointer points to.
#include "tests/simulated_cuda/core/entry.h"
#include "tests/simulated_cuda/core/pointer.h"
#include "tests/simulated_cuda/core/transfer.h"

using namespace commensal::simulated_cuda;

namespace {

CUresult copy_in(CUstream handle, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, Wait wait,
                 bool any_device = false) {
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(Process::get().find_stream(handle, &stream));
  return copy(stream, to, from, bytes, wait, any_device);
}

CUresult fill_in(CUstream handle, CUdeviceptr to, std::uint32_t pattern, std::size_t width,
                 std::size_t count, Wait wait) {
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(Process::get().find_stream(handle, &stream));
  return fill(stream, to, pattern, width, count * width, wait);
}

CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  COMMENSAL_DRIVER_CALL(kContext, free, total);
  Process& process = Process::get();
  *total = process.ledger.capacity();
  *free = *total - process.ledger.used(process.current()->device());
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kContext, address, bytes);
  COMMENSAL_RETURN_IF_REFUSED(unsafe_call());
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().allocate(address, bytes, Process::get().current()->device());
}

CUresult cuMemFree(CUdeviceptr address) {
  COMMENSAL_DRIVER_CALL(kContext, address);
  return free_device_memory(address);
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  COMMENSAL_DRIVER_CALL(kContext, base, bytes, address);
  const Known known = memory().find(address);
  if (known.kind == Kind::kPageable || known.kind == Kind::kHole) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = known.start;
  if (bytes != nullptr) *bytes = known.bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, address, bytes, flags);
  COMMENSAL_RETURN_IF_REFUSED(unsafe_call());
  if (address == nullptr || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  return memory().pin(address, bytes, flags);
}

CUresult cuMemAllocHost(void** address, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kContext, address, bytes);
  COMMENSAL_RETURN_IF_REFUSED(unsafe_call());
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().pin(address, bytes, 0);
}

CUresult cuMemFreeHost(void* address) {
  COMMENSAL_DRIVER_CALL(kContext, address);
  return free_pinned_memory(address);
}

CUresult cuMemHostRegister(void* address, std::size_t bytes, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, address, bytes, flags);
  COMMENSAL_RETURN_IF_REFUSED(unsafe_call());
  return memory().add_registration(address, bytes, flags);
}

CUresult cuMemHostUnregister(void* address) {
  COMMENSAL_DRIVER_CALL(kContext, address);
  COMMENSAL_RETURN_IF_REFUSED(unsafe_call());
  return memory().remove_registration(address);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, device, host, flags);
  const Kind kind = memory().find(number(host)).kind;
  if (flags != 0 || (kind != Kind::kPinned && kind != Kind::kRegistered)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = number(host);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
  COMMENSAL_DRIVER_CALL(kContext, flags, host);
  const Known known = memory().find(number(host));
  if (known.kind != Kind::kPinned) return CUDA_ERROR_INVALID_VALUE;
  *flags = known.flags;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  COMMENSAL_DRIVER_CALL(kInit, data, attribute, address);
  return pointer_attribute(data, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  COMMENSAL_DRIVER_CALL(kInit, count, attributes, data, address);
  for (unsigned i = 0; i < count; ++i) {
    // Documented: no error for an unknown pointer, its attributes are null or zero.
    if (pointer_attribute(data[i], attributes[i], address) != CUDA_SUCCESS) {
      clear_pointer_attribute(data[i], attributes[i]);
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes);
  return copy_in(nullptr, to, from, bytes, Wait::kYes);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes);
  return copy_in(nullptr, to, number(from), bytes, Wait::kYes);
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes);
  return copy_in(nullptr, number(to), from, bytes, Wait::kYes);
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes);
  return copy_in(nullptr, to, from, bytes, Wait::kYes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes, stream);
  return copy_in(stream, to, from, bytes, Wait::kNo);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes, stream);
  return copy_in(stream, to, number(from), bytes, Wait::kNo);
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes, stream);
  return copy_in(stream, number(to), from, bytes, Wait::kNo);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, from, bytes, stream);
  return copy_in(stream, to, from, bytes, Wait::kNo);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, std::size_t bytes, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, to_context, from, from_context, bytes, stream);
  return copy_in(stream, to, from, bytes, Wait::kNo, true);
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t count) {
  COMMENSAL_DRIVER_CALL(kContext, to, value, count);
  return fill_in(nullptr, to, value, 1, count, Wait::kYes);
}

CUresult cuMemsetD32(CUdeviceptr to, unsigned value, std::size_t count) {
  COMMENSAL_DRIVER_CALL(kContext, to, value, count);
  return fill_in(nullptr, to, value, 4, count, Wait::kYes);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, value, count, stream);
  return fill_in(stream, to, value, 1, count, Wait::kNo);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count,
                          CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, value, count, stream);
  return fill_in(stream, to, value, 2, count, Wait::kNo);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, to, value, count, stream);
  return fill_in(stream, to, value, 4, count, Wait::kNo);
}
