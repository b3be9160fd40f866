// SPDX-License-Identifier: Apache-2.0
// Memory writes of a stream into a page of shared memory, behind all that a context was given.
#include "torch_ext/cuda/page_queue.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "allocator/memory_source.h"

namespace commensal {
namespace {

constexpr std::chrono::seconds kPatience{1};

}  // namespace

PageQueue::Given::Given(int device) : context(device) {
  const DeviceContext::Scope scope(context);
  scope.check();
  check_cuda(context.driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
             "cuEventCreate of marks");
}

PageQueue::Given::~Given() {
  const DeviceContext::Scope scope(context);
  if (scope.result() == CUDA_SUCCESS) (void)context.driver().cuEventDestroy(event);
}

bool PageQueue::Given::precede(CUstream stream) const noexcept {
  const CudaDriver& driver = context.driver();
  {
    const DeviceContext::Scope scope(context);
    if (scope.result() != CUDA_SUCCESS || context.another_may_capture()) return false;
  }
  return driver.cuCtxRecordEvent(context.handle(), event) == CUDA_SUCCESS &&
         driver.cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT) == CUDA_SUCCESS;
}

PageQueue::PageQueue(int device, std::atomic<std::uint64_t>& done, bool (*capturing)())
    : context_(device), capturing_(capturing), word_(done), newest_(done.load()) {
  if (context_.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
    throw SourceError("the GPU's streams cannot write to memory");
  }
  const CudaDriver& driver = context_.driver();
  const DeviceContext::Scope scope(context_);
  scope.check();
  try {
    int least = 0;
    int greatest = 0;
    check_cuda(driver.cuCtxGetStreamPriorityRange(&least, &greatest),
               "cuCtxGetStreamPriorityRange");
    check_cuda(driver.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, least),
               "cuStreamCreateWithPriority of the stream of marks");
    check_cuda(driver.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate of marks");
    map(done);
  } catch (...) {
    close();
    throw;
  }
}

void PageQueue::map(std::atomic<std::uint64_t>& done) {
  const CudaDriver& driver = context_.driver();
  const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(&done);
  const std::uintptr_t begin = address - address % size;
  auto* const page = reinterpret_cast<void*>(begin);
  check_cuda(driver.cuMemHostRegister(page, size,
                                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
             "cuMemHostRegister of the job's page");
  registered_ = page;
  CUdeviceptr seen = 0;
  check_cuda(driver.cuMemHostGetDevicePointer(&seen, page, 0),
             "cuMemHostGetDevicePointer of the job's page");
  done_ = seen + (address - begin);
}

void PageQueue::close() noexcept {
  const CudaDriver& driver = context_.driver();
  if (registered_ != nullptr) (void)driver.cuMemHostUnregister(registered_);
  if (event_ != nullptr) (void)driver.cuEventDestroy(event_);
  if (stream_ != nullptr) (void)driver.cuStreamDestroy(stream_);
}

PageQueue::~PageQueue() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (word_.load() != newest_.load()) {
    if (std::chrono::steady_clock::now() > until) return;  // all of it stays
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  const DeviceContext::Scope scope(context_);
  if (scope.result() == CUDA_SUCCESS) close();
}

void PageQueue::add(int device) {
  const std::size_t end = others_end_.load();
  if (end == others_.size()) {
    throw std::length_error("marks wait for " + std::to_string(others_.size() + 1) +
                            " devices at most");
  }
  others_[end] = std::make_unique<const Given>(device);
  others_end_.store(end + 1, std::memory_order_release);
}

// What a wait of the stream for the event means is settled when it is asked for: the event may be
// recorded anew at once.
bool PageQueue::mark(std::uint64_t number) noexcept {
  if (capturing_()) return false;
  const DeviceContext::Scope scope(context_);
  if (scope.result() != CUDA_SUCCESS || context_.another_may_capture()) return false;
  const CudaDriver& driver = context_.driver();
  const auto* const end = others_.cbegin() + others_end_.load(std::memory_order_acquire);
  if (driver.cuCtxRecordEvent(context_.handle(), event_) != CUDA_SUCCESS ||
      driver.cuStreamWaitEvent(stream_, event_, CU_EVENT_WAIT_DEFAULT) != CUDA_SUCCESS ||
      !std::all_of(others_.cbegin(), end,
                   [&](const auto& given) { return given->precede(stream_); }) ||
      driver.cuStreamWriteValue64(stream_, done_, number, CU_STREAM_WRITE_VALUE_DEFAULT) !=
          CUDA_SUCCESS) {
    return false;
  }
  newest_.store(number);
  return true;
}

}  // namespace commensal
