// SPDX-License-Identifier: Apache-2.0
// The calling thread's current stream, as PyTorch keeps it.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "torch_ext/cuda/device_index.h"
#include "torch_ext/cuda/green_dial.h"

namespace commensal {
namespace {

/// A mark behind what is in a stream now.
class Mark {
 public:
  explicit Mark(cudaStream_t stream) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    if (const cudaError_t failed = cudaEventRecord(event_, stream); failed != cudaSuccess) {
      (void)cudaEventDestroy(event_);
      C10_CUDA_CHECK(failed);
    }
  }
  ~Mark() { (void)cudaEventDestroy(event_); }  // what waits for it still does
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  void hold_up(cudaStream_t stream) const {
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class TorchCurrentStream final : public CurrentStream {
 public:
  cudaStream_t get(int device) override {
    return c10::cuda::getCurrentCUDAStream(index_of(device)).stream();
  }

  void set(int device, cudaStream_t stream) override {
    c10::cuda::setCurrentCUDAStream(
        stream == nullptr ? c10::cuda::getDefaultCUDAStream(index_of(device))
                          : c10::cuda::getStreamFromExternal(stream, index_of(device)));
  }

  void join(int device, cudaStream_t one, cudaStream_t other) override {
    const c10::cuda::CUDAGuard guard(index_of(device));  // an event belongs to a device
    const Mark first(one);
    const Mark second(other);
    first.hold_up(other);
    second.hold_up(one);
  }
};

}  // namespace

CurrentStream& torch_current_stream() {
  static TorchCurrentStream& streams = *new TorchCurrentStream;  // never destroyed
  return streams;
}

}  // namespace commensal
