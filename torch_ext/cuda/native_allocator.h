// SPDX-License-Identifier: Apache-2.0
// PyTorch's own CUDA allocator, watched: who uses which GPU, who captures, who finds no room.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "allocator/base/bytes.h"
#include "torch_ext/cuda/cuda_calls.h"
#include "torch_ext/cuda/forwarding_allocator.h"
#include "torch_ext/cuda/pool_filters.h"

namespace commensal {

/// Hears what a NativeAllocator sees. Thread safety: all; called with no lock of PyTorch's held.
class NativeListener {
 public:
  virtual ~NativeListener() = default;
  /// A device is about to be used, now and from now on. @return whether that is all there is to
  /// hear; else it is told again with the next block.
  virtual bool used(int device) noexcept = 0;
  /// A block was served.
  virtual void served() noexcept = 0;
  /// PyTorch's allocator finds no room for a block, after it gave back what it caches. @return
  /// whether it should try again.
  virtual bool make_room(int device, Bytes size) noexcept = 0;
  /// What the process may hold of a device; the largest number: no limit.
  [[nodiscard]] virtual Bytes limit(int device) noexcept = 0;
};

/// Forwards every call and leaves each block its deleter, so it may take its place at any time. Of
/// captures it knows those that begin after that. Thread safety: all.
class NativeAllocator final : public ForwardingAllocator {
 public:
  /// Both must outlive this.
  NativeAllocator(Base& native, CudaCalls& calls, NativeListener& listener)
      : ForwardingAllocator(native), calls_(calls), listener_(listener) {}

  /// Tells whether a graph may be captured now.
  [[nodiscard]] bool capturing() const noexcept { return filters_.capturing(); }

  c10::DataPtr allocate(std::size_t size) override;
  void* raw_alloc(std::size_t size) override;
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override;
  /// What is free and what there is, within the limit.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;

 private:
  static constexpr int kMaxDevices = 64;
  /// The current device, which the listener has heard of.
  int note_use();
  template <typename Allocate>
  auto with_room(std::size_t size, Allocate allocate);

  CudaCalls& calls_;
  NativeListener& listener_;
  std::atomic<std::uint64_t> used_{0};  // a bit for each device
  PoolFilters<c10::MempoolId_t> filters_;
};

}  // namespace commensal
