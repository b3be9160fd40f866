// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU: physical memory of the virtual-memory API, and host memory beside it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"
#include "allocator/cuda/address_map.h"
#include "allocator/cuda/copy_queue.h"
#include "allocator/cuda/device_context.h"
#include "allocator/cuda/device_fence.h"
#include "allocator/cuda/handle_store.h"
#include "allocator/cuda/pinned_arena.h"
#include "allocator/memory_source.h"

namespace commensal {

/// Keeps the process from submitting work while chunks change places: the writer side of its gate.
class WorkGate {
 public:
  virtual ~WorkGate() = default;
  /// Lets no further work be submitted. Returns false, and holds nobody up, if that takes longer.
  [[nodiscard]] virtual bool close(Duration deadline) noexcept = 0;
  virtual void open() noexcept = 0;
  /// Says why `close` returned false; static text.
  [[nodiscard]] virtual const char* reason() const noexcept {
    return "work is still being submitted to the device";
  }
};

/// Serves device handles from the memory of one GPU and host handles from host memory that the GPU
/// maps at the same address: usable there by kernels, more slowly. Where the driver gives no host
/// memory to map, it serves kParked handles in their stead, from pinned memory: good for what
/// nobody touches until it is back.
///
/// A live chunk moves in four steps. `begin_copy` maps the new handle a second time, at an address
/// of its own, copies into it while the job runs, and fingerprints on the device what arrived.
/// `fence` keeps the process from submitting work and waits until the device has done all that it
/// was given, in every stream. `swap` fingerprints the chunk as it is now, and if the bytes are
/// those that were copied, exchanges the mapping: chunks that lie together in as few calls as one.
/// `unfence` lets everything go on. Where the fingerprint kernel cannot run, every chunk counts as
/// changed and is copied inside the fence.
///
/// `unmap` waits until the device has done all that it was given: a block may be freed while work
/// that uses it is still in a queue.
///
/// Every driver call is checked and every change of several calls undone if one fails. Should the
/// driver refuse even that, the chunk's bytes are safe but not mapped: each later call first tries
/// to put it right, and until then throws SourceError or refuses to fence.
///
/// The CPU cannot touch memory on the device tier. A forked child cannot use CUDA at all: it has no
/// view of the chunks. Thread safety: as MemorySource says.
class CudaMemorySource final : public MemorySource {
 public:
  /// For tests: switches single mechanisms off, to show what they are for.
  struct Testing {
    bool drain_before_unmap = true;  ///< false: memory goes while work may still use it
    bool pin_in_background = true;   ///< false: memory is pinned when it is asked for
  };
  struct Options {
    int device = 0;                     ///< ordinal among the visible devices
    Bytes device_capacity{UINT64_MAX};  ///< also bounded by the device's memory
    Bytes host_cap{UINT64_MAX};         ///< also bounded by half of the machine's memory
    Bytes host_keep = 64_MiB;           ///< most unused host memory that stays pinned
    bool map_host = true;               ///< false: as if the driver gave no host memory to map
    /// Closed by `fence`. Null: the caller sees to it that nobody submits work then.
    WorkGate* gate = nullptr;
    /// Asked before chunks are copied or fenced: does any stream capture a graph? A capture would
    /// break. Takes no lock and throws nothing. Null: never.
    bool (*capturing)() = nullptr;
    /// `unmap` waits so long for the work that the device was given, then throws SourceError.
    Duration unmap_deadline = std::chrono::milliseconds{500};
    Testing testing{};
  };

  CudaMemorySource();
  /// Never fails for want of a slower tier: see `host_tier_reason`.
  /// @throws SourceError without a usable driver and device; OutOfMemory.
  explicit CudaMemorySource(const Options& options);
  ~CudaMemorySource() override;

  /// Returns the name by which programs of all kinds know the device. @throws SourceError.
  [[nodiscard]] std::string device_id() const { return context_.id(); }
  /// Says why every chunk is copied inside the fence; empty: changes are told by fingerprints.
  [[nodiscard]] const std::string& fingerprint_reason() const noexcept {
    return queue_->fingerprint_reason();
  }
  /// Returns the bytes of released handles that are kept for the next `create`; on the device,
  /// within the lease.
  [[nodiscard]] Bytes kept(Tier tier) const noexcept;

  /// Lets another GPU use what is mapped here, on either tier, now and from now on. A second call
  /// does nothing. Serialised by the caller, as the contract's calls
  /// (ElasticAllocator::with_source).
  /// @param device  ordinal among the visible devices.
  /// @throws SourceError if the driver refuses; nothing has changed then.
  void let_in(int device);

  /// Keeps the chunks of a range where they are while somebody outside relies on what is mapped
  /// there: a collective library that registered it, a captured graph. Until as many `may_move` of
  /// the same range, `begin_copy` throws SourceError for them and `swap` answers kFailed. Waits for
  /// a swap that runs, so that none comes after it. Any thread.
  void keep_in_place(AddressRange range) override;
  /// @throws std::logic_error if the range is not kept.
  void may_move(AddressRange range) override;

  [[nodiscard]] Bytes granularity() const noexcept override { return handles_->granularity(); }
  [[nodiscard]] Bytes capacity(Tier tier) const noexcept override;
  [[nodiscard]] std::string host_tier_reason() const override;
  [[nodiscard]] AddressRange reserve(Bytes size) override;
  void unreserve(AddressRange range) override;
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override;
  void release(MemoryHandle handle) override;
  void set_lease(Bytes lease) noexcept override;
  [[nodiscard]] Bytes over_lease() const noexcept override { return handles_->over_lease(); }
  void map(std::byte* address, MemoryHandle handle) override;
  [[nodiscard]] MappedRun map_run(std::byte* address,
                                  std::span<const MemoryHandle> handles) override;
  void unmap(std::byte* address, MemoryHandle handle) override;
  [[nodiscard]] UnmappedRun unmap_run(std::byte* address,
                                      std::span<const MemoryHandle> handles) override;
  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override;
  [[nodiscard]] CopyState copy_state(CopyTicket ticket) const noexcept override;
  [[nodiscard]] std::string copy_error(CopyTicket ticket) const override;
  CopyState wait_copy(CopyTicket ticket) override;
  void end_copy(CopyTicket ticket) noexcept override;
  [[nodiscard]] MoveRisk move_risk() override;
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override;
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override;
  void swap_all(std::span<Exchange> exchanges, OnChange on_change) noexcept override;
  void unfence() noexcept override;
  [[nodiscard]] Touched touched(std::byte* /*address*/,
                                MemoryHandle /*handle*/) const noexcept override {
    return {};
  }
  Bytes trim(std::byte* /*address*/, MemoryHandle /*handle*/) noexcept override { return {}; }
  void prepare_fork() noexcept override {}
  void after_fork_parent() noexcept override {}
  void after_fork_child() noexcept override;
  [[nodiscard]] Bytes held_by_children() const noexcept override { return {}; }

 private:
  struct Block {
    MemoryHandle handle;
    CUmemGenericAllocationHandle physical = 0;
    std::byte* pinned = nullptr;   // of kParked
    std::byte* address = nullptr;  // null: not mapped
    bool copying = false;

    [[nodiscard]] bool parked() const noexcept { return handle.tier == Tier::kParked; }
  };
  struct Copy {
    std::byte* address = nullptr;
    Block* from = nullptr;
    Block* to = nullptr;
    CUdeviceptr window = 0;  // where `to` is mapped besides; 0: it is parked
    DeviceCopy transfer;
    bool swapped = false;
    bool spoilt = false;           // the target may hold a mixture: never to be swapped in
    Exchange* exchange = nullptr;  // while it is being swapped
  };

  class Entry;
  void start(const Options& options);
  void stop() noexcept;
  void check_usable(std::string_view call) const;
  void check_size(std::string_view call, Bytes size) const;
  Block& block(MemoryHandle handle, std::string_view call);
  [[nodiscard]] const std::byte* range_over(const std::byte* address, Bytes size) const noexcept;
  [[nodiscard]] bool mapped_in(const std::byte* address, Bytes size) const;
  [[nodiscard]] Block& check_map(std::string_view call, const std::byte* address,
                                 MemoryHandle handle);
  [[nodiscard]] Block& check_unmap(std::byte* address, MemoryHandle handle);
  [[nodiscard]] bool capturing() const noexcept {
    return options_.capturing != nullptr && options_.capturing();
  }
  [[nodiscard]] std::shared_ptr<Copy> find(CopyTicket ticket) const noexcept;
  [[nodiscard]] bool kept_in_place(const std::byte* address, Bytes size) const
      COMMENSAL_REQUIRES(mutex_);
  [[nodiscard]] Bytes created(Tier tier) const noexcept;
  void make_physical(Block& block);
  void let_go(const Block& block);
  [[nodiscard]] CUdeviceptr take_window(Bytes size);
  void wait_for_work();
  void give_window(CUdeviceptr window, Bytes size) noexcept;
  [[nodiscard]] bool compare_all() noexcept;
  [[nodiscard]] bool renew_all(OnChange on_change) noexcept;
  void exchange_run(std::span<Copy* const> run) noexcept;
  [[nodiscard]] static Placed placed(const Block& block, const std::byte* address) noexcept;
  FenceResult refused(const char* why, TimePoint begin) const noexcept;

  const Options options_;
  DeviceContext context_;
  std::unique_ptr<HandleStore> handles_;
  std::unique_ptr<PinnedArena> arena_;  // null: host memory is mapped, or switched off
  std::unique_ptr<AddressMap> addresses_;
  std::unique_ptr<CopyQueue> queue_;
  std::unique_ptr<DeviceFence> fence_;
  Bytes device_capacity_;
  Bytes host_capacity_;  // of kHost, else of kParked
  Bytes parked_;         // handles of kParked
  std::map<const std::byte*, Bytes> ranges_;
  std::map<std::uint64_t, Block> blocks_;
  std::map<const std::byte*, std::uint64_t> mapped_;   // address to handle
  std::map<Bytes, std::vector<CUdeviceptr>> windows_;  // where copies arrive; free ones
  std::map<Bytes, std::size_t> windows_made_;
  std::uint64_t next_id_ = 1;
  bool fenced_ = false;
  bool in_child_ = false;
  // While chunks are swapped; room is made when a copy begins.
  std::vector<Copy*> batch_;
  std::vector<Placed> leaving_;
  std::vector<Placed> coming_;

  mutable Mutex mutex_{LockRank::kSource};  // what other threads may ask and say
  std::map<std::uint64_t, std::shared_ptr<Copy>> copies_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<AddressRange> kept_in_place_ COMMENSAL_GUARDED_BY(mutex_);
  bool swapping_ COMMENSAL_GUARDED_BY(mutex_) = false;
  std::condition_variable_any swap_ended_;
};

}  // namespace commensal
