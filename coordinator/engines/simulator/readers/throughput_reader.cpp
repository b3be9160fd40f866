// SPDX-License-Identifier: Apache-2.0
// Throughputs by nlohmann's JSON.
#include "coordinator/engines/simulator/readers/throughput_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "coordinator/engines/simulator/readers/rows.h"

namespace commensal::simulator {
namespace {

using Json = nlohmann::ordered_json;
using policies::ThroughputTable;

Json read_json(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw BadTrace(fmt::format("{}: cannot be opened", file));
  try {
    return Json::parse(in);
  } catch (const Json::exception& error) {
    throw BadTrace(fmt::format("{}: {}", file, error.what()));
  }
}

/// Where a value stands, for messages, and the value.
struct Entry {
  const std::string& file;
  const std::string& type;
  const std::string& profile;
  const std::string& other;
  const Json& value;

  [[nodiscard]] double rate(const Json& number) const {
    if (!number.is_number() || number.get<double>() < 0) fail("no rate");
    return number.get<double>();
  }
  [[noreturn]] void fail(std::string_view what) const {
    throw BadTrace(fmt::format("{}, type {}, {} with {}: {}: {}", file, type, profile, other, what,
                               value.dump()));
  }
};

void read_entry(const Entry& entry, std::uint32_t type, ThroughputTable& table) {
  const std::uint32_t profile = *table.find_profile(entry.profile);
  if (entry.other == "null") {
    table.set_alone(type, profile, entry.rate(entry.value));
    return;
  }
  const auto other = table.find_profile(entry.other);
  if (!other) entry.fail("no profile has this name");
  if (!entry.value.is_array() || entry.value.size() != 2) entry.fail("no pair of rates");
  table.set_together(type, profile, *other,
                     {entry.rate(entry.value[0]), entry.rate(entry.value[1])});
}

}  // namespace

std::string profile_key(std::string_view model, std::int32_t gpus) {
  return fmt::format("('{}', {})", model, gpus);
}

ThroughputTable read_throughputs(const std::string& file) {
  const Json json = read_json(file);
  if (!json.is_object()) throw BadTrace(fmt::format("{}: no object of GPU types", file));
  std::vector<std::string> types;
  std::vector<std::string> profiles;
  for (const auto& [type, by_profile] : json.items()) {
    if (!by_profile.is_object()) throw BadTrace(fmt::format("{}, type {}: no object", file, type));
    types.push_back(type);
    for (const auto& [profile, rates] : by_profile.items()) {
      if (!rates.is_object()) {
        throw BadTrace(fmt::format("{}, type {}, {}: no object", file, type, profile));
      }
      profiles.push_back(profile);
    }
  }
  std::sort(profiles.begin(), profiles.end());
  profiles.erase(std::unique(profiles.begin(), profiles.end()), profiles.end());
  ThroughputTable table(types, profiles);
  std::uint32_t number = 0;
  for (const auto& [type, by_profile] : json.items()) {
    for (const auto& [profile, rates] : by_profile.items()) {
      for (const auto& [other, value] : rates.items()) {
        read_entry({file, type, profile, other, value}, number, table);
      }
    }
    ++number;
  }
  return table;
}

std::string find_throughputs(const std::string& trace, const std::string& given) {
  namespace fs = std::filesystem;
  if (!given.empty() && fs::is_regular_file(given)) return given;
  const fs::path beside = fs::absolute(trace).parent_path();
  std::vector<std::string> names{"simulation_throughputs.json", "tacc_throughputs.json",
                                 "physical_cluster_throughputs.json"};
  if (beside.filename() == "physical") std::swap(names.front(), names.back());
  std::vector<fs::path> folders{beside, beside.parent_path()};
  if (!given.empty()) folders = {given};
  for (const fs::path& folder : folders) {
    for (const std::string& name : names) {
      if (fs::is_regular_file(folder / name)) return (folder / name).string();
    }
  }
  throw BadTrace(fmt::format("{}: no table of throughputs for it in {}: {}", trace,
                             folders.front().string(), fmt::join(names, ", ")));
}

}  // namespace commensal::simulator
