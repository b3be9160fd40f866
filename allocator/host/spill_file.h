// SPDX-License-Identifier: Apache-2.0
// The file behind the slower tier: unlinked, divided into slots, written past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/host/child_watch.h"

namespace commensal {

/// A stretch of the file. `made`: number of forks before it was allocated.
struct SpillSlot {
  std::uint64_t offset = 0;
  Bytes size;
  ChildWatch::ForkCount made = 0;
};

/// Hands out slots of one unlinked file and writes and reads them.
///
/// The file is open in our own table of descriptors (own_descriptors.h): whatever the program
/// closes or opens, nothing is written anywhere else. A slot is never written while it is mapped,
/// here or in a forked child that may see it: freed slots wait until no such child lives. Freed
/// slots keep their disk blocks for the next one (to punch a written slot costs a second per GiB);
/// they are punched when the file would pass its cap. Thread safety: `write` and `read` of
/// different slots from any thread, and while other threads are stopped (no lock, no allocation);
/// everything else is serialised by the caller.
class SpillFile {
 public:
  struct Options {
    std::string folder = "/var/tmp";
    Bytes cap{UINT64_MAX};  ///< most bytes of slots; also bounded by half of the free disk
    Bytes step = 2_MiB;     ///< slots are multiples of it, at multiples of it
    bool direct_io = true;  ///< false: buffered, then dropped from the page cache (for tests)
  };

  /// Opens a file in the folder after probing by behaviour that the folder is on a disk: what was
  /// written and synced must leave memory when told to. Returns null and a reason otherwise.
  /// @param watch  tells about forked children; not owned.
  [[nodiscard]] static std::unique_ptr<SpillFile> open(const Options& options, ChildWatch& watch,
                                                       std::string& reason);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  [[nodiscard]] Bytes capacity() const noexcept { return cap_; }
  /// Returns bytes of slots in use, and of freed ones that children may still see.
  [[nodiscard]] Bytes used();
  /// @throws OutOfMemory above capacity, SourceError if the disk is full.
  [[nodiscard]] SpillSlot allocate(Bytes size);
  void free(const SpillSlot& slot);

  /// Who writes or reads: a thread of our own table does it itself, for another one it is done.
  enum class Caller : std::uint8_t { kAnyThread, kOwnThread };
  /// Writes `size` bytes at `at` of the slot; `bytes`, `at` and `size` are multiples of 4 KiB.
  /// Returns 0 or an errno.
  [[nodiscard]] int write(const SpillSlot& slot, std::uint64_t at, const std::byte* bytes,
                          std::size_t size, Caller caller = Caller::kAnyThread) const noexcept;
  [[nodiscard]] int read(const SpillSlot& slot, std::uint64_t at, std::byte* bytes,
                         std::size_t size, Caller caller = Caller::kAnyThread) const noexcept;
  /// Maps a slot privately over what is at `address`, for reading and writing, in one system call.
  /// May be used while threads are stopped. Returns false if the kernel refuses.
  [[nodiscard]] bool map(std::byte* address, const SpillSlot& slot) const noexcept;
  /// Makes sure that what was written is on the disk and out of the page cache. Only buffered
  /// writes need it. Returns 0 or an errno.
  [[nodiscard]] int settle(const SpillSlot& slot) const noexcept;
  /// Drops a slot's pages from the page cache, where no mapping uses them.
  void drop_cache(const SpillSlot& slot) const noexcept;

  /// In our own table. Slots are mapped from this one only, so that mappings merge.
  [[nodiscard]] int descriptor() const noexcept { return fd_; }
  [[nodiscard]] bool direct() const noexcept { return direct_fd_ >= 0; }

  /// In a forked child, which does not have the file open; its mappings stay.
  void forget_in_child() noexcept;

 private:
  struct Stretch {
    std::uint64_t size = 0;
    bool backed = false;  // has disk blocks
  };
  struct Waiting {
    SpillSlot slot;
    ChildWatch::ForkCount gone = 0;
  };

  static std::unique_ptr<SpillFile> open_there(const Options& options, ChildWatch& watch,
                                               std::string& reason);
  SpillFile(int fd, int direct_fd, Bytes cap, Bytes step, ChildWatch& watch);
  void give(std::uint64_t offset, Stretch stretch);
  void take_back_waiting();
  void punch_free();
  bool find(std::uint64_t size, bool backed, SpillSlot& slot);

  int fd_ = -1;
  int direct_fd_ = -1;
  Bytes cap_;
  Bytes step_;
  ChildWatch& watch_;
  std::map<std::uint64_t, Stretch> free_;  // by offset
  std::vector<Waiting> waiting_;
  std::uint64_t end_ = 0;          // where the file was extended to
  std::uint64_t backed_free_ = 0;  // bytes of free stretches with disk blocks
  Bytes used_;                     // slots in use and waiting
};

}  // namespace commensal
