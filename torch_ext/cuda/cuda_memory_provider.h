// SPDX-License-Identifier: Apache-2.0
// Elastic memory of a process's GPUs, each made when it is used first.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "allocator/base/mutex.h"
#include "allocator/cuda/cuda_memory_source.h"
#include "torch_ext/cuda/memory_provider.h"

namespace commensal {

/// A CudaMemorySource and an ElasticAllocator for each device.
class CudaMemoryProvider final : public MemoryProvider {
 public:
  struct Options {
    CudaMemorySource::Options source{};
    ElasticAllocatorOptions allocator{};  ///< the alignment is always that of PyTorch's blocks
  };
  explicit CudaMemoryProvider(Options options) : options_(options) {}

  [[nodiscard]] ElasticAllocator* of(int device) override;
  [[nodiscard]] std::string reason(int device) override;
  void let_in(int device, int user) override;
  /// The name of a device that is ours, as CudaMemorySource::device_id.
  [[nodiscard]] std::string id(int device);
  /// Bytes that the slower tier of a device that is ours can hold.
  [[nodiscard]] Bytes slower_capacity(int device);
  void delegated(int device, Bytes held) noexcept override;
  void on_pressure(int device, std::function<std::string(Bytes needed)> helper) override;

 private:
  struct Device {
    std::unique_ptr<CudaMemorySource> source;
    std::unique_ptr<ElasticAllocator> allocator;
    std::string reason;
  };
  Device& made(int device) COMMENSAL_REQUIRES(mutex_);

  const Options options_;
  Mutex mutex_;
  std::map<int, Device> devices_ COMMENSAL_GUARDED_BY(mutex_);
};

/// Smallest distance of two blocks that PyTorch's CUDA code relies on.
inline constexpr Bytes kCudaAlignment = 512_B;

}  // namespace commensal
