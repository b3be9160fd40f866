// SPDX-License-Identifier: Apache-2.0
// C functions by which Python tests put an allocator with a deleter of its own under PyTorch.
#include <atomic>

#include "torch_ext/cuda/elastic_install.h"
#include "torch_ext/cuda/forwarding_allocator.h"

namespace commensal {
namespace {

ForwardingAllocator::Base* g_native = nullptr;
std::atomic<std::uint64_t> g_frees{0};

void give_back(void* block) {
  g_frees.fetch_add(1);
  g_native->raw_deleter()(block);
}

// What an allocator does that wants to see each block come back: it puts its own deleter on the
// delegate's blocks.
class SwappingAllocator final : public ForwardingAllocator {
 public:
  SwappingAllocator(Base& native_allocator, bool careful)
      : ForwardingAllocator(native_allocator), careful_(careful) {}

  c10::DataPtr allocate(std::size_t size) override {
    c10::DataPtr block = ForwardingAllocator::allocate(size);
    TORCH_CHECK(block.compare_exchange_deleter(native().raw_deleter(), &give_back),
                "a block with a foreign deleter");
    return block;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  using ForwardingAllocator::recordStream;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    if (!careful_) return native().recordStream(block, stream);
    with_native_deleter(block,
                        [&](const c10::DataPtr& plain) { native().recordStream(plain, stream); });
  }

 private:
  const bool careful_;
};

}  // namespace
}  // namespace commensal

#define COMMENSAL_EXPORT extern "C" __attribute__((visibility("default")))

/// Installs it: with `careful` 0 the delegate is shown the foreign deleter.
COMMENSAL_EXPORT void commensal_testing_swap_deleters(int careful) {
  commensal::g_native = c10::cuda::CUDACachingAllocator::allocator.load();
  auto* const ours = new commensal::SwappingAllocator(*commensal::g_native, careful != 0);
  c10::cuda::CUDACachingAllocator::allocator.store(ours);
  c10::SetAllocator(c10::DeviceType::CUDA, ours, 255);
}

/// Counts the blocks that came back through the deleter.
COMMENSAL_EXPORT std::uint64_t commensal_testing_frees() { return commensal::g_frees.load(); }

/// Puts elastic memory under PyTorch, with a limit and a cap of the slower tier. Null, or why not.
COMMENSAL_EXPORT const char* commensal_testing_install_elastic(std::uint64_t limit,
                                                               std::uint64_t host_cap) {
  static std::string complaint;
  commensal::CudaMemoryProvider::Options options;
  options.allocator.limit = commensal::Bytes{limit};
  options.allocator.host_cap = commensal::Bytes{host_cap};
  options.allocator.fence_deadline = std::chrono::seconds{5};  // of a slow machine
  complaint = commensal::install_elastic_cuda_allocator(options);
  return complaint.empty() ? nullptr : complaint.c_str();
}

/// Sets a device's limit and moves what has to move. Returns the bytes that are deferred.
COMMENSAL_EXPORT std::uint64_t commensal_testing_set_limit(int device, std::uint64_t limit) {
  return commensal::elastic_cuda_memory(device)
      ->set_limit(commensal::Bytes{limit})
      .deferred.count();
}

/// Tells where a device's memory lies: on the device, and on the slower tier.
COMMENSAL_EXPORT void commensal_testing_memory(int device, std::uint64_t* on_device,
                                               std::uint64_t* on_host) {
  const commensal::AllocatorStats stats = commensal::elastic_cuda_memory(device)->stats();
  *on_device = stats.device.count();
  *on_host = (stats.host + stats.parked).count();
}

/// Tells whether an address is in elastic memory.
COMMENSAL_EXPORT int commensal_testing_is_elastic(int device, const void* address) {
  return commensal::elastic_cuda_memory(device)->owns(address) ? 1 : 0;
}
