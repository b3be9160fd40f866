// SPDX-License-Identifier: Apache-2.0
// Memory writes of streams into a page of shared memory.
#include "torch_ext/cuda/page_queue.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <thread>

#include "allocator/memory_source.h"

namespace commensal {
namespace {

constexpr std::chrono::seconds kPatience{1};

}  // namespace

PageQueue::PageQueue(int device, std::atomic<std::uint64_t>& done, CudaCalls& calls,
                     bool (*capturing)())
    : context_(device),
      device_(device),
      calls_(calls),
      capturing_(capturing),
      word_(done),
      newest_(done.load()) {
  if (context_.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
    throw SourceError("the GPU's streams cannot write to memory");
  }
  const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(&done);
  const std::uintptr_t begin = address - address % size;
  const CudaDriver& driver = context_.driver();
  const DeviceContext::Scope scope(context_);
  scope.check();
  auto* const page = reinterpret_cast<void*>(begin);
  check_cuda(driver.cuMemHostRegister(page, size,
                                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
             "cuMemHostRegister of the job's page");
  registered_ = page;
  CUdeviceptr seen = 0;
  const CUresult found = driver.cuMemHostGetDevicePointer(&seen, page, 0);
  if (found != CUDA_SUCCESS) (void)driver.cuMemHostUnregister(page);
  check_cuda(found, "cuMemHostGetDevicePointer of the job's page");
  done_ = seen + (address - begin);
}

PageQueue::~PageQueue() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (word_.load() != newest_.load()) {
    if (std::chrono::steady_clock::now() > until) return;  // it stays registered
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  const DeviceContext::Scope scope(context_);
  if (scope.result() == CUDA_SUCCESS) (void)context_.driver().cuMemHostUnregister(registered_);
}

bool PageQueue::mark(std::uint64_t number) noexcept {
  if (capturing_()) return false;
  try {
    auto* const stream = calls_.current_stream(device_);
    const DeviceContext::Scope scope(context_);
    if (scope.result() != CUDA_SUCCESS ||
        context_.driver().cuStreamWriteValue64(stream, done_, number,
                                               CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS) {
      return false;
    }
    newest_.store(number);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace commensal
