// SPDX-License-Identifier: Apache-2.0
// Lets the kernel note which pages of anonymous memory are written from a moment on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator/host/page_map.h"

namespace commensal {

/// Write-protects pages by userfaultfd in its asynchronous mode (Linux 6.7): the kernel itself
/// lifts the protection at the first write, nobody waits, and PAGEMAP_SCAN tells later which pages
/// lost it. Sees what threads and their system calls write. A read or write into pages that the
/// kernel holds already (direct I/O on its way) is not seen: `arm` belongs where every thread is
/// stopped.
///
/// Watching costs the first write of each 4 KiB page about 0.7 us and splits its huge page: for
/// memory that is expected to rest. Thread safety: of different stretches from any thread; `arm`
/// and `changed` take no lock and allocate nothing, so they may be called while threads are
/// stopped.
class WriteWatch {
 public:
  /// Returns null where the kernel or a sandbox does not offer it, found out by trying.
  /// @param pages  not owned; must outlive it.
  [[nodiscard]] static std::unique_ptr<WriteWatch> open(const PageMap& pages);
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  /// Prepares a stretch of anonymous memory (page-aligned). @return false: it cannot be watched.
  [[nodiscard]] bool prepare(std::byte* begin, std::size_t size) noexcept;
  /// Watches from now on. @return false: it does not; whatever is asked later counts as changed.
  [[nodiscard]] bool arm(std::byte* begin, std::size_t size) noexcept;
  /// Sets `flags[i]` to 1 where piece `i` (of `piece` bytes) was written since `arm`, else to 0.
  /// @return false if the kernel refused; `flags` are then all 1.
  [[nodiscard]] bool changed(const std::byte* begin, std::size_t size, std::size_t piece,
                             std::uint8_t* flags) const noexcept;
  /// Ends what `prepare` began, also where other memory was mapped there meanwhile.
  void forget(std::byte* begin, std::size_t size) noexcept;

  /// In a forked child, whose memory is not watched.
  void forget_in_child() noexcept;

 private:
  WriteWatch(int fd, const PageMap& pages) noexcept : fd_(fd), pages_(pages) {}
  [[nodiscard]] bool works() noexcept;

  int fd_;  // in our own table (own_descriptors.h)
  const PageMap& pages_;
};

}  // namespace commensal
