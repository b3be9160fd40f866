// SPDX-License-Identifier: Apache-2.0
// Enums whose values have names, as users and messages write them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace commensal {

template <typename Enum, std::size_t kCount>
using EnumNames = std::array<std::pair<Enum, std::string_view>, kCount>;

/// An enum with a function `names_of(Enum)` beside it, which returns all its values with their
/// names.
template <typename Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires {
  names_of(Enum{});
};

/// Returns a value's name; "unknown" for one that is none.
template <NamedEnum Enum>
[[nodiscard]] constexpr std::string_view name_of(Enum value) noexcept {
  for (const auto& [known, name] : names_of(Enum{})) {
    if (known == value) return name;
  }
  return "unknown";
}

/// Returns the value of a name; nothing: it is nobody's.
template <NamedEnum Enum>
[[nodiscard]] constexpr std::optional<Enum> value_of(std::string_view name) noexcept {
  for (const auto& [value, known] : names_of(Enum{})) {
    if (known == name) return value;
  }
  return std::nullopt;
}

/// Lists the names for people: `"a", "b" or "c"`.
template <NamedEnum Enum>
[[nodiscard]] std::string list_of_names() {
  std::string list;
  const auto names = names_of(Enum{});
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? " or " : ", ";
    list += '"';
    list += names[i].second;
    list += '"';
  }
  return list;
}

}  // namespace commensal
