// SPDX-License-Identifier: Apache-2.0
// Tells which pages of a private file mapping are resident and which hold written copies. System
// calls are made past the C library's names, which sanitizers intercept with locks of their own.
#include "allocator/host/page_map.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "allocator/host/own_descriptors.h"
#include "allocator/memory_source.h"

namespace commensal {
namespace {

// From Linux's uapi/linux/fs.h (6.7), which older system headers lack.
struct ScanArguments {
  std::uint64_t size;
  std::uint64_t flags;
  std::uint64_t start;
  std::uint64_t end;
  std::uint64_t walk_end;
  std::uint64_t vec;
  std::uint64_t vec_len;
  std::uint64_t max_pages;
  std::uint64_t category_inverted;
  std::uint64_t category_mask;
  std::uint64_t category_anyof_mask;
  std::uint64_t return_mask;
};
struct ScanRegion {
  std::uint64_t start;
  std::uint64_t end;
  std::uint64_t categories;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArguments);
constexpr std::uint64_t kIsWritten = 1U << 1U;
constexpr std::uint64_t kIsFile = 1U << 2U;
constexpr std::uint64_t kIsPresent = 1U << 3U;
constexpr std::uint64_t kIsSwapped = 1U << 4U;

// Entries of /proc/PID/pagemap.
constexpr std::uint64_t kEntryFile = 1ULL << 61U;
constexpr std::uint64_t kEntrySwapped = 1ULL << 62U;
constexpr std::uint64_t kEntryPresent = 1ULL << 63U;

// Calls `visit(first byte, end, categories)` for each run of pages of any of these categories.
template <typename Visit>
bool scan(int fd, std::uint64_t begin, std::uint64_t end, std::uint64_t any, std::uint64_t wanted,
          const Visit& visit) noexcept {
  ScanRegion regions[64];
  while (begin < end) {
    ScanArguments arguments{};
    arguments.size = sizeof(arguments);
    arguments.start = begin;
    arguments.end = end;
    arguments.vec = reinterpret_cast<std::uintptr_t>(regions);
    arguments.vec_len = sizeof(regions) / sizeof(regions[0]);
    arguments.category_anyof_mask = any;
    arguments.return_mask = wanted;
    const long got = ::syscall(SYS_ioctl, fd, kPagemapScan, &arguments);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    for (long i = 0; i < got; ++i) {
      visit(regions[i].start, regions[i].end, regions[i].categories);
    }
    if (arguments.walk_end <= begin) return false;
    begin = arguments.walk_end;
  }
  return true;
}

// Calls `visit(first byte, end, present, written)` for each run of pages with something in it.
template <typename Visit>
bool scan_pages(int fd, std::uint64_t begin, std::uint64_t end, const Visit& visit) noexcept {
  return scan(fd, begin, end, kIsPresent | kIsSwapped, kIsFile | kIsPresent | kIsSwapped,
              [&](std::uint64_t first, std::uint64_t last, std::uint64_t categories) {
                visit(first, last, (categories & kIsPresent) != 0, (categories & kIsFile) == 0);
              });
}

// The flags of pieces, of which some pages are visited.
class PieceFlags {
 public:
  PieceFlags(const std::byte* begin, std::size_t size, std::size_t piece,
             std::uint8_t* flags) noexcept
      : from_(reinterpret_cast<std::uintptr_t>(begin)),
        piece_(piece),
        count_(size / piece),
        flags_(flags) {
    fill(0);
  }
  void mark(std::uint64_t first, std::uint64_t end) noexcept {
    for (std::size_t i = (first - from_) / piece_; i <= (end - 1 - from_) / piece_; ++i) {
      flags_[i] = 1;
    }
  }
  // Where the kernel does not tell, every piece counts.
  [[nodiscard]] bool checked(bool ok) noexcept {
    if (!ok) fill(1);
    return ok;
  }

 private:
  void fill(std::uint8_t value) noexcept {
    for (std::size_t i = 0; i < count_; ++i) flags_[i] = value;
  }

  std::uint64_t from_;
  std::size_t piece_;
  std::size_t count_;
  std::uint8_t* flags_;
};

template <typename Visit>
bool read_pages(int fd, std::uint64_t page, std::uint64_t begin, std::uint64_t end,
                const Visit& visit) noexcept {
  std::uint64_t entries[512];
  while (begin < end) {
    std::uint64_t wanted = (end - begin) / page;
    if (wanted > 512) wanted = 512;
    const long got = ::syscall(SYS_pread64, fd, entries, wanted * sizeof(entries[0]),
                               begin / page * sizeof(entries[0]));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    const std::uint64_t count = static_cast<std::uint64_t>(got) / sizeof(entries[0]);
    for (std::uint64_t i = 0; i < count; ++i, begin += page) {
      const std::uint64_t entry = entries[i];
      if ((entry & (kEntryPresent | kEntrySwapped)) == 0) continue;
      visit(begin, begin + page, (entry & kEntryPresent) != 0, (entry & kEntryFile) == 0);
    }
  }
  return true;
}

}  // namespace

PageMap::PageMap(bool use_scan) : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
  own_descriptors::begin();
  const long fd =
      own_descriptors::call(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    throw SourceError(std::string("open /proc/self/pagemap: ") +
                      std::strerror(static_cast<int>(-fd)));
  }
  fd_ = static_cast<int>(fd);
  // The kernel's answer for a page that is surely there decides.
  const auto here = reinterpret_cast<std::uintptr_t>(&fd_) / page_ * page_;
  bool seen = false;
  scan_ = use_scan &&
          visit_pages(
              true, here, here + page_,
              [&](std::uint64_t, std::uint64_t, bool present, bool) noexcept { seen = present; }) &&
          seen;
}

PageMap::~PageMap() { own_descriptors::close(fd_); }

template <typename Visit>
bool PageMap::visit_pages(bool by_scan, std::uint64_t begin, std::uint64_t end,
                          const Visit& visit) const noexcept {
  const auto look = [&]() noexcept -> long {
    return (by_scan ? scan_pages(fd_, begin, end, visit)
                    : read_pages(fd_, page_, begin, end, visit))
               ? 1
               : 0;
  };
  return own_descriptors::quick(look) == 1;
}

bool PageMap::count(const std::byte* begin, std::size_t size, Counts& counts) const noexcept {
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  Counts sum;
  const auto add = [&](std::uint64_t first, std::uint64_t end, bool present, bool written) {
    if (present) sum.resident += Bytes{end - first};
    if (written) sum.written += Bytes{end - first};
  };
  const bool ok = visit_pages(scan_, from, from + size, add);
  if (ok) counts = sum;
  return ok;
}

bool PageMap::mark_written(const std::byte* begin, std::size_t size, std::size_t piece,
                           std::uint8_t* flags) const noexcept {
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  PieceFlags pieces(begin, size, piece, flags);
  const auto mark = [&](std::uint64_t first, std::uint64_t end, bool, bool written) {
    if (written) pieces.mark(first, end);
  };
  return pieces.checked(visit_pages(scan_, from, from + size, mark));
}

bool PageMap::mark_unprotected(const std::byte* begin, std::size_t size, std::size_t piece,
                               std::uint8_t* flags) const noexcept {
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  PieceFlags pieces(begin, size, piece, flags);
  const auto mark = [&](std::uint64_t first, std::uint64_t end, std::uint64_t) {
    pieces.mark(first, end);
  };
  const auto look = [&]() noexcept -> long {
    return scan(fd_, from, from + size, kIsWritten, kIsWritten, mark) ? 1 : 0;
  };
  return pieces.checked(scan_ && own_descriptors::quick(look) == 1);
}

void PageMap::forget_in_child() noexcept { fd_ = -1; }

}  // namespace commensal
