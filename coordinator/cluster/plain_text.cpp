// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/plain_text.h"

#include <fmt/format.h>

#include <optional>
#include <stdexcept>

namespace commensal::cluster {
namespace {

/// Code of the control character that begins at `at`: of ASCII, or U+0080 to U+009F in UTF-8.
std::optional<int> control_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x20U || byte(at) == 0x7FU) return byte(at);
  const bool of_two = byte(at) == 0xC2U && at + 1 < text.size();
  if (of_two && byte(at + 1) >= 0x80U && byte(at + 1) < 0xA0U) return byte(at + 1);
  return std::nullopt;
}

}  // namespace

void check_plain_text(std::string_view what, std::string_view text, std::size_t most) {
  if (text.size() > most) {
    throw std::invalid_argument(
        fmt::format("{} has at most {} bytes, not {}", what, most, text.size()));
  }
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (const auto code = control_at(text, at)) {
      throw std::invalid_argument(
          fmt::format("{} holds no control characters, but there is one (code {}) at byte {}", what,
                      *code, at));
    }
  }
}

void check_plain_name(std::string_view what, std::string_view name, std::size_t most) {
  if (name.empty()) throw std::invalid_argument(fmt::format("{} is not empty", what));
  check_plain_text(what, name, most);
  if (name.find_first_not_of(' ') == std::string_view::npos) {
    throw std::invalid_argument(fmt::format("{} is not blank: \"{}\"", what, name));
  }
}

}  // namespace commensal::cluster
