// SPDX-License-Identifier: Apache-2.0
// How a type lists its fields, and what it demands of their values.
//
// A type has fields where a function `fields` stands beside it, which calls `field(name, member,
// rules...)` for each of them. It is their only list: messages, stored jobs, answers and the
// published schema come from it (coordinator/wire/json_fields.h).
//
//   struct Slot { int number = 0; std::optional<double> share; };
//   void fields(SameAs<Slot> auto& slot, auto& field) {
//     field("number", slot.number, NotBelow{0});
//     field("share", slot.share);
//   }
//
// A member that is a std::optional may be absent, any other has to be there. Members are read in
// the order of the list, so that a rule can refer to an earlier one.
#pragma once

#include <cstddef>
#include <type_traits>

namespace commensal {

/// The type itself, which is const while it is written.
template <typename T, typename Type>
concept SameAs = std::is_same_v<std::remove_const_t<T>, Type>;

/// A number that is not below another one.
/// @tparam T  the member's type, or one that compares with it.
template <typename T>
struct NotBelow {
  T least;
  const char* named = nullptr;  ///< how people know it; absent: as the number that it is
};
template <typename T>
NotBelow(T) -> NotBelow<T>;
template <typename T>
NotBelow(T, const char*) -> NotBelow<T>;

/// A number within two others, both of which it may be.
template <typename T>
struct Between {
  T least;
  T most;
};
template <typename T>
Between(T, T) -> Between<T>;

/// A number that is above one and not above another.
struct AboveUpTo {
  double above;
  double most;
};

/// Bytes of a text.
struct TextSize {
  std::size_t least;
  std::size_t most;
};

/// Elements of a list.
struct ListSize {
  std::size_t least;
  std::size_t most;
};

/// It may be absent, though it is no std::optional: then it keeps its value.
struct MayBeAbsent {};

}  // namespace commensal
