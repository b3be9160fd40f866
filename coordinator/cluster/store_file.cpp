// SPDX-License-Identifier: Apache-2.0
// Opening: who the file belongs to is looked at before anything in it changes.
#include "coordinator/cluster/store_file.h"

#include <SQLiteCpp/Statement.h>
#include <SQLiteCpp/Transaction.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>

#include "coordinator/cluster/checked_pages.h"
#include "coordinator/cluster/store_failure.h"
#include "coordinator/cluster/store_log.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using Why = StoreFailed::Why;

constexpr std::int32_t kApplication = 0x636f6d6d;  // "comm"

// What the tables of version 1 were; later versions add to them.
// `ended` orders jobs by their end: the number of the line of history that says so. NULL is first
// in its index, so those that have not ended lie together, too, in the order of their ids.
constexpr const char* kTables = R"(
CREATE TABLE job(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL,
  request TEXT,
  spec TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  retries INTEGER NOT NULL,
  class TEXT NOT NULL,
  placement TEXT NOT NULL,
  cancel_asked INTEGER NOT NULL,
  exit_code INTEGER,
  submitted_ms INTEGER NOT NULL,
  changed_ms INTEGER NOT NULL,
  ended INTEGER
) STRICT;
CREATE UNIQUE INDEX job_request ON job(tenant, request) WHERE request IS NOT NULL;
CREATE INDEX job_ended ON job(ended);
CREATE TABLE transition(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  before TEXT NOT NULL,
  after TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  reason TEXT NOT NULL
) STRICT;
CREATE INDEX transition_job ON transition(job);
CREATE TABLE tenant(name TEXT PRIMARY KEY NOT NULL, quota INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE drained(
  node TEXT PRIMARY KEY NOT NULL,
  reason TEXT NOT NULL,
  since_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
)";

/// What makes a file of version N + 1 out of one of version N, from N = 1 on.
constexpr std::array<const char*, kStoreVersion - 1> kSteps{
    // Records that are said to be corrupt. `reports` is a list (JSON), oldest first.
    R"(
CREATE TABLE bad_input(
  tenant TEXT NOT NULL,
  dataset TEXT NOT NULL,
  record TEXT NOT NULL,
  reason TEXT NOT NULL,
  since_ms INTEGER NOT NULL,
  listed INTEGER NOT NULL,
  reports TEXT NOT NULL,
  PRIMARY KEY(tenant, dataset, record)
) STRICT, WITHOUT ROWID;
)",
    // What the coordinator knows of the store itself.
    R"(
CREATE TABLE note(name TEXT PRIMARY KEY NOT NULL, text TEXT NOT NULL) STRICT, WITHOUT ROWID;
)"};

/// Found by a check, not by SQLite.
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A log without its file, or beside an empty one, holds jobs that SQLite would throw away.
bool log_is_alone(const fs::path& file) {
  std::error_code none;
  const auto log = fs::file_size(file.string() + "-wal", none);
  if (none || log == 0) return false;
  const auto size = fs::file_size(file, none);
  return none || size == 0;
}

[[noreturn]] void cannot(const fs::path& file, std::string_view doing, int error) {
  const bool no_write =
      error == ENOSPC || error == EROFS || error == EDQUOT || error == EACCES || error == EPERM;
  throw StoreFailed(no_write ? Why::kFull : Why::kOther,
                    fmt::format("{} cannot be {}: {}", file_text(file), doing,
                                std::generic_category().message(error)));
}

void make_private_file(const fs::path& file) {
  const int made = ::open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (made >= 0) {
    if (::close(made) != 0) cannot(file, "made", errno);
    return;
  }
  if (errno != EEXIST) cannot(file, "made", errno);
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) cannot(file, "looked at", errno);
  if (!S_ISREG(found.st_mode)) {
    throw StoreFailed(Why::kOther, file_text(file) + " is not a regular file");
  }
}

void close_to_others(const fs::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) cannot(file, "looked at", errno);
  if ((found.st_mode & 0077) != 0 && ::chmod(file.c_str(), 0600) != 0) {
    cannot(file, "closed to other users", errno);
  }
}

// --- whose file is it --------------------------------------------------------------------------

struct Header {
  std::int32_t application = 0;
  std::int32_t version = 0;
};

std::int32_t big_endian(const unsigned char* bytes) noexcept {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8U | bytes[i];
  return static_cast<std::int32_t>(value);
}

void refuse_newer(const fs::path& file, std::int32_t version) {
  if (version <= kStoreVersion) return;
  throw StoreFailed(Why::kNewer,
                    fmt::format("{} was written by a newer version (its tables have version {}, "
                                "known here: {}): install that version, or give this one a file "
                                "of its own; the file is left as it is",
                                file_text(file), version, kStoreVersion));
}

// Reads the first page past SQLite, which would begin to use the file: one that is newer or not
// ours is left as it is. What is damaged, or empty, comes to light afterwards.
void look_at_header(SQLite::Database& database, const fs::path& file) {
  sqlite3_file* raw = nullptr;
  sqlite3_file_control(database.getHandle(), "main", SQLITE_FCNTL_FILE_POINTER,
                       static_cast<void*>(&raw));
  if (raw == nullptr || raw->pMethods == nullptr) return;
  std::array<unsigned char, kPageSize> page{};
  const bool whole = raw->pMethods->xRead(raw, page.data(), kPageSize, 0) == SQLITE_OK;
  if (!whole && raw->pMethods->xRead(raw, page.data(), 100, 0) != SQLITE_OK) return;
  if (std::memcmp(page.data(), "SQLite format 3", 16) != 0) return;
  const std::int32_t application = big_endian(&page[68]);
  if (application == kApplication) {
    if (whole) refuse_newer(file, big_endian(&page[60]));
  } else if (page[20] != kReservedBytes) {
    throw StoreFailed(Why::kOther,
                      fmt::format("{} is a database of another program (application id {}): give "
                                  "the coordinator a file of its own; it is left as it is",
                                  file_text(file), application));
  }
}

// --- opening -----------------------------------------------------------------------------------

std::string pragma(SQLite::Database& database, const std::string& text) {
  SQLite::Statement statement{database, "PRAGMA " + text};
  std::string value;
  while (statement.executeStep()) value = statement.getColumn(0).getString();
  return value;
}

// While it is off, what a crash has left in the log stays there: a file that is refused is as
// before.
void merge_log_at_end(SQLite::Database& database, bool on) {
  sqlite3_db_config(database.getHandle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, on ? 0 : 1, nullptr);
}

bool is_new(SQLite::Database& database) {
  SQLite::Statement any{database, "SELECT 1 FROM sqlite_schema LIMIT 1"};
  return !any.executeStep();
}

void take_steps(SQLite::Database& database, int from) {
  for (int version = from; version < kStoreVersion; ++version) {
    database.exec(kSteps.at(static_cast<std::size_t>(version) - 1));
  }
  database.exec(fmt::format("PRAGMA user_version={}", kStoreVersion));
}

void make_tables(SQLite::Database& database) {
  SQLite::Transaction transaction{database};
  database.exec(kTables);
  database.exec(fmt::format("PRAGMA application_id={}", kApplication));
  take_steps(database, 1);
  transaction.commit();
}

void bring_up_to_date(SQLite::Database& database) {
  const int version = std::stoi(pragma(database, "user_version"));
  if (version == kStoreVersion) return;
  SQLite::Transaction transaction{database};
  take_steps(database, version);
  transaction.commit();
}

void check_content(SQLite::Database& database, const fs::path& file) {
  if (is_new(database)) return;
  const int application = std::stoi(pragma(database, "application_id"));
  const int version = std::stoi(pragma(database, "user_version"));
  if (application != kApplication) throw Damage{fmt::format("application id {}", application)};
  refuse_newer(file, version);
  if (version < 1) throw Damage{fmt::format("version {} of its tables", version)};
  if (const std::string found = pragma(database, "quick_check(1)"); found != "ok") {
    throw Damage{found};
  }
  if (log_is_damaged(file.string() + "-wal")) throw Damage{"within its log"};
}

void prepare(SQLite::Database& database, const fs::path& file) {
  merge_log_at_end(database, false);
  look_at_header(database, file);
  int reserved = kReservedBytes;
  sqlite3_file_control(database.getHandle(), "main", SQLITE_FCNTL_RESERVE_BYTES, &reserved);
  pragma(database, fmt::format("page_size={}", kPageSize));
  pragma(database, "locking_mode=EXCLUSIVE");
  pragma(database, "cell_size_check=ON");
  pragma(database, "temp_store=MEMORY");
  check_content(database, file);
  close_to_others(file);
  if (sqlite3_db_readonly(database.getHandle(), "main") != 0) cannot(file, "written", EACCES);
  if (const std::string mode = pragma(database, "journal_mode=WAL"); mode != "wal") {
    throw StoreFailed(Why::kOther, fmt::format("{} cannot be used with a log (WAL): it stays '{}'",
                                               file_text(file), mode));
  }
  pragma(database, "synchronous=FULL");
  if (is_new(database)) {
    make_tables(database);
  } else {
    bring_up_to_date(database);
  }
  merge_log_at_end(database, true);
}

/// @return what is damaged, if it is.
std::optional<std::string> try_to_open(const fs::path& file,
                                       std::unique_ptr<SQLite::Database>& database) {
  try {
    database = std::make_unique<SQLite::Database>(file.string(), SQLite::OPEN_READWRITE, 0,
                                                  checked_pages());
    prepare(*database, file);
    return std::nullopt;
  } catch (const Damage& damage) {
    return damage.what();
  } catch (const SQLite::Exception& error) {
    if (is_damage(error)) return error.what();
    throw store_failure(error, file, "opening");
  }
}

}  // namespace

std::unique_ptr<SQLite::Database> open_store_file(const fs::path& file) {
  if (log_is_alone(file)) throw keep_aside(file, "it has lost its content, but has a log");
  make_private_file(file);
  std::unique_ptr<SQLite::Database> database;
  const std::optional<std::string> damage = try_to_open(file, database);
  if (!damage) return database;
  database.reset();
  throw keep_aside(file, *damage);
}

}  // namespace commensal::cluster
