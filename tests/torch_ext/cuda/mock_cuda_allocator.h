// SPDX-License-Identifier: Apache-2.0
// PyTorch's CUDA allocator as a mock: the delegate in the tests of what stands over it.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace commensal {

class MockCudaAllocator : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using AllocatorState = c10::cuda::CUDACachingAllocator::AllocatorState;
  using CheckpointDelta = c10::cuda::CUDACachingAllocator::CheckpointDelta;
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
  using MemoryInfo = std::pair<std::size_t, std::size_t>;
  using Annotation = std::vector<std::pair<std::string, std::string>>;
  using OutOfMemoryObserver = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
  using ShareableHandle = c10::cuda::CUDACachingAllocator::ShareableHandle;
  using SnapshotInfo = c10::cuda::CUDACachingAllocator::SnapshotInfo;
  using StreamSegmentSize = c10::cuda::CUDACachingAllocator::StreamSegmentSize;
  using Device = c10::DeviceIndex;
  using Pool = c10::MempoolId_t;

  MOCK_METHOD(c10::DataPtr, allocate, (std::size_t), (override));
  MOCK_METHOD(bool, is_simple_data_ptr, (const c10::DataPtr&), (const, override));
  MOCK_METHOD(c10::DeleterFnPtr, raw_deleter, (), (const, override));
  MOCK_METHOD(void, copy_data, (void*, const void*, std::size_t), (const, override));

  MOCK_METHOD(bool, initialized, (), (override));
  MOCK_METHOD(void, emptyCache, (Pool), (override));
  MOCK_METHOD(void, recordStream, (const c10::DataPtr&, c10::Stream), (override));
  MOCK_METHOD(DeviceStats, getDeviceStats, (Device), (override));
  MOCK_METHOD(void, resetAccumulatedStats, (Device), (override));
  MOCK_METHOD(void, resetPeakStats, (Device), (override));
  MOCK_METHOD(MemoryInfo, getMemoryInfo, (Device), (override));

  MOCK_METHOD(void*, raw_alloc, (std::size_t), (override));
  MOCK_METHOD(void*, raw_alloc_with_stream, (std::size_t, cudaStream_t), (override));
  MOCK_METHOD(void, raw_delete, (void*), (override));
  MOCK_METHOD(void, init, (int), (override));
  MOCK_METHOD(double, getMemoryFraction, (Device), (override));
  MOCK_METHOD(void, setMemoryFraction, (double, Device), (override));
  MOCK_METHOD(std::vector<StreamSegmentSize>, getExpandableSegmentSizes, (Device), (override));
  MOCK_METHOD(void, enable, (bool), (override));
  MOCK_METHOD(bool, isEnabled, (), (const, override));
  MOCK_METHOD(void, cacheInfo, (Device, std::size_t*), (override));
  MOCK_METHOD(void*, getBaseAllocation, (void*, std::size_t*), (override));
  MOCK_METHOD(void, recordStream, (const c10::DataPtr&, c10::cuda::CUDAStream), (override));
  MOCK_METHOD(SnapshotInfo, snapshot, (Pool, bool), (override));
  MOCK_METHOD(void, beginAllocateToPool, (Device, Pool, std::function<bool(cudaStream_t)>),
              (override));
  MOCK_METHOD(void, endAllocateToPool, (Device, Pool), (override));
  MOCK_METHOD(void, releasePool, (Device, Pool), (override));
  MOCK_METHOD(int, getPoolUseCount, (Device, Pool), (override));
  MOCK_METHOD(void, createOrIncrefPool, (Device, Pool, std::shared_ptr<CUDAAllocator>), (override));
  MOCK_METHOD(void, setUseOnOOM, (Device, Pool, bool), (override));
  MOCK_METHOD(void, setNoSplit, (Device, Pool), (override));
  MOCK_METHOD(bool, checkPoolLiveAllocations, (Device, Pool, const std::unordered_set<void*>&),
              (override));
  MOCK_METHOD(ShareableHandle, shareIpcHandle, (void*), (override));
  MOCK_METHOD(std::shared_ptr<void>, getIpcDevPtr, (std::string), (override));
  MOCK_METHOD(bool, isHistoryEnabled, (), (override));
  MOCK_METHOD(void, recordHistory,
              (bool, c10::CachingDeviceAllocator::CreateContextFn, std::size_t,
               c10::CachingDeviceAllocator::RecordContext, bool, const std::vector<std::string>&),
              (override));
  MOCK_METHOD(void, recordAnnotation, (const Annotation&), (override));
  MOCK_METHOD(void, pushCompileContext, (std::string&), (override));
  MOCK_METHOD(void, popCompileContext, (), (override));
  MOCK_METHOD(void, setUserMetadata, (const std::string&), (override));
  MOCK_METHOD(std::string, getUserMetadata, (), (override));
  MOCK_METHOD(void, attachOutOfMemoryObserver, (OutOfMemoryObserver), (override));
  MOCK_METHOD(void, attachAllocatorTraceTracker,
              (c10::CachingDeviceAllocator::AllocatorTraceTracker), (override));
  MOCK_METHOD(void, enablePeerAccess, (Device, Device), (override));
  MOCK_METHOD(cudaError_t, memcpyAsync,
              (void*, int, const void*, int, std::size_t, cudaStream_t, bool), (override));
  MOCK_METHOD(std::shared_ptr<AllocatorState>, getCheckpointState, (Device, Pool), (override));
  MOCK_METHOD(CheckpointDelta, setCheckpointPoolState, (Device, std::shared_ptr<AllocatorState>),
              (override));
  MOCK_METHOD(std::string, name, (), (override));
};

}  // namespace commensal
