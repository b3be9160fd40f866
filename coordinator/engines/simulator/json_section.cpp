// SPDX-License-Identifier: Apache-2.0
// Checks keys and values, by nlohmann's JSON.
#include "coordinator/engines/simulator/json_section.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "coordinator/policies/nearest_name.h"
#include "coordinator/wire/json_text.h"

namespace commensal::simulator {

using nlohmann::json;

json parse_json(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw BadCluster(fmt::format("{}: cannot be opened", file));
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  try {
    return wire::parse_json(text, wire::kOwnFile);
  } catch (const wire::BadJson& problem) {
    throw BadCluster(fmt::format("{}: {}", file, problem.what()));
  }
}

Section::Section(std::string file, std::string where, const json& object,
                 const std::vector<std::string_view>& keys)
    : file_(std::move(file)), where_(std::move(where)), object_(object) {
  if (!object.is_object()) fail("is no object", object);
  if (keys.empty()) return;
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    fail(
        fmt::format("has a key that does not exist (there are {}): {}", fmt::join(keys, ", "), key),
        value);
  }
}

bool Section::has(std::string_view key) const { return object_.contains(std::string(key)); }

const json& Section::at(std::string_view key) const { return object_.at(std::string(key)); }

std::int64_t Section::whole(std::string_view key, std::int64_t fallback, std::int64_t least,
                            std::int64_t most) const {
  if (!has(key)) return fallback;
  const json& value = at(key);
  if (!value.is_number_integer() || value.get<double>() < static_cast<double>(least) ||
      value.get<double>() > static_cast<double>(most)) {
    fail(fmt::format("needs a whole number from {} to {}: {}", least, most, key), value);
  }
  return value.get<std::int64_t>();
}

double Section::number(std::string_view key, double fallback, double least, double most) const {
  if (!has(key)) return fallback;
  const json& value = at(key);
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
    fail(fmt::format("needs a number from {:g} to {:g}: {}", least, most, key), value);
  }
  return value.get<double>();
}

std::string Section::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

std::string Section::text(std::string_view key) const {
  if (!has(key)) fail("lacks a key", json(key));
  const json& value = at(key);
  if (!value.is_string() || value.get<std::string>().empty()) {
    fail(fmt::format("needs a text: {}", key), value);
  }
  return value.get<std::string>();
}

std::string Section::choice(std::string_view key, std::string_view fallback,
                            const std::vector<std::string>& choices) const {
  const std::string chosen = text(key, fallback);
  if (std::find(choices.begin(), choices.end(), chosen) == choices.end()) {
    fail(fmt::format("needs one of {} (did you mean {}?): {}", fmt::join(choices, ", "),
                     policies::nearest_name(chosen, choices), key),
         chosen);
  }
  return chosen;
}

const json& Section::list(std::string_view key) const {
  static const json none = json::array();
  if (!has(key)) return none;
  const json& value = at(key);
  if (!value.is_array()) fail(fmt::format("needs a list: {}", key), value);
  return value;
}

const json& Section::value(std::string_view key) const {
  static const json none;
  return has(key) ? at(key) : none;
}

std::vector<std::string> Section::texts(std::string_view key) const {
  std::vector<std::string> all;
  for (const json& entry : list(key)) {
    if (!entry.is_string()) fail(fmt::format("needs a list of texts: {}", key), entry);
    all.push_back(entry.get<std::string>());
  }
  return all;
}

void Section::fail(std::string_view what, const json& value) const {
  throw BadCluster(fmt::format("{}: {} {} = {}", file_, where_, what, value.dump()));
}

}  // namespace commensal::simulator
