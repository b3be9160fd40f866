// SPDX-License-Identifier: Apache-2.0
// What the CUDA allocator asks of the CUDA runtime, as an interface, so that it can be tested
// without a driver.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "allocator/base/clock.h"

namespace commensal {

/// The current device, streams, marks in streams. Thread safety: all. What is not noexcept throws
/// what PyTorch throws where the runtime refuses (c10::AcceleratorError).
class CudaCalls {
 public:
  virtual ~CudaCalls() = default;

  [[nodiscard]] virtual int current_device() = 0;
  /// The stream into which the calling thread's ops of a device go.
  [[nodiscard]] virtual cudaStream_t current_stream(int device) = 0;
  /// Tells whether a stream is being captured, or that is not known. May be asked at any time: it
  /// breaks no capture.
  [[nodiscard]] virtual bool captures(cudaStream_t stream) noexcept = 0;
  /// Bytes of a device: free, total.
  [[nodiscard]] virtual std::pair<std::size_t, std::size_t> memory_info(int device) = 0;
  /// Marks what is in a stream of a device now.
  [[nodiscard]] virtual cudaEvent_t mark(int device, cudaStream_t stream) = 0;
  /// Tells whether everything before a mark is done.
  [[nodiscard]] virtual bool reached(cudaEvent_t mark) = 0;
  virtual void wait(cudaEvent_t mark) = 0;
  /// Makes an event of a device that tells times; to be forgotten as a mark.
  [[nodiscard]] virtual cudaEvent_t make_timed(int device) = 0;
  /// Puts an event into a stream of its device, again.
  virtual void record(cudaEvent_t event, int device, cudaStream_t stream) = 0;
  /// Time between two timed events that were reached, to half a microsecond.
  [[nodiscard]] virtual Duration between(cudaEvent_t from, cudaEvent_t to) = 0;
  [[nodiscard]] virtual cudaError_t copy(void* dest, int dest_device, const void* src,
                                         int src_device, std::size_t count, cudaStream_t stream,
                                         bool peer_access) noexcept = 0;
  virtual void forget(cudaEvent_t mark) noexcept = 0;
};

/// Those of the runtime that PyTorch brings.
[[nodiscard]] CudaCalls& runtime_cuda_calls();

}  // namespace commensal
