// SPDX-License-Identifier: Apache-2.0
// Elastic memory of a process's GPUs, each made when it is used first.
#include "torch_ext/cuda/cuda_device_memory.h"

#include <exception>
#include <utility>

namespace commensal {

CudaDeviceMemory::Device& CudaDeviceMemory::made(int device) {
  const auto [at, added] = devices_.try_emplace(device);
  Device& found = at->second;
  if (!added) return found;
  try {
    CudaMemorySource::Options source = options_.source;
    source.device = device;
    ElasticAllocatorOptions allocator = options_.allocator;
    allocator.alignment = kCudaAlignment;
    found.source = std::make_unique<CudaMemorySource>(source);
    found.allocator = std::make_unique<ElasticAllocator>(*found.source, allocator);
  } catch (const std::exception& error) {
    found.source.reset();
    found.reason = error.what();
  }
  return found;
}

ElasticAllocator* CudaDeviceMemory::of(int device) {
  const MutexLock lock(mutex_);
  return made(device).allocator.get();
}

std::string CudaDeviceMemory::reason(int device) {
  const MutexLock lock(mutex_);
  return made(device).reason;
}

void CudaDeviceMemory::let_in(int device, int user) {
  Device* found = nullptr;
  {
    const MutexLock lock(mutex_);
    found = &made(device);
  }
  if (found->allocator == nullptr) return;
  found->allocator->with_source([&] { found->source->let_in(user); });
}

std::string CudaDeviceMemory::id(int device) {
  const MutexLock lock(mutex_);
  return made(device).source->device_id();
}

Bytes CudaDeviceMemory::slower_capacity(int device) {
  const MutexLock lock(mutex_);
  return made(device).source->capacity(Tier::kHost);
}

void CudaDeviceMemory::delegated(int device, Bytes held) noexcept {
  const MutexLock lock(mutex_);
  const auto found = devices_.find(device);
  if (found == devices_.end() || found->second.allocator == nullptr) return;
  found->second.allocator->count_outside(held);
}

void CudaDeviceMemory::on_pressure(int device, std::function<std::string(Bytes)> helper) {
  if (ElasticAllocator* const allocator = of(device)) allocator->on_pressure(std::move(helper));
}

}  // namespace commensal
