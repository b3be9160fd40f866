// SPDX-License-Identifier: Apache-2.0
// One clear sentence for each way in which a file fails.
#include "coordinator/cluster/store_failure.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using Why = StoreFailed::Why;

bool is_write(int extended) noexcept {
  switch (extended) {
    case SQLITE_IOERR_WRITE:
    case SQLITE_IOERR_FSYNC:
    case SQLITE_IOERR_DIR_FSYNC:
    case SQLITE_IOERR_TRUNCATE:
    case SQLITE_IOERR_DELETE:
    case SQLITE_IOERR_CLOSE: return true;
    default: return false;
  }
}

Why reason(const SQLite::Exception& error, std::string_view doing) noexcept {
  if (is_damage(error)) return Why::kDamaged;
  switch (error.getErrorCode()) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return Why::kLocked;
    case SQLITE_FULL:
    case SQLITE_READONLY: return Why::kFull;
    case SQLITE_IOERR:
      return is_write(error.getExtendedErrorCode()) || doing == "writing" ? Why::kFull
                                                                          : Why::kOther;
    case SQLITE_CANTOPEN: return doing == "writing" ? Why::kFull : Why::kOther;
    default: return Why::kOther;
  }
}

// A name that is not taken: two may be put aside within a second.
fs::path free_name(const fs::path& file) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  const std::string first = fmt::format("{}.damaged-{:%Y%m%dT%H%M%SZ}", file.string(),
                                        fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
  std::string name = first;
  for (int i = 2; fs::exists(name) || fs::exists(name + "-wal"); ++i) {
    name = fmt::format("{}-{}", first, i);
  }
  return name;
}

}  // namespace

std::string file_text(const fs::path& file) {
  return fmt::format("the coordinator's database {}", file.string());
}

bool is_damage(const SQLite::Exception& error) noexcept {
  return error.getErrorCode() == SQLITE_CORRUPT || error.getErrorCode() == SQLITE_NOTADB ||
         error.getExtendedErrorCode() == SQLITE_IOERR_DATA ||
         error.getExtendedErrorCode() == SQLITE_IOERR_CORRUPTFS;
}

StoreFailed store_failure(const SQLite::Exception& error, const fs::path& file,
                          std::string_view doing) {
  const std::string text = file_text(file);
  const Why why = reason(error, doing);
  switch (why) {
    case Why::kLocked:
      return {why, fmt::format("{} is used by another coordinator: end that one, or give this one "
                               "a file of its own",
                               text)};
    case Why::kFull:
      return {why, fmt::format("{} cannot be written ({}): nothing of the last changes is kept; "
                               "make space or mend the file system, then try again",
                               text, error.what())};
    case Why::kDamaged:
      return {why, fmt::format("{} is damaged ({}): end the coordinator and start it again, which "
                               "puts the file aside, or bring back a backup first",
                               text, error.what())};
    default: return {why, fmt::format("{}: {} failed: {}", text, doing, error.what())};
  }
}

void check_nothing_was_kept_aside(const fs::path& file) {
  std::error_code error;
  if (fs::exists(file, error)) return;
  const std::string beginning = file.filename().string() + ".damaged-";
  for (fs::directory_iterator entry{file.parent_path(), error};
       !error && entry != fs::directory_iterator{}; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(beginning)) continue;
    throw StoreFailed(
        Why::kDamaged,
        fmt::format("{} was damaged and kept aside as {}, and nothing is in its place: copy a "
                    "backup to {}; without a backup, start the coordinator once with --begin-anew, "
                    "which begins with an empty one and ends the jobs that run",
                    file_text(file), entry->path().string(), file.string()));
  }
}

StoreFailed keep_aside(const fs::path& file, std::string damage) {
  std::ranges::replace(damage, '\n', ' ');  // SQLite's own checks answer in lines
  const fs::path aside = free_name(file);
  for (const char* part : {"", "-wal", "-journal", "-shm"}) {
    const fs::path from = file.string() + part;
    std::error_code error;
    if (!fs::exists(from, error)) continue;
    if (*part != '\0' && fs::file_size(from, error) == 0 && fs::remove(from, error)) continue;
    fs::rename(from, aside.string() + part, error);
    if (error) {
      return {Why::kDamaged,
              fmt::format("{} is damaged ({}) and could not be renamed to {}: {}; move it away, "
                          "bring back a backup if there is one, and start again",
                          file_text(file), damage, aside.string(), error.message())};
    }
  }
  return {Why::kDamaged,
          fmt::format(
              "{} is damaged ({}) and was kept aside as {}: copy a backup to {} and start "
              "again; without a backup, start once with --begin-anew, which begins with an empty "
              "one and ends the jobs that run",
              file_text(file), damage, aside.string(), file.string())};
}

}  // namespace commensal::cluster
