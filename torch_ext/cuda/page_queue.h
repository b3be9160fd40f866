// SPDX-License-Identifier: Apache-2.0
// Has a GPU write into shared memory that it has done what a process gave it.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/cuda/device_context.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal {

/// A mark is a memory write into a page that is registered with the driver: who reads the page
/// needs no call, and sees it within microseconds. It is written once all streams of the context
/// have come so far, also those that no one here knows (NCCL, DLPack, raw extensions): a stream of
/// our own waits for them, and no stream of the program's for another one. Nothing is asked of the
/// driver while a graph may be captured. Thread safety: marks are made by one thread at a time.
class PageQueue final : public DeviceQueue {
 public:
  /// @param done  the word to write; the page of memory around it is registered.
  /// @throws SourceError if the device cannot write to it.
  PageQueue(int device, std::atomic<std::uint64_t>& done, bool (*capturing)());
  /// Waits for the newest mark, a second at most: until it is passed the device may write to the
  /// page, which its owner must keep for as long.
  ~PageQueue() override;
  PageQueue(const PageQueue&) = delete;
  PageQueue& operator=(const PageQueue&) = delete;

  [[nodiscard]] bool mark(std::uint64_t number) noexcept override;

 private:
  void map(std::atomic<std::uint64_t>& done);
  void close() noexcept;

  const DeviceContext context_;
  bool (*const capturing_)();
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;  // all that the context was given; used again and again
  void* registered_ = nullptr;
  CUdeviceptr done_ = 0;
  std::atomic<std::uint64_t>& word_;
  std::atomic<std::uint64_t> newest_;  // that is on its way, or was passed
};

}  // namespace commensal
