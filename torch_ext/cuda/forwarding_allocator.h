// SPDX-License-Identifier: Apache-2.0
// A CUDA allocator of PyTorch that hands every call on to another one.
#pragma once

// The one header of ours that includes torch's: whoever derives from the class needs them anyway.
#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace commensal {

/// Forwards the whole interface of the PyTorch that it is compiled for, and changes nothing:
/// blocks keep the delegate's deleter, `name()` is the delegate's, exceptions pass through.
///
/// Every virtual function is overridden, those with a body in the base class too: a call that is
/// not forwarded would answer for an allocator that serves nobody. A test looks at the vtable.
///
/// Who derives from this and puts a deleter of its own on the delegate's blocks must take it off
/// again for `recordStream`: PyTorch's allocator compares the deleter with its own, and returns
/// silently where they differ. The block is then reused while the other stream still reads it.
/// `with_native_deleter` is for that.
///
/// Thread-safe as far as the delegate is. The delegate must outlive this.
class ForwardingAllocator : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using AllocatorState = c10::cuda::CUDACachingAllocator::AllocatorState;
  using CheckpointDelta = c10::cuda::CUDACachingAllocator::CheckpointDelta;
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
  using OutOfMemoryObserver = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
  using ShareableHandle = c10::cuda::CUDACachingAllocator::ShareableHandle;
  using SnapshotInfo = c10::cuda::CUDACachingAllocator::SnapshotInfo;
  using StreamSegmentSize = c10::cuda::CUDACachingAllocator::StreamSegmentSize;

  explicit ForwardingAllocator(Base& native) noexcept : native_(native) {}

  // c10::Allocator
  c10::DataPtr allocate(std::size_t size) override;
  bool is_simple_data_ptr(const c10::DataPtr& block) const override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  // c10::DeviceAllocator
  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& block, c10::Stream stream) override;
  DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;

  // c10::cuda::CUDACachingAllocator::CUDAAllocator
  void* raw_alloc(std::size_t size) override;
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override;
  void raw_delete(void* block) override;
  void init(int device_count) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override;
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest_block) override;
  void* getBaseAllocation(void* block, std::size_t* size) override;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override;
  SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<Base> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  ShareableHandle shareIpcHandle(void* block) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder,
                     std::size_t max_entries, c10::CachingDeviceAllocator::RecordContext when,
                     bool clear_history, const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& annotation) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(
      c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override;
  cudaError_t memcpyAsync(void* dest, int dest_device, const void* src, int src_device,
                          std::size_t count, cudaStream_t stream, bool p2p_enabled) override;
  std::shared_ptr<AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                     c10::MempoolId_t pool) override;
  CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                         std::shared_ptr<AllocatorState> state) override;
  std::string name() override;

 protected:
  Base& native() const noexcept { return native_; }

  /// Calls `use` with a `DataPtr` of the same block that carries the delegate's deleter, whatever
  /// `block` carries. The caller still owns the block.
  template <typename Use>
  void with_native_deleter(const c10::DataPtr& block, Use&& use) const {
    c10::DataPtr plain(block.get(), block.get_context(), native_.raw_deleter(), block.device());
    struct Keep {
      c10::DataPtr& block;
      ~Keep() { block.release_context(); }  // also when `use` throws
    } const keep{plain};
    std::forward<Use>(use)(std::as_const(plain));
  }

 private:
  Base& native_;
};

}  // namespace commensal
