// SPDX-License-Identifier: Apache-2.0
// Has a GPU write into shared memory that it has done what a process gave it.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/cuda/device_context.h"
#include "torch_ext/cuda/cuda_calls.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal {

/// Marks are memory writes of the calling thread's current stream, into a page that is registered
/// with the driver: who reads the page needs no call, and sees the mark within microseconds. Work
/// in other streams is not waited for. Nothing is asked of the driver while a graph may be
/// captured. Thread safety: all.
class PageQueue final : public DeviceQueue {
 public:
  /// @param done  the word to write; the page of memory around it is registered.
  /// @throws SourceError if the device cannot write to it.
  PageQueue(int device, std::atomic<std::uint64_t>& done, CudaCalls& calls, bool (*capturing)());
  /// Waits for the newest mark, a second at most: until it is passed the device may write to the
  /// page, which its owner must keep for as long.
  ~PageQueue() override;
  PageQueue(const PageQueue&) = delete;
  PageQueue& operator=(const PageQueue&) = delete;

  [[nodiscard]] bool mark(std::uint64_t number) noexcept override;

 private:
  const DeviceContext context_;
  const int device_;
  CudaCalls& calls_;
  bool (*const capturing_)();
  void* registered_ = nullptr;
  CUdeviceptr done_ = 0;
  std::atomic<std::uint64_t>& word_;
  std::atomic<std::uint64_t> newest_;  // that is on its way, or was passed
};

}  // namespace commensal
