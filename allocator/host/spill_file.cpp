// SPDX-License-Identifier: Apache-2.0
// The file behind the slower tier.
#include "allocator/host/spill_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "allocator/host/file_system.h"
#include "allocator/host/own_descriptors.h"
#include "allocator/memory_source.h"

namespace commensal {
namespace {

std::string error_text(int error) { return std::strerror(error); }

// Opens a file without a name; where the file system has no such thing, removes the name at once.
int open_nameless(const std::string& folder, std::string& reason) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
    reason = "cannot open a file in " + folder + ": " + error_text(errno);
    return -1;
  }
  std::string path = folder + "/commensal-spill-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named < 0) {
    reason = "cannot open a file in " + folder + ": " + error_text(errno);
    return -1;
  }
  ::unlink(path.c_str());
  return named;
}

// Returns the share of `[0, size)` of the file that is in memory, in percent; -1: not known.
int resident_percent(int fd, std::size_t size) {
  void* view = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (view == MAP_FAILED) return -1;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(size / page);
  const int rc = ::mincore(view, size, pages.data());
  ::munmap(view, size);
  if (rc != 0) return -1;
  const auto resident = std::count_if(pages.begin(), pages.end(),
                                      [](unsigned char flags) { return (flags & 1U) != 0; });
  return static_cast<int>(static_cast<std::size_t>(resident) * 100 / pages.size());
}

// Writes, syncs, drops, and looks whether memory came back. The name and type of a file system do
// not say all: an overlay over tmpfs reports "overlay".
std::string probe(int fd, const std::string& folder) {
  constexpr std::size_t kProbe = 16U << 20U;
  constexpr std::size_t kBlock = 1U << 20U;
  const std::vector<char> block(kBlock, 'c');
  for (std::size_t at = 0; at < kProbe;) {
    const ssize_t done = ::pwrite(fd, block.data(), kBlock, static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      return "cannot write 16 MiB to " + folder + ": " + error_text(done < 0 ? errno : ENOSPC);
    }
    at += static_cast<std::size_t>(done);
  }
  if (::fdatasync(fd) != 0) return "cannot sync a file in " + folder + ": " + error_text(errno);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const int percent = resident_percent(fd, kProbe);
  if (percent < 0) return "cannot tell whether " + folder + " is on a disk";
  if (percent >= 50) {
    return folder + " is memory, not a disk: " + std::to_string(percent) +
           " % of 16 MiB written there stayed in memory";
  }
  if (::ftruncate(fd, 0) != 0) return "cannot truncate a file in " + folder;
  return {};
}

// Opens the same file once more for writing past the page cache; -1 if it cannot do that.
int open_direct(int fd) {
  const std::string path = "/proc/thread-self/fd/" + std::to_string(fd);
  const int direct = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (direct < 0) return -1;
  void* block = std::aligned_alloc(4096, 4096);
  bool works = false;
  if (block != nullptr) {
    std::memset(block, 0, 4096);
    works = ::pwrite(direct, block, 4096, 0) == 4096 && ::pread(direct, block, 4096, 0) == 4096;
    std::free(block);
  }
  if (works && ::ftruncate(fd, 0) == 0) return direct;
  ::close(direct);
  return -1;
}

// Half of the free disk: others need some, and a full disk must not be our doing.
Bytes disk_share(int fd) {
  struct statvfs disk {};
  if (::fstatvfs(fd, &disk) != 0) return Bytes{};
  std::uint64_t share = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize / 2;
  rlimit longest{};
  if (::getrlimit(RLIMIT_FSIZE, &longest) == 0 && longest.rlim_cur != RLIM_INFINITY) {
    share = std::min<std::uint64_t>(share, longest.rlim_cur);  // beyond it: SIGXFSZ
  }
  return Bytes{share};
}

// May take as long as a disk takes. Returns 0 or an errno.
int allocate_blocks(int fd, int mode, std::uint64_t offset, std::uint64_t size) {
  return own_descriptors::run([=] {
    int rc = 0;
    do {
      rc = ::fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(size));
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : errno;
  });
}

template <typename... Arguments>
long system_call(SpillFile::Caller caller, long number, Arguments... arguments) noexcept {
  if (caller == SpillFile::Caller::kAnyThread) return own_descriptors::call(number, arguments...);
  const long got = ::syscall(number, arguments...);
  return got == -1 ? -errno : got;
}

}  // namespace

std::unique_ptr<SpillFile> SpillFile::open(const Options& options, ChildWatch& watch,
                                           std::string& reason) {
  reason = own_descriptors::refusal();
  // In the program's table it would be the program's to close and to write to.
  if (!reason.empty()) return nullptr;
  return own_descriptors::run([&] { return open_there(options, watch, reason); });
}

std::unique_ptr<SpillFile> SpillFile::open_there(const Options& options, ChildWatch& watch,
                                                 std::string& reason) {
  if (options.cap < options.step) {
    reason = "the cap of the slower tier is below one chunk: " + to_string(options.cap);
    return nullptr;
  }
  const int fd = open_nameless(options.folder, reason);
  if (fd < 0) return nullptr;
  const FolderFacts system = file_system_of(fd);
  if (system.kind == FolderKind::kMemory) {
    reason = spill_folder_warning(options.folder, system);
    ::close(fd);
    return nullptr;
  }
  const Bytes share = disk_share(fd);
  if (share < options.step) {
    reason = "too little free disk (or file size limit) in " + options.folder + ": half of it is " +
             to_string(share);
    ::close(fd);
    return nullptr;
  }
  reason = probe(fd, options.folder);
  if (!reason.empty()) {
    ::close(fd);
    return nullptr;
  }
  const int direct = options.direct_io ? open_direct(fd) : -1;
  const Bytes cap{std::min(options.cap, share).count() / options.step.count() *
                  options.step.count()};
  return std::unique_ptr<SpillFile>(new SpillFile(fd, direct, cap, options.step, watch));
}

SpillFile::SpillFile(int fd, int direct_fd, Bytes cap, Bytes step, ChildWatch& watch)
    : fd_(fd), direct_fd_(direct_fd), cap_(cap), step_(step), watch_(watch) {}

SpillFile::~SpillFile() {
  own_descriptors::close(fd_);
  own_descriptors::close(direct_fd_);
}

void SpillFile::forget_in_child() noexcept { fd_ = direct_fd_ = -1; }

Bytes SpillFile::used() {
  take_back_waiting();
  return used_;
}

// Puts a stretch into the free list, merged with its neighbours of the same kind.
void SpillFile::give(std::uint64_t offset, Stretch stretch) {
  if (stretch.backed) backed_free_ += stretch.size;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + stretch.size &&
      next->second.backed == stretch.backed) {
    stretch.size += next->second.size;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.size == offset && before->second.backed == stretch.backed) {
      before->second.size += stretch.size;
      return;
    }
  }
  free_.emplace(offset, stretch);
}

void SpillFile::take_back_waiting() {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (watch_.child_saw(waiting.slot.made, waiting.gone)) return false;
    drop_cache(waiting.slot);
    used_ -= waiting.slot.size;
    give(waiting.slot.offset, Stretch{waiting.slot.size.count(), true});
    return true;
  });
}

void SpillFile::punch_free() {
  std::map<std::uint64_t, Stretch> before;
  before.swap(free_);
  backed_free_ = 0;
  for (auto& [offset, stretch] : before) {
    if (stretch.backed && allocate_blocks(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                                          stretch.size) == 0) {
      stretch.backed = false;
    }
    give(offset, stretch);
  }
}

// Best fit among the free stretches, of those with or without disk blocks.
bool SpillFile::find(std::uint64_t size, bool backed, SpillSlot& slot) {
  auto best = free_.end();
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second.size < size || at->second.backed != backed) continue;
    if (best == free_.end() || at->second.size < best->second.size) best = at;
  }
  if (best == free_.end()) return false;
  slot.offset = best->first;
  const Stretch whole = best->second;
  free_.erase(best);
  if (whole.backed) backed_free_ -= whole.size;
  if (whole.size > size) give(slot.offset + size, Stretch{whole.size - size, whole.backed});
  return true;
}

SpillSlot SpillFile::allocate(Bytes size) {
  take_back_waiting();
  if (size > saturating_sub(cap_, used_)) {
    throw OutOfMemory("spill file above its cap: " + to_string(used_) + " + " + to_string(size) +
                      " > " + to_string(cap_) +
                      (waiting_.empty() ? "" : " (some slots wait for forked children)"));
  }
  SpillSlot slot{0, size, watch_.forks()};
  if (!find(size.count(), true, slot)) {
    if (used_.count() + backed_free_ + size.count() > cap_.count()) punch_free();
    if (!find(size.count(), false, slot) && !find(size.count(), true, slot)) {
      slot.offset = end_;
      end_ += size.count();
    }
  }
  int error = allocate_blocks(fd_, 0, slot.offset, size.count());
  // A file system without fallocate: the length must be right, or touching a mapping is SIGBUS.
  if (error == EOPNOTSUPP) {
    error = own_descriptors::run(
        [this] { return ::ftruncate(fd_, static_cast<off_t>(end_)) == 0 ? 0 : errno; });
  }
  if (error != 0) {
    give(slot.offset, Stretch{size.count(), false});
    throw SourceError("fallocate of " + to_string(size) +
                      " in the spill file: " + error_text(error));
  }
  used_ += size;
  return slot;
}

void SpillFile::free(const SpillSlot& slot) {
  const ChildWatch::ForkCount gone = watch_.forks();
  if (watch_.child_saw(slot.made, gone)) {
    waiting_.push_back(Waiting{slot, gone});
    return;
  }
  drop_cache(slot);
  used_ -= slot.size;
  give(slot.offset, Stretch{slot.size.count(), true});
}

int SpillFile::write(const SpillSlot& slot, std::uint64_t at, const std::byte* bytes,
                     std::size_t size, Caller caller) const noexcept {
  const int fd = direct_fd_ >= 0 ? direct_fd_ : fd_;
  while (size != 0) {
    const long done = system_call(caller, SYS_pwrite64, fd, bytes, size, slot.offset + at);
    if (done == -EINTR) continue;
    if (done <= 0) return done < 0 ? static_cast<int>(-done) : ENOSPC;
    const auto count = static_cast<std::size_t>(done);
    bytes += count;
    at += count;
    size -= count;
  }
  return 0;
}

int SpillFile::read(const SpillSlot& slot, std::uint64_t at, std::byte* bytes, std::size_t size,
                    Caller caller) const noexcept {
  const int fd = direct_fd_ >= 0 ? direct_fd_ : fd_;
  while (size != 0) {
    const long done = system_call(caller, SYS_pread64, fd, bytes, size, slot.offset + at);
    if (done == -EINTR) continue;
    if (done <= 0) return done < 0 ? static_cast<int>(-done) : EIO;
    const auto count = static_cast<std::size_t>(done);
    bytes += count;
    at += count;
    size -= count;
  }
  return 0;
}

bool SpillFile::map(std::byte* address, const SpillSlot& slot) const noexcept {
  const long got =
      own_descriptors::call(SYS_mmap, address, slot.size.count(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd_, slot.offset);
  return got == reinterpret_cast<long>(address);
}

int SpillFile::settle(const SpillSlot& slot) const noexcept {
  if (direct()) return 0;
  const int error = own_descriptors::run([this] { return ::fdatasync(fd_) == 0 ? 0 : errno; });
  if (error != 0) return error;
  drop_cache(slot);
  return 0;
}

void SpillFile::drop_cache(const SpillSlot& slot) const noexcept {
  (void)own_descriptors::call(SYS_fadvise64, fd_, slot.offset, slot.size.count(),
                              POSIX_FADV_DONTNEED);
}

}  // namespace commensal
