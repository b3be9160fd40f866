// SPDX-License-Identifier: Apache-2.0
// A CUDA allocator of PyTorch that hands every call on to another one.
#include "torch_ext/cuda/forwarding_allocator.h"

namespace commensal {

// c10::Allocator

c10::DataPtr ForwardingAllocator::allocate(std::size_t size) { return native_.allocate(size); }

bool ForwardingAllocator::is_simple_data_ptr(const c10::DataPtr& block) const {
  return native_.is_simple_data_ptr(block);
}

c10::DeleterFnPtr ForwardingAllocator::raw_deleter() const { return native_.raw_deleter(); }

void ForwardingAllocator::copy_data(void* dest, const void* src, std::size_t count) const {
  native_.copy_data(dest, src, count);
}

// c10::DeviceAllocator

bool ForwardingAllocator::initialized() { return native_.initialized(); }

void ForwardingAllocator::emptyCache(c10::MempoolId_t pool) { native_.emptyCache(pool); }

void ForwardingAllocator::recordStream(const c10::DataPtr& block, c10::Stream stream) {
  native_.recordStream(block, stream);
}

ForwardingAllocator::DeviceStats ForwardingAllocator::getDeviceStats(c10::DeviceIndex device) {
  return native_.getDeviceStats(device);
}

void ForwardingAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  native_.resetAccumulatedStats(device);
}

void ForwardingAllocator::resetPeakStats(c10::DeviceIndex device) {
  native_.resetPeakStats(device);
}

std::pair<std::size_t, std::size_t> ForwardingAllocator::getMemoryInfo(c10::DeviceIndex device) {
  return native_.getMemoryInfo(device);
}

// c10::cuda::CUDACachingAllocator::CUDAAllocator

void* ForwardingAllocator::raw_alloc(std::size_t size) { return native_.raw_alloc(size); }

void* ForwardingAllocator::raw_alloc_with_stream(std::size_t size, cudaStream_t stream) {
  return native_.raw_alloc_with_stream(size, stream);
}

void ForwardingAllocator::raw_delete(void* block) { native_.raw_delete(block); }

void ForwardingAllocator::init(int device_count) { native_.init(device_count); }

double ForwardingAllocator::getMemoryFraction(c10::DeviceIndex device) {
  return native_.getMemoryFraction(device);
}

void ForwardingAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  native_.setMemoryFraction(fraction, device);
}

std::vector<ForwardingAllocator::StreamSegmentSize> ForwardingAllocator::getExpandableSegmentSizes(
    c10::DeviceIndex device) {
  return native_.getExpandableSegmentSizes(device);
}

void ForwardingAllocator::enable(bool value) { native_.enable(value); }

bool ForwardingAllocator::isEnabled() const { return native_.isEnabled(); }

void ForwardingAllocator::cacheInfo(c10::DeviceIndex device, std::size_t* largest_block) {
  native_.cacheInfo(device, largest_block);
}

void* ForwardingAllocator::getBaseAllocation(void* block, std::size_t* size) {
  return native_.getBaseAllocation(block, size);
}

void ForwardingAllocator::recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  native_.recordStream(block, stream);
}

ForwardingAllocator::SnapshotInfo ForwardingAllocator::snapshot(c10::MempoolId_t pool,
                                                                bool include_traces) {
  return native_.snapshot(pool, include_traces);
}

void ForwardingAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                              std::function<bool(cudaStream_t)> filter) {
  native_.beginAllocateToPool(device, pool, std::move(filter));
}

void ForwardingAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native_.endAllocateToPool(device, pool);
}

void ForwardingAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native_.releasePool(device, pool);
}

int ForwardingAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  return native_.getPoolUseCount(device, pool);
}

void ForwardingAllocator::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                             std::shared_ptr<Base> allocator) {
  native_.createOrIncrefPool(device, pool, std::move(allocator));
}

void ForwardingAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool,
                                      bool use_on_oom) {
  native_.setUseOnOOM(device, pool, use_on_oom);
}

void ForwardingAllocator::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native_.setNoSplit(device, pool);
}

bool ForwardingAllocator::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                                   const std::unordered_set<void*>& expected) {
  return native_.checkPoolLiveAllocations(device, pool, expected);
}

ForwardingAllocator::ShareableHandle ForwardingAllocator::shareIpcHandle(void* block) {
  return native_.shareIpcHandle(block);
}

std::shared_ptr<void> ForwardingAllocator::getIpcDevPtr(std::string handle) {
  return native_.getIpcDevPtr(std::move(handle));
}

bool ForwardingAllocator::isHistoryEnabled() { return native_.isHistoryEnabled(); }

void ForwardingAllocator::recordHistory(
    bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder,
    std::size_t max_entries, c10::CachingDeviceAllocator::RecordContext when, bool clear_history,
    const std::vector<std::string>& skip_actions) {
  native_.recordHistory(enabled, context_recorder, max_entries, when, clear_history, skip_actions);
}

void ForwardingAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& annotation) {
  native_.recordAnnotation(annotation);
}

void ForwardingAllocator::pushCompileContext(std::string& context) {
  native_.pushCompileContext(context);
}

void ForwardingAllocator::popCompileContext() { native_.popCompileContext(); }

void ForwardingAllocator::setUserMetadata(const std::string& metadata) {
  native_.setUserMetadata(metadata);
}

std::string ForwardingAllocator::getUserMetadata() { return native_.getUserMetadata(); }

void ForwardingAllocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  native_.attachOutOfMemoryObserver(std::move(observer));
}

void ForwardingAllocator::attachAllocatorTraceTracker(
    c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) {
  native_.attachAllocatorTraceTracker(std::move(tracker));
}

void ForwardingAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) {
  native_.enablePeerAccess(device, peer);
}

cudaError_t ForwardingAllocator::memcpyAsync(void* dest, int dest_device, const void* src,
                                             int src_device, std::size_t count, cudaStream_t stream,
                                             bool p2p_enabled) {
  return native_.memcpyAsync(dest, dest_device, src, src_device, count, stream, p2p_enabled);
}

std::shared_ptr<ForwardingAllocator::AllocatorState> ForwardingAllocator::getCheckpointState(
    c10::DeviceIndex device, c10::MempoolId_t pool) {
  return native_.getCheckpointState(device, pool);
}

ForwardingAllocator::CheckpointDelta ForwardingAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<AllocatorState> state) {
  return native_.setCheckpointPoolState(device, std::move(state));
}

std::string ForwardingAllocator::name() { return native_.name(); }

}  // namespace commensal
