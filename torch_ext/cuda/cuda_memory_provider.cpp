// SPDX-License-Identifier: Apache-2.0
// Elastic memory of a process's GPUs, each made when it is used first.
#include "torch_ext/cuda/cuda_memory_provider.h"

#include <exception>
#include <utility>

namespace commensal {

CudaMemoryProvider::Device& CudaMemoryProvider::made(int device) {
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

ElasticAllocator* CudaMemoryProvider::of(int device) {
  const MutexLock lock(mutex_);
  return made(device).allocator.get();
}

std::string CudaMemoryProvider::reason(int device) {
  const MutexLock lock(mutex_);
  return made(device).reason;
}

void CudaMemoryProvider::let_in(int device, int user) {
  Device* found = nullptr;
  {
    const MutexLock lock(mutex_);
    found = &made(device);
  }
  if (found->allocator == nullptr) return;
  found->allocator->with_source([&] { found->source->let_in(user); });
}

std::string CudaMemoryProvider::id(int device) {
  const MutexLock lock(mutex_);
  return made(device).source->device_id();
}

Bytes CudaMemoryProvider::slower_capacity(int device) {
  const MutexLock lock(mutex_);
  return made(device).source->capacity(Tier::kHost);
}

void CudaMemoryProvider::delegated(int device, Bytes held) noexcept {
  const MutexLock lock(mutex_);
  const auto found = devices_.find(device);
  if (found == devices_.end() || found->second.allocator == nullptr) return;
  found->second.allocator->count_outside(held);
}

void CudaMemoryProvider::on_pressure(int device, std::function<std::string(Bytes)> helper) {
  if (ElasticAllocator* const allocator = of(device)) allocator->on_pressure(std::move(helper));
}

}  // namespace commensal
