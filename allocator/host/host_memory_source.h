// SPDX-License-Identifier: Apache-2.0
// Memory of a machine without a GPU: anonymous pages, and a spill file as the slower tier.
#pragma once

#include <atomic>
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
#include "allocator/host/child_watch.h"
#include "allocator/host/live_memory.h"
#include "allocator/host/page_map.h"
#include "allocator/host/slot_io.h"
#include "allocator/host/spill_file.h"
#include "allocator/host/thread_stopper.h"
#include "allocator/host/write_watch.h"
#include "allocator/memory_source.h"

namespace commensal {

/// Serves device handles from anonymous memory (huge pages where they help) and host handles from
/// slots of a spill file, mapped privately at the same address.
///
/// Host memory that is mapped anew has no content yet: it is anonymous until it is moved out for
/// the first time. To write it then costs no reads of a disk, and memory that dies before the next
/// safe point never sees one. To become device memory it only changes its name.
///
/// A live chunk moves in four steps. `wait_copy` copies it piece by piece (through a buffer, which
/// another thread writes into a slot while the next one is filled, if need be from the chunk that
/// is to be waited for next; or from the slot into a staging range at a constant distance) and
/// fingerprints what it copied, unless the kernel notes writes to it (write_watch.h; then nothing
/// is compared later). `fence` stops all threads by a signal. `swap` compares and exchanges the
/// mapping in one system call, so that no address is ever unmapped. `unfence` lets threads go on.
/// Needs no privilege. Where a folder for the spill file is missing or is memory itself, there is
/// no slower tier; everything else works.
///
/// Reserved addresses without a handle are readable and writable and hold no memory: what is put
/// there by mistake is not noticed. Thread safety: as MemorySource says.
class HostMemorySource final : public MemorySource {
 public:
  /// For tests: switches single mechanisms off, to show what they are for.
  struct Testing {
    bool stop_threads = true;  ///< false: `fence` stops nobody, and writes get lost
    bool direct_io = true;     ///< false: the spill file is written through the page cache
    bool page_scan = true;     ///< false: as on kernels without PAGEMAP_SCAN
    bool remap = true;         ///< false: bring chunks back by copying inside the fence
    bool mirror = true;        ///< false: as if there were addresses for the chunks only
    bool watch = true;         ///< false: as on kernels that do not note writes
    bool heed_watch = true;    ///< false: what the kernel noted is ignored, and writes get lost
    /// Called inside `swap`, after the comparison and before the mapping is exchanged.
    void (*before_exchange)(void* context) = nullptr;
    void* context = nullptr;
  };
  struct Options {
    std::string spill_folder = "/var/tmp";
    Bytes host_cap{UINT64_MAX};         ///< also bounded by half of the folder's free space
    Bytes device_capacity{UINT64_MAX};  ///< max value: the machine's memory
    /// Asked by `fence` and `move_risk`, on their thread: is no op running in this process? False:
    /// a fence is refused while a thread runs that has no alternate signal stack yet (see
    /// thread_stopper.h). Takes no lock and throws nothing. Null: always true.
    bool (*between_ops)() = nullptr;
    Testing testing{};
  };

  HostMemorySource();
  /// Never fails for want of a slower tier: see `host_tier_reason`.
  explicit HostMemorySource(Options options);
  ~HostMemorySource() override;

  /// Returns how often chunks were brought back by moving pages, and by copying them.
  [[nodiscard]] std::uint64_t remaps() const noexcept { return remaps_; }
  [[nodiscard]] std::uint64_t copies_inside() const noexcept { return copies_inside_; }

  [[nodiscard]] Bytes granularity() const noexcept override;
  [[nodiscard]] Bytes capacity(Tier tier) const noexcept override;
  [[nodiscard]] std::string host_tier_reason() const override { return host_reason_; }
  [[nodiscard]] AddressRange reserve(Bytes size) override;
  void unreserve(AddressRange range) override;
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override;
  void release(MemoryHandle handle) override;
  void map(std::byte* address, MemoryHandle handle) override;
  void unmap(std::byte* address, MemoryHandle handle) override;
  [[nodiscard]] UnmappedRun unmap_run(std::byte* address,
                                      std::span<const MemoryHandle> handles) override;
  [[nodiscard]] bool rename(std::byte* address, MemoryHandle from, MemoryHandle to) override;
  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override;
  [[nodiscard]] CopyState copy_state(CopyTicket ticket) const noexcept override;
  [[nodiscard]] std::string copy_error(CopyTicket ticket) const override;
  CopyState wait_copy(CopyTicket ticket) override;
  CopyState advance_copy(CopyTicket ticket, Bytes most) override;
  void watch(std::span<const CopyTicket> tickets) noexcept override;
  [[nodiscard]] bool watches(Tier to) const noexcept override {
    return watch_writes_ != nullptr && to == Tier::kHost;
  }
  void end_copy(CopyTicket ticket) noexcept override;
  [[nodiscard]] MoveRisk move_risk() override;
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override;
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override;
  void unfence() noexcept override;
  [[nodiscard]] Touched touched(std::byte* address, MemoryHandle handle) const noexcept override;
  Bytes trim(std::byte* address, MemoryHandle handle) noexcept override;
  void prepare_fork() noexcept override;
  void after_fork_parent() noexcept override;
  void after_fork_child() noexcept override;
  [[nodiscard]] Bytes held_by_children() const noexcept override;

 private:
  using ForkCount = ChildWatch::ForkCount;

  struct Range {
    Bytes size;
    std::ptrdiff_t mirror = 0;   // distance of the staging range; 0: none
    std::byte* whole = nullptr;  // what munmap gets
    std::size_t whole_size = 0;
  };
  struct Block {
    MemoryHandle handle;
    std::byte* address = nullptr;  // null: not mapped
    SpillSlot slot;                // of host handles
    bool in_slot = false;          // its content is there; false: in anonymous memory as yet
    ForkCount mapped_at = 0;
    bool copying = false;
  };
  struct Piece {
    Fingerprint print;
    bool live = false;  // copied from memory: `print` tells whether it changed since
  };
  struct Copy {
    std::byte* address = nullptr;
    Bytes size;
    Block* from = nullptr;
    Block* to = nullptr;
    ForkCount from_mapped_at = 0;
    std::byte* staging = nullptr;  // for a target on the device
    bool own_staging = false;      // not in the mirror range
    std::atomic<CopyState> state{CopyState::kRunning};
    bool from_slot = false;
    bool stays = false;  // the same anonymous memory, under another name
    bool swapped = false;
    bool watchable = false;  // the kernel is prepared to note writes
    bool watched = false;    // and does: `written` comes from it, fingerprints are not needed
    std::string error;
    std::size_t staged = 0;     // so many pieces are copied or under way
    std::size_t under_way = 0;  // requests to the spill file
    int io_error = 0;
    std::vector<Piece> pieces;
    std::vector<std::uint8_t> written;  // one flag a piece
  };
  struct Held {
    Bytes bytes;
    ForkCount made = 0;
    ForkCount gone = 0;
  };

  [[nodiscard]] StopPoint stop_point() const noexcept;
  void open_host_tier();
  void check_usable(std::string_view call) const;
  void check_size(std::string_view call, Bytes size) const;
  Block& block(MemoryHandle handle, std::string_view call);
  const Range* range_of(const std::byte* address, Bytes size) const;
  bool mapped_in(const std::byte* address, Bytes size) const;
  Block& check_unmap(std::byte* address, MemoryHandle handle);
  static void drop_pages(std::byte* address, Bytes size);
  void forget_mapping(Block& block) noexcept;
  void given_back(Bytes bytes, ForkCount made) noexcept;
  Copy* find(CopyTicket ticket) const noexcept;
  void prepare_staging(Copy& copy);
  bool copy_on(Copy& copy, std::size_t most);
  void end_watch(Copy& copy) noexcept;
  [[nodiscard]] Copy* to_stage(Copy& waited) const noexcept;
  std::size_t stage(Copy& copy, std::size_t most);
  std::size_t stage_out(Copy& copy, std::size_t most);
  std::size_t stage_back(Copy& copy);
  void collect() noexcept;
  void copy_pieces(Copy& copy, std::size_t first, std::size_t end, std::byte* out);
  void drop_staging(Copy& copy) noexcept;
  bool renew(Copy& copy, OnChange on_change, SwapResult& answer) noexcept;
  bool exchange(Copy& copy) noexcept;

  const Options options_;
  const Bytes device_capacity_;
  std::string host_reason_;
  mutable ChildWatch watch_;
  std::unique_ptr<SpillFile> spill_;
  std::unique_ptr<PageMap> pages_;
  std::unique_ptr<WriteWatch> watch_writes_;
  std::unique_ptr<SlotIo> io_;
  std::map<std::byte*, Range> ranges_;
  std::map<std::uint64_t, Block> blocks_;
  std::map<const std::byte*, std::uint64_t> mapped_;  // address to handle
  mutable std::vector<Held> held_;
  Bytes device_used_;
  std::uint64_t next_id_ = 1;
  std::uint64_t remaps_ = 0;
  std::uint64_t copies_inside_ = 0;
  bool fenced_ = false;
  bool in_child_ = false;

  mutable Mutex mutex_{
      LockRank::kSource};  // only against `copy_state` from other threads; never taken in a fence
  std::map<std::uint64_t, std::unique_ptr<Copy>> copies_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
