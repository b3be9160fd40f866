// SPDX-License-Identifier: Apache-2.0
// What does not depend on a type.
#include "coordinator/wire/json_fields.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace commensal::wire {

using nlohmann::json;

std::string shown(const json& value) {
  constexpr std::size_t kMost = 80;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

void refuse_field(std::string_view field, std::string_view wanted, const json& value) {
  throw BadField("field '" + std::string{field} + "' must be " + std::string{wanted} + ": " +
                 shown(value));
}

std::string element_of(const std::string& field, std::size_t index) {
  return field + "[" + std::to_string(index) + "]";
}

std::string member_of(const std::string& field, const std::string& key) {
  return field + '.' + key;
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

std::string bounds_text(std::size_t least, std::size_t most) {
  if (least == 0) return "at most " + std::to_string(most);
  return least == most ? std::to_string(most)
                       : std::to_string(least) + " to " + std::to_string(most);
}

void keep(const AboveUpTo& rule, double value, const std::string& field, const json& shown) {
  if (value > rule.above && value <= rule.most) return;
  refuse_field(field, "above " + number_text(rule.above) + " and at most " + number_text(rule.most),
               shown);
}

void keep(const TextSize& rule, const std::string& value, const std::string& field,
          const json& shown) {
  if (value.size() >= rule.least && value.size() <= rule.most) return;
  refuse_field(field, "a text of " + bounds_text(rule.least, rule.most) + " bytes", shown);
}

void keep(const TextSize& rule, const std::vector<std::string>& values, const std::string& field,
          const json& shown) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    keep(rule, values[i], element_of(field, i), shown[i]);
  }
}

namespace detail {

void read_text(const json& value, const std::string& field, JsonForm form, std::string& out) {
  if (value.is_array() && form.texts == OtherTexts::kAsBytes) {
    out.clear();
    for (const json& byte : value) {
      out += static_cast<char>(whole_number<unsigned char>(byte, field));
    }
    return;
  }
  if (!value.is_string()) refuse_field(field, "a text", value);
  out = value.get<std::string>();
}

void read_bool(const json& value, const std::string& field, bool& out) {
  if (!value.is_boolean()) refuse_field(field, "true or false", value);
  out = value.get<bool>();
}

void read_number(const json& value, const std::string& field, double& out) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    refuse_field(field, "a number", value);
  }
  out = value.get<double>();
}

std::chrono::seconds whole_seconds(const json& value, const std::string& field,
                                   std::int64_t count) {
  if (count < 0 || count % 1000 != 0) refuse_field(field, "whole seconds in milliseconds", value);
  return std::chrono::seconds{count / 1000};
}

json written_text(const std::string& text, const std::string& field, JsonForm form) {
  json value = text;
  if (form.texts == OtherTexts::kKept) return value;
  try {
    (void)value.dump();
  } catch (const json::type_error&) {
    if (form.texts == OtherTexts::kRefused) refuse_field(field, "UTF-8", value);
    value = json::array();
    for (const char byte : text) value.push_back(static_cast<unsigned char>(byte));
  }
  return value;
}

void refuse_others(const json& object, const std::string& prefix,
                   const std::vector<std::string_view>& known) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) == known.end()) {
      throw BadField(std::string{"field '"}.append(prefix).append(key).append("' is not known: ") +
                     shown(value));
    }
  }
}

}  // namespace detail
}  // namespace commensal::wire
