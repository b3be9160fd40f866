// SPDX-License-Identifier: Apache-2.0
// Has a GPU write into shared memory that it has done what a process gave it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator/cuda/device_context.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal {

/// A mark is a memory write into a page that is registered with the driver: who reads the page
/// needs no call, and sees it within microseconds. It is written once all streams of the context
/// have come so far, also those that no one here knows (NCCL, DLPack, raw extensions): a stream of
/// our own waits for them, and no stream of the program's for another one. The contexts of other
/// devices count from `add` on. Nothing is asked of the driver while a graph may be captured.
/// Thread safety: marks are made by one thread at a time; `add` by another one at the same time.
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

  /// Has marks wait for this device as well. @throws SourceError; std::length_error if there are
  /// too many.
  void add(int device);

  [[nodiscard]] bool mark(std::uint64_t number) noexcept override;

 private:
  static constexpr std::size_t kMostOthers = 15;
  /// All that the context of a device was given; its event is used again and again.
  struct Given {
    explicit Given(int device);
    ~Given();
    Given(const Given&) = delete;
    Given& operator=(const Given&) = delete;
    /// Has the stream, of whichever device, wait for it.
    [[nodiscard]] bool precede(CUstream stream) const noexcept;

    const DeviceContext context;
    CUevent event = nullptr;
  };
  void map(std::atomic<std::uint64_t>& done);
  void close() noexcept;

  const DeviceContext context_;
  bool (*const capturing_)();
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  std::array<std::unique_ptr<const Given>, kMostOthers> others_;
  std::atomic<std::size_t> others_end_{0};
  void* registered_ = nullptr;
  CUdeviceptr done_ = 0;
  std::atomic<std::uint64_t>& word_;
  std::atomic<std::uint64_t> newest_;  // that is on its way, or was passed
};

}  // namespace commensal
