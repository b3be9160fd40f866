// SPDX-License-Identifier: Apache-2.0
// Counting, failing, dying.
#include "tests/coordinator/fault_vfs.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace commensal::fault_vfs {
namespace {

/// What a write or truncation replaced, until it is synced.
struct Undo {
  std::string path;
  sqlite3_int64 offset = 0;
  std::vector<char> bytes;
  sqlite3_int64 size = 0;  // of the file
};

struct State {
  Plan plan;
  std::uint64_t changes = 0;
  std::uint64_t reads = 0;
  bool came = false;
  std::vector<Undo> unsynced;
};

State& state() {
  static State value;
  return value;
}

struct File {
  sqlite3_file base;
  std::string* path;
};

sqlite3_file* below(sqlite3_file* file) {
  return reinterpret_cast<sqlite3_file*>(reinterpret_cast<File*>(file) + 1);
}
sqlite3_vfs* below(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }
std::string& path_of(sqlite3_file* file) { return *reinterpret_cast<File*>(file)->path; }

void require(bool good) {
  if (!good) std::abort();
}

void lose_unsynced() {
  auto& unsynced = state().unsynced;
  for (auto undo = unsynced.rbegin(); undo != unsynced.rend(); ++undo) {
    const int file = ::open(undo->path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) continue;  // it has been deleted
    const auto size = undo->bytes.size();
    require(::pwrite(file, undo->bytes.data(), size, undo->offset) == static_cast<ssize_t>(size));
    require(::ftruncate(file, undo->size) == 0);
    require(::close(file) == 0);
  }
}

void remember(sqlite3_file* file, sqlite3_int64 offset, sqlite3_int64 end) {
  if (state().plan.fault != Fault::kPowerLoss) return;
  Undo undo{.path = path_of(file), .offset = offset, .bytes = {}, .size = 0};
  require(below(file)->pMethods->xFileSize(below(file), &undo.size) == SQLITE_OK);
  undo.bytes.resize(
      static_cast<std::size_t>(std::max<sqlite3_int64>(0, std::min(end, undo.size) - offset)));
  if (!undo.bytes.empty()) {
    require(below(file)->pMethods->xRead(below(file), undo.bytes.data(),
                                         static_cast<int>(undo.bytes.size()), offset) == SQLITE_OK);
  }
  state().unsynced.push_back(std::move(undo));
}

void forget(const std::string& path) {
  std::erase_if(state().unsynced, [&](const Undo& undo) { return undo.path == path; });
}

enum class What : std::uint8_t { kWrite, kSync, kOther };

/// @return SQLITE_OK to go on. Does not come back if the process is to end; `half` does what is
/// left of a torn write.
template <typename Half>
int change(What what, Half half) {
  State& now = state();
  if (now.plan.syncs_only && what != What::kSync) return SQLITE_OK;
  ++now.changes;
  const bool frozen = now.plan.fault == Fault::kFreeze || now.plan.fault == Fault::kFreezeTorn;
  const bool goes_on = frozen || (now.plan.fault == Fault::kFailOn && what != What::kOther);
  const bool here = now.changes == now.plan.at || (goes_on && now.changes > now.plan.at);
  if (now.plan.fault == Fault::kNone || !here) return SQLITE_OK;
  const bool first = !now.came;
  now.came = true;
  switch (now.plan.fault) {
    case Fault::kFreezeTorn:
      if (first) half();
      return SQLITE_IOERR;
    case Fault::kFreeze: return SQLITE_IOERR;
    case Fault::kTear: half(); ::_exit(kExitCode);
    case Fault::kPowerLoss: lose_unsynced(); ::_exit(kExitCode);
    case Fault::kDie: ::_exit(kExitCode);
    default: return now.plan.code;
  }
}
int change(What what) {
  return change(what, [] {});
}

int file_close(sqlite3_file* file) {
  delete reinterpret_cast<File*>(file)->path;
  return below(file)->pMethods->xClose(below(file));
}
int file_read(sqlite3_file* file, void* buffer, int amount, sqlite3_int64 offset) {
  ++state().reads;
  return below(file)->pMethods->xRead(below(file), buffer, amount, offset);
}
int file_write(sqlite3_file* file, const void* buffer, int amount, sqlite3_int64 offset) {
  const int rc = change(What::kWrite, [&] {
    (void)below(file)->pMethods->xWrite(below(file), buffer, amount / 2, offset);
  });
  if (rc != SQLITE_OK) return rc;
  remember(file, offset, offset + amount);
  return below(file)->pMethods->xWrite(below(file), buffer, amount, offset);
}
int file_truncate(sqlite3_file* file, sqlite3_int64 size) {
  if (const int rc = change(What::kOther); rc != SQLITE_OK) return rc;
  sqlite3_int64 end = 0;
  require(below(file)->pMethods->xFileSize(below(file), &end) == SQLITE_OK);
  remember(file, size, end);
  return below(file)->pMethods->xTruncate(below(file), size);
}
int file_sync(sqlite3_file* file, int) {
  if (const int rc = change(What::kSync); rc != SQLITE_OK) return rc;
  forget(path_of(file));
  return SQLITE_OK;
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

const sqlite3_io_methods& methods() {
  static const sqlite3_io_methods value = [] {
    sqlite3_io_methods table{};
    table.iVersion = 1;
    table.xClose = file_close;
    table.xRead = file_read;
    table.xWrite = file_write;
    table.xTruncate = file_truncate;
    table.xSync = file_sync;
    table.xFileSize = file_size;
    table.xLock = file_lock;
    table.xUnlock = file_unlock;
    table.xCheckReservedLock = file_reserved;
    table.xFileControl = file_control;
    table.xSectorSize = file_sector;
    table.xDeviceCharacteristics = file_device;
    return table;
  }();
  return value;
}

int vfs_open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out) {
  auto* const ours = reinterpret_cast<File*>(file);
  ours->base.pMethods = nullptr;
  below(file)->pMethods = nullptr;
  const int rc = below(vfs)->xOpen(below(vfs), name, below(file), flags, out);
  if (below(file)->pMethods == nullptr) return rc;
  ours->path = new std::string(name == nullptr ? "" : name);
  ours->base.pMethods = &methods();
  return rc;
}

int vfs_delete(sqlite3_vfs* vfs, const char* name, int sync) {
  if (const int rc = change(What::kOther); rc != SQLITE_OK) return rc;
  forget(name);
  return below(vfs)->xDelete(below(vfs), name, sync);
}

}  // namespace

void install() {
  static sqlite3_vfs layer = [] {
    sqlite3_vfs* const under = sqlite3_vfs_find(nullptr);
    sqlite3_vfs vfs = *under;  // what is not replaced does not look at its first argument
    vfs.szOsFile = static_cast<int>(sizeof(File)) + under->szOsFile;
    vfs.zName = "faults";
    vfs.pNext = nullptr;
    vfs.pAppData = under;
    vfs.xOpen = vfs_open;
    vfs.xDelete = vfs_delete;
    return vfs;
  }();
  require(sqlite3_vfs_register(&layer, 1) == SQLITE_OK);
}

void arm(const Plan& plan) {
  state() = State{};
  state().plan = plan;
}

std::uint64_t changes() { return state().changes; }
bool came() { return state().came; }
std::uint64_t reads() { return state().reads; }

}  // namespace commensal::fault_vfs
