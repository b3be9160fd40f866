// SPDX-License-Identifier: Apache-2.0
// Files that only their owner may read or change.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace commensal::keys {

/// What others may do with a file.
enum class OthersMay : bool { kNothing, kRead };

/// Reads a file of this user (or of root) whole. Symbolic links are not followed.
/// @param what  how messages call it.
/// @return nothing if there is none.
/// @throws KeyProblem if it is no file, somebody else's, open to others, larger than 16 MiB or
/// cannot be read.
[[nodiscard]] std::optional<std::string> read_private_file(const std::filesystem::path& file,
                                                           std::string_view what, OthersMay others);

/// Writes a file (mode 0600) durably: after a crash at any point the old one is there whole, or the
/// new one. Two that write the same file at once must hold a lock.
/// @throws KeyProblem; then the old one is as it was.
void write_private_file(const std::filesystem::path& file, std::string_view what,
                        std::string_view text);

}  // namespace commensal::keys
