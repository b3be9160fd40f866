// SPDX-License-Identifier: Apache-2.0
// The file of the store: made, locked, checked and of the right version before anything is read.
#pragma once

#include <SQLiteCpp/Database.h>

#include <filesystem>
#include <memory>

namespace commensal::cluster {

/// Version of the tables (PRAGMA user_version).
inline constexpr int kStoreVersion = 3;

/// Opens or makes the file (one of an older version gets what it lacks, at once or not at all),
/// with mode 0600, as WAL with `synchronous=FULL`, locked for this process. Every page of it has
/// been read and checked.
/// @throws StoreFailed; a damaged file has been renamed.
[[nodiscard]] std::unique_ptr<SQLite::Database> open_store_file(const std::filesystem::path& file);

}  // namespace commensal::cluster
