// SPDX-License-Identifier: Apache-2.0
// Names and sentences of the results that the simulated driver can give.
#include <stdexcept>

#include "tests/simulated_cuda/core/call_log.h"

namespace commensal::simulated_cuda {
namespace {

struct Named {
  CUresult result;
  const char* name;
  const char* sentence;
};

#define COMMENSAL_RESULT(name, sentence) \
  Named { name, #name, sentence }
constexpr Named kResults[] = {
    COMMENSAL_RESULT(CUDA_SUCCESS, "no error"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    COMMENSAL_RESULT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    COMMENSAL_RESULT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    COMMENSAL_RESULT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    COMMENSAL_RESULT(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    COMMENSAL_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy"),
    COMMENSAL_RESULT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    COMMENSAL_RESULT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    COMMENSAL_RESULT(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    COMMENSAL_RESULT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    COMMENSAL_RESULT(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    COMMENSAL_RESULT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                     "peer access is not supported between these two devices"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    COMMENSAL_RESULT(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    COMMENSAL_RESULT(CUDA_ERROR_OPERATING_SYSTEM,
                     "OS call failed or operation not supported on "
                     "this OS"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    COMMENSAL_RESULT(CUDA_ERROR_ILLEGAL_STATE,
                     "the operation cannot be performed in the present state"),
    COMMENSAL_RESULT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    COMMENSAL_RESULT(CUDA_ERROR_NOT_READY, "device not ready"),
    COMMENSAL_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    COMMENSAL_RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    COMMENSAL_RESULT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    COMMENSAL_RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    COMMENSAL_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    COMMENSAL_RESULT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
                     "cannot set while device is active in this process"),
    COMMENSAL_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    COMMENSAL_RESULT(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    COMMENSAL_RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                     "part or all of the requested memory range is already mapped"),
    COMMENSAL_RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                     "pointer does not correspond to a registered memory region"),
    COMMENSAL_RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    COMMENSAL_RESULT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    COMMENSAL_RESULT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    COMMENSAL_RESULT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    COMMENSAL_RESULT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                     "operation not permitted when stream is capturing"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                     "operation failed due to a previous error during capture"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                     "operation would result in a merge of separate capture sequences"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                     "capture was not ended in the same stream as it began"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                     "dependency created on uncaptured work in another stream"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                     "operation would make the legacy stream depend on a capturing blocking "
                     "stream"),
    COMMENSAL_RESULT(CUDA_ERROR_CAPTURED_EVENT,
                     "operation not permitted on an event last recorded in a capturing stream"),
    COMMENSAL_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                     "attempt to terminate a thread-local capture sequence from another thread"),
    COMMENSAL_RESULT(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type"),
    COMMENSAL_RESULT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration"),
    COMMENSAL_RESULT(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const Named* find(CUresult result) noexcept {
  for (const Named& named : kResults) {
    if (named.result == result) return &named;
  }
  return nullptr;
}

}  // namespace

const char* name_of(CUresult result) noexcept {
  const Named* named = find(result);
  return named == nullptr ? nullptr : named->name;
}

const char* sentence_of(CUresult result) noexcept {
  const Named* named = find(result);
  return named == nullptr ? nullptr : named->sentence;
}

CUresult result_from_text(const std::string& text) {
  for (const Named& named : kResults) {
    if (text == named.name || text == std::to_string(static_cast<int>(named.result))) {
      return named.result;
    }
  }
  throw std::invalid_argument("no CUresult: " + text);
}

}  // namespace commensal::simulated_cuda
