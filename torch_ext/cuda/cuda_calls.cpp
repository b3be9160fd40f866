// SPDX-License-Identifier: Apache-2.0
// What the CUDA allocator asks of the CUDA runtime that PyTorch brings.
#include "torch_ext/cuda/cuda_calls.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "torch_ext/cuda/device_index.h"

namespace commensal {
namespace {

class RuntimeCalls final : public CudaCalls {
 public:
  int current_device() override { return c10::cuda::current_device(); }

  cudaStream_t current_stream(int device) override {
    return c10::cuda::getCurrentCUDAStream(index_of(device)).stream();
  }

  bool captures(cudaStream_t stream) noexcept override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
      (void)cudaGetLastError();  // the legacy stream has no answer while another one is captured
      return true;
    }
    return status != cudaStreamCaptureStatusNone;
  }

  std::pair<std::size_t, std::size_t> memory_info(int device) override {
    const c10::cuda::CUDAGuard guard(index_of(device));
    std::size_t free = 0;
    std::size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {free, total};
  }

  cudaEvent_t mark(int device, cudaStream_t stream) override {
    const c10::cuda::CUDAGuard guard(index_of(device));  // an event belongs to a device
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    if (const cudaError_t failed = cudaEventRecord(event, stream); failed != cudaSuccess) {
      forget(event);
      C10_CUDA_CHECK(failed);
    }
    return event;
  }

  bool reached(cudaEvent_t mark) override {
    const cudaError_t state = cudaEventQuery(mark);
    if (state == cudaErrorNotReady) {
      (void)cudaGetLastError();  // it is no error, but stays as the last one
      return false;
    }
    C10_CUDA_CHECK(state);
    return true;
  }

  void wait(cudaEvent_t mark) override { C10_CUDA_CHECK(cudaEventSynchronize(mark)); }

  cudaEvent_t make_timed(int device) override {
    const c10::cuda::CUDAGuard guard(index_of(device));
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreate(&event));
    return event;
  }

  void record(cudaEvent_t event, int device, cudaStream_t stream) override {
    const c10::cuda::CUDAGuard guard(index_of(device));
    C10_CUDA_CHECK(cudaEventRecord(event, stream));
  }

  Duration between(cudaEvent_t from, cudaEvent_t to) override {
    float milliseconds = 0.0F;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from, to));
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double, std::milli>(milliseconds));
  }

  cudaError_t copy(void* dest, int dest_device, const void* src, int src_device, std::size_t count,
                   cudaStream_t stream, bool peer_access) noexcept override {
    if (dest_device == src_device || peer_access) {
      return cudaMemcpyAsync(dest, src, count, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(dest, dest_device, src, src_device, count, stream);
  }

  void forget(cudaEvent_t mark) noexcept override { (void)cudaEventDestroy(mark); }
};

}  // namespace

CudaCalls& runtime_cuda_calls() {
  static RuntimeCalls& calls = *new RuntimeCalls;  // never destroyed
  return calls;
}

}  // namespace commensal
