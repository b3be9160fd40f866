// SPDX-License-Identifier: Apache-2.0
// The secret that lets its holder change things through the page.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace commensal::page {

/// Returns the token in a file, and makes the file (mode 0600) with a new one of 256 random bits
/// if there is none. @throws std::runtime_error, one sentence with the path, if it cannot be used:
/// somebody else's, open to others, not 64 digits of hexadecimal, not to be read or written.
[[nodiscard]] std::string token_in(const std::filesystem::path& file);

/// Whether two texts are equal; takes as long for every wrong one of the right length.
[[nodiscard]] bool same_secret(std::string_view one, std::string_view other) noexcept;

}  // namespace commensal::page
