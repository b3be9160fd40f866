// SPDX-License-Identifier: Apache-2.0
// What SQLite's errors mean to the store, and a damaged file's way out of the way.
#pragma once

#include <SQLiteCpp/Exception.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/cluster/store.h"

namespace commensal::cluster {

/// The beginnings of every message about a file.
[[nodiscard]] std::string file_text(const std::filesystem::path& file);

/// Whether it says that what is in the file is not what was written.
[[nodiscard]] bool is_damage(const SQLite::Exception& error) noexcept;

/// Puts an error of SQLite into the words of the store.
/// @param doing  "opening", "writing", "reading"
[[nodiscard]] StoreFailed store_failure(const SQLite::Exception& error,
                                        const std::filesystem::path& file, std::string_view doing);

/// Renames a damaged file with its log to `FILE.damaged-TIME`; nobody may have it open.
/// @return what to throw: where it is now, and what to do.
[[nodiscard]] StoreFailed keep_aside(const std::filesystem::path& file, std::string damage);

}  // namespace commensal::cluster
