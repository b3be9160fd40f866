// SPDX-License-Identifier: Apache-2.0
// One transaction from the first change to the commit, and the log (WAL) that it is written to.
#pragma once

#include <SQLiteCpp/Database.h>
#include <SQLiteCpp/Statement.h>

#include <cstddef>
#include <cstdint>
#include <optional>

struct sqlite3;

namespace commensal::cluster {

/// Gathers changes of a database into one transaction. Thread safety: none.
///
/// A commit that SQLite reports as failed may yet lie whole in the log, when only the sync went
/// wrong: SQLite has forgotten it, but the next process would find it there. So what a failed
/// commit wrote is cut off, and where that fails too, nothing begins before the log has been
/// emptied.
class StoreBatch {
 public:
  /// Empties the log. @param log_pages  pages in it after which a commit empties it.
  StoreBatch(SQLite::Database& database, std::size_t log_pages);
  StoreBatch(const StoreBatch&) = delete;
  StoreBatch& operator=(const StoreBatch&) = delete;
  ~StoreBatch();

  /// Begins, unless it has. @throws SQLite::Exception.
  void begin();
  /// Makes durable what was changed since `begin`; without it does nothing.
  /// @throws SQLite::Exception; `abandon` is to be called then.
  void commit();
  /// Forgets what was changed since `begin`.
  void abandon() noexcept;

 private:
  static int committed(void* self, sqlite3* handle, const char* name, int pages) noexcept;
  void empty_log();
  bool cut_log() noexcept;

  SQLite::Database& database_;
  std::size_t log_pages_;
  bool open_ = false;
  bool committing_ = false;
  bool stale_ = false;  // the log may hold a commit that was reported as failed
  std::optional<std::uint64_t> pages_in_log_;  // that count; unknown after a failure of `empty_log`
  SQLite::Statement begin_;
  SQLite::Statement commit_;
  SQLite::Statement rollback_;
};

}  // namespace commensal::cluster
