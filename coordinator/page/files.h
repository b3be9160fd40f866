// SPDX-License-Identifier: Apache-2.0
// The page's files, which are part of the program.
#pragma once

#include <span>
#include <string_view>

namespace commensal::page {

struct File {
  std::string_view path;  ///< "/page.css"
  std::string_view type;  ///< of its content
  std::string_view content;
};

/// All of them; they live as long as the program.
[[nodiscard]] std::span<const File> files() noexcept;

}  // namespace commensal::page
