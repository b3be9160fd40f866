// SPDX-License-Identifier: Apache-2.0
// The layer between SQLite's pager and its files. Called from C: nothing here throws.
#include "coordinator/cluster/checked_pages.h"

#include <sqlite3.h>
#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace commensal::cluster {
namespace {

constexpr std::size_t kContent = kPageSize - kReservedBytes;
constexpr int kSmallestPage = 512;  // SQLite's; what is read in smaller pieces is the header

// The file below lies directly behind this in the memory that SQLite gives.
struct File {
  sqlite3_file base;
  bool pages;  // the main file, not its log
};
static_assert(sizeof(File) % alignof(std::max_align_t) == 0 || sizeof(File) % sizeof(void*) == 0);

sqlite3_file* below(sqlite3_file* file) noexcept {
  return reinterpret_cast<sqlite3_file*>(reinterpret_cast<File*>(file) + 1);
}
sqlite3_vfs* below(sqlite3_vfs* vfs) noexcept { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

// The number is part of it: a page in another's place is damage, too.
std::uint64_t checksum(const void* page, sqlite3_int64 offset) noexcept {
  return XXH3_64bits_withSeed(page, kContent, static_cast<std::uint64_t>(offset / kPageSize) + 1);
}

bool is_page(int amount, sqlite3_int64 offset) noexcept {
  return amount == kPageSize && offset % kPageSize == 0;
}

// --- a file ------------------------------------------------------------------------------------

int file_read(sqlite3_file* file, void* buffer, int amount, sqlite3_int64 offset) {
  const int rc = below(file)->pMethods->xRead(below(file), buffer, amount, offset);
  if (!reinterpret_cast<File*>(file)->pages || amount < kSmallestPage) return rc;
  if (rc == SQLITE_IOERR_SHORT_READ) return SQLITE_IOERR_DATA;
  if (rc != SQLITE_OK) return rc;
  if (!is_page(amount, offset)) return SQLITE_IOERR_DATA;
  std::uint64_t found = 0;
  std::memcpy(&found, static_cast<const std::byte*>(buffer) + kContent, sizeof found);
  return found == checksum(buffer, offset) ? SQLITE_OK : SQLITE_IOERR_DATA;
}

int file_write(sqlite3_file* file, const void* buffer, int amount, sqlite3_int64 offset) {
  if (!reinterpret_cast<File*>(file)->pages) {
    return below(file)->pMethods->xWrite(below(file), buffer, amount, offset);
  }
  if (!is_page(amount, offset)) return SQLITE_IOERR_WRITE;
  std::array<std::byte, kPageSize> page;
  std::memcpy(page.data(), buffer, kContent);
  const std::uint64_t sum = checksum(buffer, offset);
  std::memcpy(page.data() + kContent, &sum, sizeof sum);
  return below(file)->pMethods->xWrite(below(file), page.data(), kPageSize, offset);
}

int file_close(sqlite3_file* file) { return below(file)->pMethods->xClose(below(file)); }
int file_truncate(sqlite3_file* file, sqlite3_int64 size) {
  return below(file)->pMethods->xTruncate(below(file), size);
}
int file_sync(sqlite3_file* file, int flags) {
  return below(file)->pMethods->xSync(below(file), flags);
}
int file_size(sqlite3_file* file, sqlite3_int64* size) {
  return below(file)->pMethods->xFileSize(below(file), size);
}
int file_lock(sqlite3_file* file, int level) {
  return below(file)->pMethods->xLock(below(file), level);
}
int file_unlock(sqlite3_file* file, int level) {
  return below(file)->pMethods->xUnlock(below(file), level);
}
int file_reserved(sqlite3_file* file, int* reserved) {
  return below(file)->pMethods->xCheckReservedLock(below(file), reserved);
}
int file_control(sqlite3_file* file, int what, void* argument) {
  return below(file)->pMethods->xFileControl(below(file), what, argument);
}
int file_sector(sqlite3_file* file) { return below(file)->pMethods->xSectorSize(below(file)); }
int file_device(sqlite3_file* file) {
  return below(file)->pMethods->xDeviceCharacteristics(below(file));
}

constexpr sqlite3_io_methods kMethods{
    .iVersion = 1,  // no shared memory, no mapping of the file: every page passes `file_read`
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector,
    .xDeviceCharacteristics = file_device,
    .xShmMap = nullptr,
    .xShmLock = nullptr,
    .xShmBarrier = nullptr,
    .xShmUnmap = nullptr,
    .xFetch = nullptr,
    .xUnfetch = nullptr};

// --- the file system ---------------------------------------------------------------------------

int vfs_open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  auto* const ours = reinterpret_cast<File*>(file);
  ours->pages = (flags & SQLITE_OPEN_MAIN_DB) != 0;
  below(file)->pMethods = nullptr;
  const int rc = below(vfs)->xOpen(below(vfs), name, below(file), flags, out_flags);
  // SQLite closes what has methods, also after a failure.
  ours->base.pMethods = below(file)->pMethods != nullptr ? &kMethods : nullptr;
  return rc;
}

int vfs_delete(sqlite3_vfs* vfs, const char* name, int sync) {
  return below(vfs)->xDelete(below(vfs), name, sync);
}
int vfs_access(sqlite3_vfs* vfs, const char* name, int flags, int* result) {
  return below(vfs)->xAccess(below(vfs), name, flags, result);
}
int vfs_full_path(sqlite3_vfs* vfs, const char* name, int size, char* out) {
  return below(vfs)->xFullPathname(below(vfs), name, size, out);
}
int vfs_randomness(sqlite3_vfs* vfs, int size, char* out) {
  return below(vfs)->xRandomness(below(vfs), size, out);
}
int vfs_sleep(sqlite3_vfs* vfs, int microseconds) {
  return below(vfs)->xSleep(below(vfs), microseconds);
}
int vfs_time(sqlite3_vfs* vfs, double* time) { return below(vfs)->xCurrentTime(below(vfs), time); }
int vfs_last_error(sqlite3_vfs* vfs, int size, char* out) {
  return below(vfs)->xGetLastError(below(vfs), size, out);
}

sqlite3_vfs layer_over(sqlite3_vfs* under) {
  sqlite3_vfs vfs{};
  vfs.iVersion = 1;  // no loading of extensions
  vfs.szOsFile = static_cast<int>(sizeof(File)) + under->szOsFile;
  vfs.mxPathname = under->mxPathname;
  vfs.zName = "commensal-checked";
  vfs.pAppData = under;
  vfs.xOpen = vfs_open;
  vfs.xDelete = vfs_delete;
  vfs.xAccess = vfs_access;
  vfs.xFullPathname = vfs_full_path;
  vfs.xRandomness = vfs_randomness;
  vfs.xSleep = vfs_sleep;
  vfs.xCurrentTime = vfs_time;
  vfs.xGetLastError = vfs_last_error;
  return vfs;
}

const char* register_layer() {
  sqlite3_vfs* const under = sqlite3_vfs_find(nullptr);
  if (under == nullptr) throw std::runtime_error("SQLite has no file system of its own");
  static sqlite3_vfs layer = layer_over(under);
  if (const int rc = sqlite3_vfs_register(&layer, 0); rc != SQLITE_OK) {
    throw std::runtime_error(std::string{"SQLite takes no file system: "} + sqlite3_errstr(rc));
  }
  return layer.zName;
}

}  // namespace

const char* checked_pages() {
  static const char* const name = register_layer();
  return name;
}

}  // namespace commensal::cluster
