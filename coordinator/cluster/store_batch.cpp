// SPDX-License-Identifier: Apache-2.0
// Transactions, and what may stay in the log.
#include "coordinator/cluster/store_batch.h"

#include <SQLiteCpp/Exception.h>
#include <sqlite3.h>

#include "coordinator/cluster/checked_pages.h"
#include "coordinator/cluster/store_log.h"

namespace commensal::cluster {
namespace {

void run(SQLite::Statement& statement) {
  (void)statement.tryReset();
  (void)statement.executeStep();
  (void)statement.tryReset();
}

}  // namespace

StoreBatch::StoreBatch(SQLite::Database& database, std::size_t log_pages)
    : database_(database),
      log_pages_(log_pages),
      begin_(database, "BEGIN IMMEDIATE"),
      commit_(database, "COMMIT"),
      rollback_(database, "ROLLBACK") {
  sqlite3_wal_hook(database_.getHandle(), committed, this);  // in place of its own checkpoints
  try {
    empty_log();
  } catch (const SQLite::Exception&) {  // NOLINT(bugprone-empty-catch)
    // A full disk: what is there can be read, and the first change will say it.
  }
}

StoreBatch::~StoreBatch() {
  abandon();
  sqlite3_wal_hook(database_.getHandle(), nullptr, nullptr);
}

int StoreBatch::committed(void* self, sqlite3*, const char*, int pages) noexcept {
  static_cast<StoreBatch*>(self)->pages_in_log_ = static_cast<std::uint64_t>(pages);
  return SQLITE_OK;
}

void StoreBatch::begin() {
  if (open_) return;
  if (stale_) empty_log();
  run(begin_);
  open_ = true;
}

void StoreBatch::commit() {
  if (!open_) return;
  committing_ = true;
  run(commit_);
  open_ = committing_ = false;
  if (pages_in_log_.value_or(0) < log_pages_) return;
  try {
    empty_log();
  } catch (const SQLite::Exception&) {  // NOLINT(bugprone-empty-catch)
    // The batch is durable where it is; the next commit comes here again.
  }
}

void StoreBatch::abandon() noexcept {
  if (!open_) return;
  (void)begin_.tryReset();
  (void)commit_.tryReset();
  (void)rollback_.tryReset();
  // After some errors SQLite has done it already.
  if (sqlite3_get_autocommit(database_.getHandle()) == 0) {
    sqlite3_exec(database_.getHandle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  if (committing_) stale_ = !cut_log();
  open_ = committing_ = false;
}

void StoreBatch::empty_log() {
  sqlite3* const handle = database_.getHandle();
  const auto checkpoint = [handle](int mode) {
    int pages = 0;
    const int rc = sqlite3_wal_checkpoint_v2(handle, "main", mode, &pages, nullptr);
    if (rc != SQLITE_OK) throw SQLite::Exception(handle, rc);
    return static_cast<std::uint64_t>(pages);
  };
  // The first one copies and syncs, and leaves the log as it is if it fails.
  const std::uint64_t pages = checkpoint(SQLITE_CHECKPOINT_PASSIVE);
  pages_in_log_.reset();
  if (pages > 0) (void)checkpoint(SQLITE_CHECKPOINT_TRUNCATE);
  pages_in_log_ = 0;
  stale_ = false;
}

bool StoreBatch::cut_log() noexcept {
  if (!pages_in_log_) return false;
  sqlite3_file* log = nullptr;
  if (sqlite3_file_control(database_.getHandle(), "main", SQLITE_FCNTL_JOURNAL_POINTER,
                           static_cast<void*>(&log)) != SQLITE_OK ||
      log == nullptr || log->pMethods == nullptr) {
    return false;
  }
  const std::uint64_t valid =
      *pages_in_log_ == 0 ? 0 : kLogHeader + *pages_in_log_ * (kFrameHeader + kPageSize);
  sqlite3_int64 size = 0;
  if (log->pMethods->xFileSize(log, &size) != SQLITE_OK) return false;
  if (static_cast<std::uint64_t>(size) <= valid) return true;
  return log->pMethods->xTruncate(log, static_cast<sqlite3_int64>(valid)) == SQLITE_OK;
}

}  // namespace commensal::cluster
