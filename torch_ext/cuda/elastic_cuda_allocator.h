// SPDX-License-Identifier: Apache-2.0
// PyTorch's CUDA allocator over elastic memory; pools and captures stay with PyTorch's own.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "torch_ext/cuda/allocation_history.h"
#include "torch_ext/cuda/cuda_calls.h"
#include "torch_ext/cuda/forwarding_allocator.h"
#include "torch_ext/cuda/memory_counters.h"
#include "torch_ext/cuda/memory_provider.h"
#include "torch_ext/cuda/pool_filters.h"
#include "torch_ext/cuda/stream_uses.h"

namespace commensal {

/// Serves ordinary blocks from the elastic memory of their device. What is captured into a graph,
/// what belongs to a private pool, and devices without elastic memory are the delegate's.
///
/// Every block, whoever serves it, carries one deleter, which tells by the address whose it is:
/// PyTorch compares deleters to know an allocator's blocks, and swaps them (cudagraph trees).
/// Statistics, snapshots and histories are of both together.
///
/// Lock order: the delegate's locks, then ours. It is never called with one of ours held, but for
/// the one of pools that are lent (`lending_`), which nothing that it calls back takes.
/// One object a process: the deleter has to find it. Thread safety: all.
class ElasticCudaAllocator final : public ForwardingAllocator {
 public:
  /// All must outlive this object, and this object every block. @throws std::logic_error if there
  /// is one already.
  ElasticCudaAllocator(Base& native, CudaCalls& calls, MemoryProvider& memory);
  ~ElasticCudaAllocator() override;
  ElasticCudaAllocator(const ElasticCudaAllocator&) = delete;
  ElasticCudaAllocator& operator=(const ElasticCudaAllocator&) = delete;

  /// Tells whether a graph may be captured now: then nothing of ours calls CUDA.
  [[nodiscard]] bool capturing() const noexcept { return filters_.capturing(); }

  /// Gives back what the delegate caches, and what the callbacks of others free; nothing during a
  /// capture.
  void give_back_delegates_cache();

  /// From now on the slower tier serves no new block: somebody finds out how much fits under the
  /// limit, and wants PyTorch's error above it. Not where what is live has no room there already.
  void begin_trial();
  /// Ends the newest.
  void end_trial() noexcept;
  /// Whether a block is ours and its content may go to another address: once a graph was captured
  /// it may not, for that may know this one.
  [[nodiscard]] bool may_leave(const void* block) const noexcept;
  /// Whether the delegate serves what the calling thread allocates from now on.
  static void serve_by_delegate(bool on) noexcept { by_delegate_ = on; }
  /// The one of this process; null: there is none.
  [[nodiscard]] static ElasticCudaAllocator* instance() noexcept;

  c10::DataPtr allocate(std::size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& block, c10::Stream stream) override;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override;
  DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;

  void* raw_alloc(std::size_t size) override;
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override;
  void raw_delete(void* block) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override;
  void enable(bool value) override;
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest_block) override;
  void* getBaseAllocation(void* block, std::size_t* size) override;
  SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) override;
  ShareableHandle shareIpcHandle(void* block) override;
  void recordHistory(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder,
                     std::size_t max_entries, c10::CachingDeviceAllocator::RecordContext when,
                     bool clear_history, const std::vector<std::string>& skip_actions) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(
      c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) override;
  cudaError_t memcpyAsync(void* dest, int dest_device, const void* src, int src_device,
                          std::size_t count, cudaStream_t stream, bool p2p_enabled) override;
  CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                         std::shared_ptr<AllocatorState> state) override;

 private:
  struct Device;
  inline static thread_local bool by_delegate_ = false;
  static constexpr std::size_t kMostDevices = 64;

  friend class GiveUpCache;
  static void give_back(void* block);
  void release(void* block);
  void release_watched(Device& device, void* block);
  void retire(Device& device, void* block) noexcept;
  [[nodiscard]] Device* known(int device) const noexcept;
  [[nodiscard]] Device* serving(int device, cudaStream_t stream);
  [[nodiscard]] Device* owner(const void* block) const noexcept;
  void let_in(int device, int user);
  [[nodiscard]] void* serve(Device& device, Bytes size, cudaStream_t stream);
  [[nodiscard]] const char* why_device_only(const Device& device, Bytes size) const;
  static void note_birth(Device& device, const void* block, Bytes size, cudaStream_t stream);
  static void note_segments(Device& device, const AllocationHistory::Context& context);
  [[nodiscard]] void* borrow(const Device& device, Bytes size, cudaStream_t stream);
  [[nodiscard]] bool has_room(const Device& device, c10::MempoolId_t pool, Bytes size,
                              cudaStream_t stream) const;
  [[nodiscard]] Bytes reserved_by_delegate(int device) const;
  [[nodiscard]] bool make_room(Device& device, Bytes size);
  void set_fraction(Device& device, double fraction);
  void bound_delegate(Device& device);
  [[nodiscard]] static bool run_callbacks();
  [[nodiscard]] std::string release_unused(Device& device);
  Bytes give_up_cache();
  [[noreturn]] void raise_out_of_memory(Device& device, Bytes size, const std::string& why);
  void note_delegate(int device);
  void note_delegate();
  static void keep_told(Device& device);
  void append_segments(Device& device,
                       std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments);
  [[nodiscard]] std::pair<std::size_t, std::size_t> totals(const Device& device) const;
  void report(const Device& device, void* block, std::int64_t change) const;
  template <typename Visit>
  void each_device(Visit visit) const;

  CudaCalls& calls_;
  MemoryProvider& memory_;
  PoolFilters<c10::MempoolId_t> filters_;
  std::array<std::atomic<Device*>, kMostDevices> devices_{};
  std::array<std::atomic<bool>, kMostDevices> refused_{};
  std::atomic<std::size_t> highest_{0};  // one above the highest device
  const bool may_cache_;                 // or the environment forbids it
  std::atomic<bool> enabled_;
  std::atomic<int> trials_{0};
  std::atomic<bool> captured_{false};  // since the program began
  std::atomic<bool> tracked_{false};   // somebody follows segments, to register them

  // Pools that the program lends to ordinary blocks when memory is short (`use_on_oom`), by device.
  // Held while one is used: it is not given up meanwhile.
  Mutex lending_;
  std::set<std::pair<int, c10::MempoolId_t>> lent_ COMMENSAL_GUARDED_BY(lending_);

  Mutex mutex_;  // what comes for devices that do not exist yet, and their making
  AllocationHistory::Settings history_ COMMENSAL_GUARDED_BY(mutex_);
  bool history_on_ COMMENSAL_GUARDED_BY(mutex_) = false;
  std::vector<c10::CachingDeviceAllocator::AllocatorTraceTracker> trackers_
      COMMENSAL_GUARDED_BY(mutex_);
  std::vector<OutOfMemoryObserver> observers_ COMMENSAL_GUARDED_BY(mutex_);
  std::string metadata_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Device>> made_ COMMENSAL_GUARDED_BY(mutex_);
  std::multimap<int, int> users_ COMMENSAL_GUARDED_BY(mutex_);  // of devices that do not exist yet
};

}  // namespace commensal
