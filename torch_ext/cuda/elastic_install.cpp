// SPDX-License-Identifier: Apache-2.0
// Puts elastic memory under PyTorch's CUDA tensors.
#include "torch_ext/cuda/elastic_install.h"

#include <atomic>

#include "torch_ext/cuda/cuda_install.h"
#include "torch_ext/cuda/elastic_cuda_allocator.h"
#include "torch_ext/cuda/native_allocator.h"

namespace commensal {
namespace {

// Set before the allocator is made; never destroyed, as the blocks in it.
MemoryProvider* g_memory = nullptr;
std::atomic<ElasticCudaAllocator*> g_installed_allocator{nullptr};
NativeListener* g_listener = nullptr;  // set before the allocator is made
std::atomic<NativeAllocator*> g_native{nullptr};

ForwardingAllocator::Base* make(ForwardingAllocator::Base& native) {
  auto* const made = new ElasticCudaAllocator(native, runtime_cuda_calls(), *g_memory);
  g_installed_allocator.store(made, std::memory_order_release);
  return made;
}

}  // namespace

bool cuda_capturing() {
  const ElasticCudaAllocator* const allocator =
      g_installed_allocator.load(std::memory_order_acquire);
  if (allocator != nullptr) return allocator->capturing();
  const NativeAllocator* const native = g_native.load(std::memory_order_acquire);
  return native != nullptr && native->capturing();
}

std::string watch_native_allocator(NativeListener& listener) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  if (g_native.load() != nullptr) return {};
  g_listener = &listener;
  return watch_cuda_allocator([](ForwardingAllocator::Base& native) -> ForwardingAllocator::Base* {
    auto* const made = new NativeAllocator(native, runtime_cuda_calls(), *g_listener);
    g_native.store(made, std::memory_order_release);
    return made;
  });
}

void give_back_delegates_cache() {
  if (ElasticCudaAllocator* const allocator =
          g_installed_allocator.load(std::memory_order_acquire)) {
    allocator->give_back_delegates_cache();
  }
}

std::string install_elastic_cuda_allocator(MemoryProvider& memory) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  if (g_memory == nullptr) g_memory = &memory;
  return install_cuda_allocator(&make);
}

std::string install_elastic_cuda_allocator(const CudaMemoryProvider::Options& options) {
  CudaMemoryProvider::Options full = options;
  full.source.capturing = &cuda_capturing;
  return install_elastic_cuda_allocator(*new CudaMemoryProvider(full));
}

ElasticAllocator* elastic_cuda_memory(int device) {
  return g_installed_allocator.load() == nullptr ? nullptr : g_memory->of(device);
}

}  // namespace commensal
