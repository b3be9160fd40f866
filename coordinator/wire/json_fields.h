// SPDX-License-Identifier: Apache-2.0
// Types with fields (allocator/base/field_rules.h) to and from JSON: the one way for all of them.
//
// Bytes are whole numbers, times whole milliseconds, enums their names, lists arrays. nlohmann's
// own macros know neither bounds nor the names of nested fields, and the libraries that do want
// C++23 or are no packages of a distribution.
#pragma once

#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/enum_names.h"
#include "allocator/base/field_rules.h"
#include "allocator/base/ids.h"

namespace commensal::wire {

/// Raised for a value that cannot be a field's; `what` names field and value.
class BadField : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// What becomes of fields that a type does not have.
enum class OtherFields : std::uint8_t {
  kIgnored,  ///< of a peer that is newer
  kRefused   ///< what a user wrote may be a mistake
};
/// What becomes of texts that are not UTF-8.
enum class OtherTexts : std::uint8_t {
  kKept,  ///< for whoever prints them
  kRefused,
  kAsBytes  ///< lists of numbers; maps, whose keys are texts, are lists of pairs
};
/// How strictly, and how exactly.
struct JsonForm {
  OtherFields fields = OtherFields::kIgnored;
  OtherTexts texts = OtherTexts::kKept;
};
/// Of peers.
inline constexpr JsonForm kMessage{};
/// Of what a user wrote, and of what a database keeps.
inline constexpr JsonForm kStrict{OtherFields::kRefused, OtherTexts::kRefused};
/// Of our own files: every byte of a text comes back.
inline constexpr JsonForm kExact{OtherFields::kIgnored, OtherTexts::kAsBytes};

/// Returns a value as text, cut to what a message can show.
[[nodiscard]] std::string shown(const nlohmann::json& value);
/// @throws BadField "field 'field' must be wanted: value".
[[noreturn]] void refuse_field(std::string_view field, std::string_view wanted,
                               const nlohmann::json& value);

/// Name of a list's element. @param index  from 0.
[[nodiscard]] std::string element_of(const std::string& field, std::size_t index);
/// Name of a map's element.
[[nodiscard]] std::string member_of(const std::string& field, const std::string& key);
[[nodiscard]] std::string number_text(double value);
/// "at most 5", "2", "2 to 5".
[[nodiscard]] std::string bounds_text(std::size_t least, std::size_t most);
template <typename T>
std::string text_of_number(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return number_text(value);
  } else {
    return std::to_string(value);
  }
}

/// Refuses a value that breaks a rule. @param json  what it was read from.
/// @throws BadField.
template <typename T, typename V>
void keep(const NotBelow<T>& rule, const V& value, const std::string& field,
          const nlohmann::json& json) {
  if (!(value < rule.least)) return;
  if constexpr (std::is_arithmetic_v<T>) {
    if (rule.named == nullptr) refuse_field(field, "at least " + text_of_number(rule.least), json);
  }
  refuse_field(field, std::string{"at least "} + rule.named, json);
}
template <typename T, typename V>
void keep(const Between<T>& rule, const V& value, const std::string& field,
          const nlohmann::json& json) {
  if (!(value < rule.least) && !(rule.most < value)) return;
  refuse_field(field, "from " + text_of_number(rule.least) + " to " + text_of_number(rule.most),
               json);
}
void keep(const AboveUpTo& rule, double value, const std::string& field,
          const nlohmann::json& json);
void keep(const TextSize& rule, const std::string& value, const std::string& field,
          const nlohmann::json& json);
void keep(const TextSize& rule, const std::vector<std::string>& values, const std::string& field,
          const nlohmann::json& json);
template <typename T>
void keep(const ListSize& rule, const std::vector<T>& value, const std::string& field,
          const nlohmann::json& json) {
  if (value.size() >= rule.least && value.size() <= rule.most) return;
  refuse_field(field, "a list of " + bounds_text(rule.least, rule.most), json);
}
template <typename V>
void keep(const MayBeAbsent&, const V&, const std::string&, const nlohmann::json&) {}

namespace detail {

struct AnyVisitor {
  template <typename T, typename... Rules>
  void operator()(const char* name, T& member, const Rules&... rules) const;
  template <typename Problem>
  void check(const Problem& problem) const;
};

template <typename T>
concept HasFields = std::is_class_v<T> && requires(T& value, AnyVisitor& visitor) {
  fields(value, visitor);
};

template <typename T>
struct OptionalOf : std::false_type {};
template <typename T>
struct OptionalOf<std::optional<T>> : std::true_type {};
template <typename T>
struct ListOf : std::false_type {};
template <typename T>
struct ListOf<std::vector<T>> : std::true_type {};
template <typename T>
struct IdOf : std::false_type {};
template <typename Tag>
struct IdOf<StringId<Tag>> : std::true_type {};

template <typename T>
struct MapOf : std::false_type {};
template <typename T>
struct MapOf<std::map<std::string, T>> : std::true_type {};

using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;

/// @throws BadField.
void read_text(const nlohmann::json& value, const std::string& field, JsonForm form,
               std::string& out);
void read_bool(const nlohmann::json& value, const std::string& field, bool& out);
void read_number(const nlohmann::json& value, const std::string& field, double& out);
[[nodiscard]] std::chrono::seconds whole_seconds(const nlohmann::json& value,
                                                 const std::string& field, std::int64_t count);
[[nodiscard]] nlohmann::json written_text(const std::string& text, const std::string& field,
                                          JsonForm form);
void refuse_others(const nlohmann::json& object, const std::string& prefix,
                   const std::vector<std::string_view>& known);

// --- reading -------------------------------------------------------------------------------------

template <typename T>
void read_value(const nlohmann::json& value, const std::string& field, JsonForm form, T& out);

template <std::integral Integer>
Integer whole_number(const nlohmann::json& value, const std::string& field) {
  const bool fits =
      value.is_number_unsigned()
          ? std::in_range<Integer>(value.get<std::uint64_t>())
          : value.is_number_integer() && std::in_range<Integer>(value.get<std::int64_t>());
  if (!fits) {
    refuse_field(field,
                 "a whole number from " + std::to_string(std::numeric_limits<Integer>::min()) +
                     " to " + std::to_string(std::numeric_limits<Integer>::max()),
                 value);
  }
  return value.get<Integer>();
}

/// Visits the fields of an object: reads each, and keeps to its rules.
class Reader {
 public:
  Reader(const nlohmann::json& object, std::string prefix, JsonForm form)
      : object_(object), prefix_(std::move(prefix)), form_(form) {}

  template <typename T, typename... Rules>
  void operator()(const char* name, T& member, const Rules&... rules) {
    if (form_.fields == OtherFields::kRefused) known_.emplace_back(name);
    const std::string field = prefix_ + name;
    const auto found = object_.find(name);
    if (found == object_.end() || found->is_null()) {
      constexpr bool kMayBeAbsent =
          OptionalOf<T>::value || (std::is_same_v<Rules, MayBeAbsent> || ...);
      if constexpr (!kMayBeAbsent) throw BadField("field '" + field + "' is missing");
    } else if constexpr (OptionalOf<T>::value) {
      read(*found, field, member.emplace(), rules...);
    } else {
      read(*found, field, member, rules...);
    }
  }

  /// What must hold between fields. @param problem  says in a sentence what does not, or nothing.
  template <typename Problem>
  void check(const Problem& problem) const {
    if (const std::string wrong = problem(prefix_); !wrong.empty()) throw BadField(wrong);
  }

  /// To be called after all fields.
  void end() const {
    if (form_.fields == OtherFields::kRefused) refuse_others(object_, prefix_, known_);
  }

 private:
  template <typename T, typename... Rules>
  void read(const nlohmann::json& value, const std::string& field, T& out, const Rules&... rules) {
    read_value(value, field, form_, out);
    (keep(rules, out, field, value), ...);
  }

  const nlohmann::json& object_;
  std::string prefix_;
  JsonForm form_;
  std::vector<std::string_view> known_;
};

template <typename T>
void read_list(const nlohmann::json& value, const std::string& field, JsonForm form, T& out) {
  if (!value.is_array()) refuse_field(field, "a list", value);
  out.clear();
  for (const nlohmann::json& each : value) {
    const std::string name = element_of(field, out.size());
    read_value(each, name, form, out.emplace_back());
  }
}

template <typename T>
void read_map(const nlohmann::json& value, const std::string& field, JsonForm form, T& out) {
  out.clear();
  if (form.texts == OtherTexts::kAsBytes) {
    if (!value.is_array()) refuse_field(field, "a list of pairs", value);
    for (const nlohmann::json& pair : value) {
      if (!pair.is_array() || pair.size() != 2) refuse_field(field, "a list of pairs", pair);
      std::string key;
      read_text(pair[0], field, form, key);
      read_value(pair[1], field, form, out[key]);
    }
    return;
  }
  if (!value.is_object()) refuse_field(field, "an object", value);
  for (const auto& [key, each] : value.items()) {
    read_value(each, member_of(field, key), form, out[key]);
  }
}

template <typename T>
void read_object(const nlohmann::json& value, const std::string& prefix, JsonForm form, T& out) {
  Reader reader{value, prefix, form};
  fields(out, reader);
  reader.end();
}

template <typename T>
void read_value(const nlohmann::json& value, const std::string& field, JsonForm form, T& out) {
  if constexpr (std::is_same_v<T, std::string>) {
    read_text(value, field, form, out);
  } else if constexpr (std::is_same_v<T, bool>) {
    read_bool(value, field, out);
  } else if constexpr (std::is_same_v<T, double>) {
    read_number(value, field, out);
  } else if constexpr (std::is_integral_v<T>) {
    out = whole_number<T>(value, field);
  } else if constexpr (std::is_same_v<T, Bytes>) {
    out = Bytes{whole_number<std::uint64_t>(value, field)};
  } else if constexpr (std::is_same_v<T, WallTime>) {
    out = WallTime{std::chrono::milliseconds{whole_number<std::int64_t>(value, field)}};
  } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
    out = T{whole_number<std::int64_t>(value, field)};
  } else if constexpr (std::is_same_v<T, std::chrono::seconds>) {
    out = whole_seconds(value, field, whole_number<std::int64_t>(value, field));
  } else if constexpr (IdOf<T>::value) {
    std::string id;
    read_text(value, field, form, id);
    if (id.empty()) refuse_field(field, "an id", value);
    out = T{std::move(id)};
  } else if constexpr (NamedEnum<T>) {
    const auto named = value_of<T>(value.is_string() ? value.get<std::string>() : "");
    if (!named) refuse_field(field, list_of_names<T>(), value);
    out = *named;
  } else if constexpr (MapOf<T>::value) {
    read_map(value, field, form, out);
  } else if constexpr (ListOf<T>::value) {
    read_list(value, field, form, out);
  } else {
    if (!value.is_object()) refuse_field(field, "an object", value);
    if constexpr (std::is_same_v<T, nlohmann::json>) {
      out = value;
    } else {
      static_assert(HasFields<T>, "a type without a function fields()");
      read_object(value, field + ".", form, out);
    }
  }
}

// --- writing -------------------------------------------------------------------------------------

template <typename T>
nlohmann::json written_value(const T& value, const std::string& field, JsonForm form);

/// Visits the fields of an object: writes each that is there.
class Writer {
 public:
  Writer(nlohmann::json& object, std::string prefix, JsonForm form)
      : object_(object), prefix_(std::move(prefix)), form_(form) {}

  template <typename T, typename... Rules>
  void operator()(const char* name, const T& member, const Rules&...) {
    if constexpr (OptionalOf<T>::value) {
      if (member) (*this)(name, *member);
    } else {
      object_[name] = written_value(member, prefix_ + name, form_);
    }
  }
  template <typename Problem>
  void check(const Problem&) const {}

 private:
  nlohmann::json& object_;
  std::string prefix_;
  JsonForm form_;
};

template <typename T>
nlohmann::json written_map(const T& values, const std::string& field, JsonForm form) {
  const bool as_pairs = form.texts == OtherTexts::kAsBytes;
  nlohmann::json map = as_pairs ? nlohmann::json::array() : nlohmann::json::object();
  for (const auto& [key, value] : values) {
    nlohmann::json name = written_text(key, field, form);
    nlohmann::json each = written_value(value, member_of(field, key), form);
    if (as_pairs) {
      map.push_back(nlohmann::json::array({std::move(name), std::move(each)}));
    } else {
      map[key] = std::move(each);
    }
  }
  return map;
}

template <typename T>
nlohmann::json written_object(const T& value, const std::string& prefix, JsonForm form) {
  nlohmann::json object = nlohmann::json::object();
  Writer writer{object, prefix, form};
  fields(value, writer);
  return object;
}

template <typename T>
nlohmann::json written_value(const T& value, const std::string& field, JsonForm form) {
  if constexpr (std::is_same_v<T, std::string>) {
    return written_text(value, field, form);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, nlohmann::json>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return value.count();
  } else if constexpr (std::is_same_v<T, WallTime>) {
    return value.time_since_epoch().count();
  } else if constexpr (std::is_same_v<T, std::chrono::seconds> ||
                       std::is_same_v<T, std::chrono::milliseconds>) {
    return std::chrono::milliseconds(value).count();
  } else if constexpr (IdOf<T>::value) {
    return written_text(value.str(), field, form);
  } else if constexpr (NamedEnum<T>) {
    return std::string{name_of(value)};
  } else if constexpr (MapOf<T>::value) {
    return written_map(value, field, form);
  } else if constexpr (ListOf<T>::value) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& each : value) {
      list.push_back(written_value(each, element_of(field, list.size()), form));
    }
    return list;
  } else {
    static_assert(HasFields<T>, "a type without a function fields()");
    return written_object(value, field + ".", form);
  }
}

}  // namespace detail

/// Reads a value that is a field's.
/// @param field  its name, for people.
/// @throws BadField; then `out` is as far as it was read.
template <typename T>
void read_field(const nlohmann::json& value, const std::string& field, T& out,
                JsonForm form = kMessage) {
  detail::read_value(value, field, form, out);
}

/// Reads an object into a type with fields. @throws BadField, as above.
/// @param what  the whole of it, for people.
template <typename T>
void read_fields(const nlohmann::json& object, std::string_view what, T& out,
                 JsonForm form = kMessage) {
  if (!object.is_object()) {
    throw BadField(std::string{what} + " must be an object: " + shown(object));
  }
  detail::read_object(object, "", form, out);
}

/// Writes a type with fields, or a list of such: `read_fields` and `read_field` read it.
/// @throws BadField naming the field of a text, if others than UTF-8 are refused.
template <typename T>
[[nodiscard]] nlohmann::json write_fields(const T& value, JsonForm form = kMessage,
                                          const std::string& field = "") {
  if constexpr (detail::HasFields<T>) {
    return detail::written_object(value, field, form);
  } else {
    return detail::written_value(value, field, form);
  }
}

}  // namespace commensal::wire
