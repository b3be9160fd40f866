// SPDX-License-Identifier: Apache-2.0
// PyTorch's own CUDA allocator, watched.
#include "torch_ext/cuda/native_allocator.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "torch_ext/cuda/device_index.h"

namespace commensal {

int NativeAllocator::note_use() {
  const int device = calls_.current_device();
  if (device < 0 || device >= kMaxDevices) return device;
  const std::uint64_t mine = std::uint64_t{1} << device;
  if ((used_.load(std::memory_order_acquire) & mine) != 0) return device;
  if (!capturing() && listener_.used(device)) used_.fetch_or(mine, std::memory_order_release);
  return device;
}

template <typename Allocate>
auto NativeAllocator::with_room(std::size_t size, Allocate allocate) {
  const int device = note_use();
  listener_.served();
  try {
    return allocate();
  } catch (const c10::OutOfMemoryError&) {
    if (capturing() || !listener_.make_room(device, Bytes{size})) throw;
  }
  return allocate();
}

c10::DataPtr NativeAllocator::allocate(std::size_t size) {
  if (size == 0) return native().allocate(size);
  return with_room(size, [&] { return native().allocate(size); });
}

void* NativeAllocator::raw_alloc(std::size_t size) {
  return with_room(size, [&] { return native().raw_alloc(size); });
}

void* NativeAllocator::raw_alloc_with_stream(std::size_t size, cudaStream_t stream) {
  return with_room(size, [&] { return native().raw_alloc_with_stream(size, stream); });
}

std::pair<std::size_t, std::size_t> NativeAllocator::getMemoryInfo(c10::DeviceIndex device) {
  const auto [free, total] = native().getMemoryInfo(device);
  const Bytes limit = listener_.limit(device);
  const auto held = native().getDeviceStats(device).reserved_bytes[kAllPools].current;
  const Bytes room =
      saturating_sub(limit, Bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(held, 0))});
  return {std::min<std::uint64_t>(free, room.count()),
          std::min<std::uint64_t>(total, limit.count())};
}

void NativeAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                          std::function<bool(cudaStream_t)> filter) {
  const PoolUse use = use_of_pool(calls_, device, filter);
  native().beginAllocateToPool(device, pool, filter);
  filters_.begin(device, pool, use, std::move(filter));
}

void NativeAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native().endAllocateToPool(device, pool);
  filters_.end(device, pool);
}

}  // namespace commensal
