// SPDX-License-Identifier: Apache-2.0
// Driver API: streams, events, host functions, memory operations of streams.
#include "tests/simulated_cuda/core/entry.h"
#include "tests/simulated_cuda/core/stream_calls.h"
#include "tests/simulated_cuda/core/transfer.h"

using namespace commensal::simulated_cuda;

namespace {

template <typename Operation>
CUresult with_stream(CUstream handle, Operation operation) {
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(Process::get().find_stream(handle, &stream));
  return operation(stream);
}

}  // namespace

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, stream, flags);
  return create_stream(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  COMMENSAL_DRIVER_CALL(kContext, stream, flags, priority);
  return create_stream(stream, flags, priority);
}

CUresult cuStreamDestroy(CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, stream);
  return destroy_stream(stream);
}

CUresult cuStreamQuery(CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, stream);
  return query_stream(stream);
}

CUresult cuStreamSynchronize(CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, stream);
  return synchronize_stream(stream);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, stream, event, flags);
  return wait_event(stream, event, flags);
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  COMMENSAL_DRIVER_CALL(kContext, handle, priority);
  return with_stream(handle, [&](const auto& stream) {
    *priority = stream->priority();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  COMMENSAL_DRIVER_CALL(kContext, handle, flags);
  return with_stream(handle, [&](const auto& stream) {
    *flags = stream->flags();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  COMMENSAL_DRIVER_CALL(kContext, handle, id);
  return with_stream(handle, [&](const auto& stream) {
    *id = stream->id();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  COMMENSAL_DRIVER_CALL(kContext, handle, context);
  return with_stream(handle, [&](const auto& stream) {
    if (stream->part() != nullptr) return CUDA_ERROR_NOT_SUPPORTED;  // cuStreamGetGreenCtx tells
    const auto device = static_cast<std::size_t>(stream->device());
    *context = reinterpret_cast<CUcontext>(Process::get().contexts[device].get());
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  COMMENSAL_DRIVER_CALL(kContext, stream, data);
  return launch_host_function(stream, function, data);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                             unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, stream, data, flags);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return add_callback(stream, callback, data);
}

CUresult cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value,
                              unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, handle, address, value, flags);
  return with_stream(
      handle, [&](const auto& stream) { return write_value(stream, address, value, 4, flags); });
}

CUresult cuStreamWriteValue64(CUstream handle, CUdeviceptr address, cuuint64_t value,
                              unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, handle, address, value, flags);
  return with_stream(
      handle, [&](const auto& stream) { return write_value(stream, address, value, 8, flags); });
}

CUresult cuStreamWaitValue32(CUstream handle, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, handle, address, value, flags);
  return with_stream(
      handle, [&](const auto& stream) { return wait_value(stream, address, value, 4, flags); });
}

CUresult cuStreamWaitValue64(CUstream handle, CUdeviceptr address, cuuint64_t value,
                             unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, handle, address, value, flags);
  return with_stream(
      handle, [&](const auto& stream) { return wait_value(stream, address, value, 8, flags); });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, event, flags);
  return create_event(event, flags);
}

CUresult cuEventDestroy(CUevent event) {
  COMMENSAL_DRIVER_CALL(kContext, event);
  return destroy_event(event);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, event, stream);
  return record_event(event, stream, 0);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kContext, event, stream, flags);
  return record_event(event, stream, flags);
}

CUresult cuEventQuery(CUevent event) {
  COMMENSAL_DRIVER_CALL(kContext, event);
  return query_event(event);
}

CUresult cuEventSynchronize(CUevent event) {
  COMMENSAL_DRIVER_CALL(kContext, event);
  return synchronize_event(event);
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  COMMENSAL_DRIVER_CALL(kContext, milliseconds, begin, end);
  return elapsed_time(milliseconds, begin, end);
}
