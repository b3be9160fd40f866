// SPDX-License-Identifier: Apache-2.0
// Files that are there whole or not at all, whenever the machine stops.
#pragma once

#include <filesystem>
#include <string_view>

namespace commensal::cluster::local {

/// Whether a file must outlive a power cut, or only the processes around it.
enum class Durable : bool { kNo, kYes };

/// Replaces a file: readers see the old text or the new one, and so do those after a crash. What a
/// crash may leave beside it is called `NAME.new` and is replaced by the next call.
/// @throws std::system_error with the path.
void write_whole(const std::filesystem::path& file, std::string_view text,
                 Durable durable = Durable::kYes);

/// Makes an empty file and makes it durable. @return false if it was there already.
/// @throws std::system_error with the path.
bool make_marker(const std::filesystem::path& file);

/// Makes the names in a folder durable. @throws std::system_error with the path.
void sync_folder(const std::filesystem::path& folder);

}  // namespace commensal::cluster::local
