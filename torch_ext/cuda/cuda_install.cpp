// SPDX-License-Identifier: Apache-2.0
// Puts an allocator of ours over PyTorch's CUDA allocator, or says why not.
#include "torch_ext/cuda/cuda_install.h"

#include <atomic>

#include "allocator/base/mutex.h"
#include "torch_ext/cuda/forwarding_allocator.h"

namespace commensal {
namespace {

using CudaAllocator = ForwardingAllocator::Base;

// Above 0, with which PyTorch's own was registered.
constexpr std::uint8_t kPriority = 255;

std::atomic<CudaAllocator*> g_ours{nullptr};

CudaAllocatorFacts facts_of(CudaAllocator* current) {
  if (current == nullptr) return {.present = false, .initialized = false, .name = {}};
  return {.present = true, .initialized = current->initialized(), .name = current->name()};
}

// Both ways by which PyTorch finds it: its own CUDA code, and `torch.accelerator`.
void replace(CudaAllocator& ours) {
  c10::cuda::CUDACachingAllocator::allocator.store(&ours);
  c10::SetAllocator(c10::DeviceType::CUDA, &ours, kPriority);
}

}  // namespace

std::string cuda_install_complaint(const CudaAllocatorFacts& current) {
  if (!current.present) return "this PyTorch has no CUDA allocator";
  if (current.name != "native") {
    return "PyTorch's CUDA allocator is '" + current.name +
           "' and commensal works over 'native' alone; leave out backend: in PYTORCH_ALLOC_CONF "
           "and PYTORCH_CUDA_ALLOC_CONF";
  }
  if (current.initialized) {
    return "CUDA has been started already; import commensal, or start the script under "
           "'commensal run', before anything uses the GPU";
  }
  return {};
}

std::string cuda_install_problem() {
  if (cuda_allocator_is_ours()) return {};
  return cuda_install_complaint(facts_of(c10::cuda::CUDACachingAllocator::allocator.load()));
}

std::string install_cuda_allocator(MakeCudaAllocator make) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  if (cuda_allocator_is_ours()) return {};
  CudaAllocator* const native = c10::cuda::CUDACachingAllocator::allocator.load();
  if (std::string complaint = cuda_install_complaint(facts_of(native)); !complaint.empty()) {
    return complaint;
  }
  CudaAllocator* const ours =  // never destroyed
      make != nullptr ? make(*native) : new ForwardingAllocator(*native);
  replace(*ours);
  g_ours.store(ours, std::memory_order_release);
  return {};
}

std::string watch_cuda_allocator(MakeCudaAllocator make) {
  CudaAllocator* const native = c10::cuda::CUDACachingAllocator::allocator.load();
  CudaAllocatorFacts facts = facts_of(native);
  facts.initialized = false;  // no matter
  if (std::string complaint = cuda_install_complaint(facts); !complaint.empty()) return complaint;
  CudaAllocator* const ours = make(*native);  // never destroyed
  replace(*ours);
  g_ours.store(ours, std::memory_order_release);
  return {};
}

bool cuda_allocator_is_ours() noexcept {
  CudaAllocator* const ours = g_ours.load(std::memory_order_acquire);
  return ours != nullptr && c10::cuda::CUDACachingAllocator::allocator.load() == ours;
}

}  // namespace commensal
