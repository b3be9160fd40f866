// SPDX-License-Identifier: Apache-2.0
// Tells which pages of a private file mapping are resident and which hold written copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/base/bytes.h"

namespace commensal {

/// Reads this process's page tables, by PAGEMAP_SCAN (Linux 6.7) or from /proc/self/pagemap.
///
/// Thread safety: `count` and `mark_written` may be called from any thread, and while other
/// threads are stopped: they take no lock and allocate nothing.
class PageMap {
 public:
  struct Counts {
    Bytes resident;  ///< pages present in the page table, file pages and written copies
    Bytes written;   ///< copies that a write made, also those that were swapped out
  };

  /// @param use_scan  false forces the path for kernels without PAGEMAP_SCAN (for tests).
  /// @throws SourceError if /proc/self/pagemap cannot be opened.
  explicit PageMap(bool use_scan = true);
  ~PageMap();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  /// Counts pages in `[begin, begin + size)`. Returns false if the kernel refused.
  [[nodiscard]] bool count(const std::byte* begin, std::size_t size, Counts& counts) const noexcept;
  /// Sets `flags[i]` to 1 where piece `i` (of `piece` bytes) has a written page, else to 0.
  /// Returns false if the kernel refused; `flags` are then all 1.
  [[nodiscard]] bool mark_written(const std::byte* begin, std::size_t size, std::size_t piece,
                                  std::uint8_t* flags) const noexcept;

  /// Sets `flags[i]` to 1 where piece `i` has a page without the kernel's write protection, which
  /// is what a write since `WriteWatch::arm` leaves, else to 0. Needs PAGEMAP_SCAN. Returns false
  /// if the kernel refused; `flags` are then all 1.
  [[nodiscard]] bool mark_unprotected(const std::byte* begin, std::size_t size, std::size_t piece,
                                      std::uint8_t* flags) const noexcept;

  [[nodiscard]] bool uses_scan() const noexcept { return scan_; }
  /// In a forked child, which has no such descriptor; from then on the kernel refuses.
  void forget_in_child() noexcept;

 private:
  template <typename Visit>
  bool visit_pages(bool by_scan, std::uint64_t begin, std::uint64_t end,
                   const Visit& visit) const noexcept;

  int fd_ = -1;  // in our own table (own_descriptors.h)
  std::size_t page_ = 4096;
  bool scan_ = false;
};

}  // namespace commensal
