// SPDX-License-Identifier: Apache-2.0
// JobSpec to JSON and back.
#include "coordinator/engines/local/spec_json.h"

#include "coordinator/cluster/job_json.h"

namespace commensal::cluster::local {
namespace {

using nlohmann::json;

bool is_utf8(const std::string& text) {
  try {
    (void)json(text).dump();
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

}  // namespace

json text_to_json(const std::string& text) {
  if (is_utf8(text)) return text;
  json bytes = json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

std::string text_from_json(const json& value) {
  if (!value.is_array()) return value.get<std::string>();
  std::string text;
  for (const json& byte : value) text += static_cast<char>(byte.get<unsigned char>());
  return text;
}

json texts_to_json(const std::vector<std::string>& texts) {
  json list = json::array();
  for (const std::string& text : texts) list.push_back(text_to_json(text));
  return list;
}

std::vector<std::string> texts_from_json(const json& value) {
  std::vector<std::string> texts;
  for (const json& text : value) texts.push_back(text_from_json(text));
  return texts;
}

json variables_to_json(const std::map<std::string, std::string>& variables) {
  json list = json::array();
  for (const auto& [name, value] : variables) {
    list.push_back(json::array({text_to_json(name), text_to_json(value)}));
  }
  return list;
}

std::map<std::string, std::string> variables_from_json(const json& value) {
  std::map<std::string, std::string> variables;
  for (const json& pair : value) {
    variables[text_from_json(pair.at(0))] = text_from_json(pair.at(1));
  }
  return variables;
}

json spec_to_json(const JobSpec& spec) {
  json value{{"name", text_to_json(spec.name)},
             {"tenant", text_to_json(spec.tenant)},
             {"asked", static_cast<int>(spec.asked)},
             {"gpus", spec.gpus},
             {"cpu_milli", spec.cpu_milli},
             {"host_memory_mib", spec.host_memory_mib},
             {"environment", variables_to_json(spec.environment)},
             {"command", texts_to_json(spec.command)},
             {"directory", text_to_json(spec.directory)},
             {"terms", to_json(spec.terms)}};
  if (spec.time_limit) value["time_limit_s"] = spec.time_limit->count();
  if (spec.pre_run) value["pre_run_s"] = spec.pre_run->count();
  if (spec.after) value["after"] = text_to_json(spec.after->str());
  return value;
}

JobSpec spec_from_json(const json& value) {
  JobSpec spec;
  spec.name = text_from_json(value.at("name"));
  spec.tenant = text_from_json(value.at("tenant"));
  spec.asked = static_cast<policies::AskedClass>(value.at("asked").get<int>());
  spec.gpus = value.at("gpus").get<std::int32_t>();
  spec.cpu_milli = value.at("cpu_milli").get<std::int64_t>();
  spec.host_memory_mib = value.at("host_memory_mib").get<std::int64_t>();
  spec.environment = variables_from_json(value.at("environment"));
  spec.command = texts_from_json(value.at("command"));
  spec.directory = text_from_json(value.at("directory"));
  spec.terms = terms_from_json(value.at("terms"));
  if (value.contains("time_limit_s")) {
    spec.time_limit = std::chrono::seconds{value["time_limit_s"].get<std::int64_t>()};
  }
  if (value.contains("pre_run_s")) {
    spec.pre_run = std::chrono::seconds{value["pre_run_s"].get<std::int64_t>()};
  }
  if (value.contains("after")) spec.after = JobId{text_from_json(value["after"])};
  return spec;
}

}  // namespace commensal::cluster::local
