// SPDX-License-Identifier: Apache-2.0
// The fields of a job, once for both directions.
#include "coordinator/cluster/job_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

namespace commensal::cluster {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxValueShown = 80;

std::string printed(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxValueShown) text = text.substr(0, kMaxValueShown) + "...";
  return text;
}

[[noreturn]] void wrong(const std::string& field, std::string_view wanted, const json& value) {
  throw std::invalid_argument("field '" + field + "' must be " + std::string{wanted} + ": " +
                              printed(value));
}

// --- values to JSON ----------------------------------------------------------------------------

/// A structure with fields of its own.
template <typename T>
concept Record = std::is_same_v<T, MemoryRange> || std::is_same_v<T, ShareRange> ||
    std::is_same_v<T, wire::TermsPatch> || std::is_same_v<T, FlatRule> ||
    std::is_same_v<T, DevicePlace> || std::is_same_v<T, JobSpec> || std::is_same_v<T, JobRecord>;

template <Record T>
json written(const T& record, const std::string& field);
template <Record T>
json object_of(const T& record, const std::string& prefix);

json written(const std::string& text, const std::string& field) {
  json value = text;
  try {
    (void)value.dump();
  } catch (const json::type_error&) {
    wrong(field, "UTF-8", value);
  }
  return value;
}

json written(JobState state, const std::string&) { return std::string{to_string(state)}; }
json written(JobClass job_class, const std::string&) { return std::string{to_string(job_class)}; }
json written(policies::AskedClass asked, const std::string&) {
  return std::string{to_string(asked)};
}
json written(Bytes bytes, const std::string&) { return bytes.count(); }
json written(WallTime time, const std::string&) { return time.time_since_epoch().count(); }
json written(const JobId& id, const std::string& field) { return written(id.str(), field); }
json written(std::chrono::seconds time, const std::string&) {
  return std::chrono::milliseconds(time).count();
}

template <typename Number>
requires(std::is_arithmetic_v<Number>) json written(Number number, const std::string&) {
  return number;
}

json written(const std::map<std::string, std::string>& texts, const std::string& field) {
  json object = json::object();
  for (const auto& [key, text] : texts) {
    (void)written(key, field);
    object[key] = written(text, fmt::format("{}.{}", field, key));
  }
  return object;
}

template <typename T>
json written(const std::vector<T>& values, const std::string& field) {
  json list = json::array();
  for (std::size_t i = 0; i < values.size(); ++i) {
    list.push_back(written(values[i], field + "[" + std::to_string(i) + "]"));
  }
  return list;
}

template <Record T>
json written(const T& record, const std::string& field) {
  return object_of(record, field + ".");
}

// --- values from JSON --------------------------------------------------------------------------

template <Record T>
void read(const json& value, const std::string& field, T& out);
template <Record T>
void fill(const json& object, const std::string& prefix, T& out);

void read(const json& value, const std::string& field, std::string& out) {
  if (!value.is_string()) wrong(field, "a text", value);
  out = value.get<std::string>();
}

void read(const json& value, const std::string& field, JobId& out) {
  std::string id;
  read(value, field, id);
  if (id.empty()) wrong(field, "an id", value);
  out = JobId{std::move(id)};
}

void read(const json& value, const std::string& field, bool& out) {
  if (!value.is_boolean()) wrong(field, "true or false", value);
  out = value.get<bool>();
}

void read(const json& value, const std::string& field, double& out) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) wrong(field, "a number", value);
  out = value.get<double>();
}

template <typename Integer>
requires(std::is_integral_v<Integer>) void read(const json& value, const std::string& field,
                                                Integer& out) {
  const bool fits =
      value.is_number_unsigned()
          ? std::in_range<Integer>(value.get<std::uint64_t>())
          : value.is_number_integer() && std::in_range<Integer>(value.get<std::int64_t>());
  if (!fits) {
    wrong(field,
          "a whole number from " + std::to_string(std::numeric_limits<Integer>::min()) + " to " +
              std::to_string(std::numeric_limits<Integer>::max()),
          value);
  }
  out = value.get<Integer>();
}

void read(const json& value, const std::string& field, Bytes& out) {
  std::uint64_t count = 0;
  read(value, field, count);
  out = Bytes{count};
}

void read(const json& value, const std::string& field, WallTime& out) {
  std::int64_t count = 0;
  read(value, field, count);
  out = WallTime{std::chrono::milliseconds{count}};
}

void read(const json& value, const std::string& field, std::chrono::seconds& out) {
  std::int64_t count = 0;
  read(value, field, count);
  if (count < 0 || count % 1000 != 0) wrong(field, "whole seconds in milliseconds", value);
  out = std::chrono::seconds{count / 1000};
}

void read(const json& value, const std::string& field, JobState& out) {
  const auto state = job_state(value.is_string() ? value.get<std::string>() : "");
  if (!state) wrong(field, "a state of a job", value);
  out = *state;
}

void read(const json& value, const std::string& field, JobClass& out) {
  if (value != "guaranteed" && value != "opportunistic") {
    wrong(field, "\"guaranteed\" or \"opportunistic\"", value);
  }
  out = value == "guaranteed" ? JobClass::kGuaranteed : JobClass::kOpportunistic;
}

void read(const json& value, const std::string& field, policies::AskedClass& out) {
  const auto asked = asked_class(value.is_string() ? value.get<std::string>() : "");
  if (!asked) wrong(field, "\"guaranteed\", \"opportunistic\" or \"auto\"", value);
  out = *asked;
}

void read(const json& value, const std::string& field, std::map<std::string, std::string>& out) {
  if (!value.is_object()) wrong(field, "an object of texts", value);
  for (const auto& [key, text] : value.items()) {
    read(text, fmt::format("{}.{}", field, key), out[key]);
  }
}

template <typename T>
void read(const json& value, const std::string& field, std::vector<T>& out) {
  if (!value.is_array()) wrong(field, "a list", value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    read(value[i], field + "[" + std::to_string(i) + "]", out.emplace_back());
  }
}

template <Record T>
void read(const json& value, const std::string& field, T& out) {
  if (!value.is_object()) wrong(field, "an object", value);
  fill(value, field + ".", out);
}

// --- the fields --------------------------------------------------------------------------------

template <typename T, typename V>
concept Like = std::is_same_v<std::remove_const_t<T>, V>;

void fields(Like<MemoryRange> auto& range, auto& field) {
  field("min_bytes", range.min);
  field("max_bytes", range.max);
}

void fields(Like<ShareRange> auto& range, auto& field) {
  field("min", range.min);
  std::optional<double> max = range.max;  // who asks for no maximum need not say so
  field("max", max);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(range)>>) {
    range.max = max.value_or(1.0);
  }
}

void fields(Like<wire::TermsPatch> auto& terms, auto& field) {
  wire::for_each_term([&](const auto& term) { field(term.name, terms.*term.change); });
}

void fields(Like<FlatRule> auto& rule, auto& field) {
  field("window_ms", rule.window);
  field("change", rule.change);
}

void fields(Like<DevicePlace> auto& place, auto& field) {
  field("node", place.node);
  field("device", place.device);
}

void fields(Like<JobSpec> auto& spec, auto& field) {
  field("name", spec.name);
  field("tenant", spec.tenant);
  field("class", spec.asked);
  field("gpus", spec.gpus);
  field("cpu_milli", spec.cpu_milli);
  field("host_memory_mib", spec.host_memory_mib);
  fields(spec.terms, field);
  field("time_limit_ms", spec.time_limit);
  field("end_when_flat", spec.end_when_flat);
  field("park_when_flat", spec.park_when_flat);
  field("pre_run_ms", spec.pre_run);
  field("environment", spec.environment);
  field("after", spec.after);
  field("command", spec.command);
  field("directory", spec.directory);
}

void fields(Like<JobRecord> auto& record, auto& field) {
  field("id", record.id);
  field("spec", record.spec);
  field("state", record.state);
  field("reason", record.reason);
  field("attempt", record.attempt);
  field("retries", record.retries);
  field("class", record.job_class);
  field("placement", record.placement);
  field("cancel_asked", record.cancel_asked);
  field("finish_asked", record.finish_asked);
  field("park_asked", record.park_asked);
  field("unheld", record.unheld);
  field("lowering", record.lowering);
  field("exit_code", record.exit_code);
  field("submitted_ms", record.submitted);
  field("changed_ms", record.changed);
}

// --- what must hold between fields -------------------------------------------------------------

template <typename T>
void not_negative(const std::string& field, T value) {
  if (value < 0) wrong(field, "at least 0", value);
}

template <typename T>
void check(const T&, const std::string&) {}

void check(const MemoryRange& range, const std::string& prefix) {
  if (range.max && *range.max < range.min) {
    wrong(prefix + "max_bytes", "at least min_bytes", range.max->count());
  }
}

void check(const ShareRange& range, const std::string& prefix) {
  if (range.min < 0 || range.min > 1) wrong(prefix + "min", "from 0 to 1", range.min);
  if (range.max > 1) wrong(prefix + "max", "from 0 to 1", range.max);
  if (range.max < range.min) wrong(prefix + "max", "at least min", range.max);
}

void check(const FlatRule& rule, const std::string& prefix) {
  if (rule.window < FlatRule::kShortest) {
    wrong(prefix + "window_ms", "at least 10 seconds",
          std::chrono::milliseconds{rule.window}.count());
  }
  if (!(rule.change > 0) || rule.change > FlatRule::kMostChange) {
    wrong(prefix + "change", "above 0 and at most 0.5", rule.change);
  }
}

void check(const DevicePlace& place, const std::string& prefix) {
  // Of an older store there may be a job without devices: it is told why it cannot start.
  if (place.device < -1) wrong(prefix + "device", "at least -1", place.device);
}

void check(const JobSpec& spec, const std::string& prefix) {
  const std::string wrong_term = wire::problem_with(spec.terms);
  if (!wrong_term.empty()) throw std::invalid_argument(wrong_term);
  not_negative(prefix + "gpus", spec.gpus);
  not_negative(prefix + "cpu_milli", spec.cpu_milli);
  not_negative(prefix + "host_memory_mib", spec.host_memory_mib);
  if (spec.end_when_flat && spec.park_when_flat) {
    wrong(prefix + "park_when_flat", "absent where end_when_flat is given",
          std::chrono::milliseconds{spec.park_when_flat->window}.count());
  }
}

// --- visitors ----------------------------------------------------------------------------------

class Writer {
 public:
  Writer(json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  template <typename T>
  void operator()(const char* name, const T& member) {
    object_[name] = written(member, prefix_ + name);
  }
  template <typename T>
  void operator()(const char* name, const std::optional<T>& member) {
    if (member) (*this)(name, *member);
  }

 private:
  json& object_;
  std::string prefix_;
};

class Reader {
 public:
  Reader(const json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  template <typename T>
  void operator()(const char* name, T& member) {
    const json* value = find(name);
    if (value == nullptr) throw std::invalid_argument("field '" + prefix_ + name + "' is missing");
    read(*value, prefix_ + name, member);
  }
  template <typename T>
  void operator()(const char* name, std::optional<T>& member) {
    if (const json* value = find(name)) read(*value, prefix_ + name, member.emplace());
  }

  /// To be called after all fields that are known.
  void refuse_others() const {
    if (present_ == object_.size()) return;
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(known_, key) == known_.end()) {
        throw std::invalid_argument("field '" + prefix_ + key +
                                    "' is not known: " + printed(value));
      }
    }
  }

 private:
  const json* find(const char* name) {
    known_.emplace_back(name);
    const auto found = object_.find(name);
    if (found == object_.end()) return nullptr;
    ++present_;
    return found->is_null() ? nullptr : &*found;
  }

  const json& object_;
  std::string prefix_;
  std::vector<std::string_view> known_;
  std::size_t present_ = 0;
};

template <Record T>
json object_of(const T& value, const std::string& prefix) {
  json object = json::object();
  Writer writer{object, prefix};
  fields(value, writer);
  return object;
}

template <Record T>
void fill(const json& object, const std::string& prefix, T& out) {
  Reader reader{object, prefix};
  fields(out, reader);
  reader.refuse_others();
  check(out, prefix);
}

template <Record T>
T whole(const json& object, std::string_view what) {
  if (!object.is_object()) {
    throw std::invalid_argument(std::string{what} + " must be an object: " + printed(object));
  }
  T value;
  fill(object, "", value);
  return value;
}

}  // namespace

json to_json(const JobSpec& spec) { return object_of(spec, ""); }
json to_json(const wire::TermsPatch& terms) { return object_of(terms, ""); }
json to_json(const JobRecord& record) { return object_of(record, ""); }
json to_json(const std::vector<DevicePlace>& placement) { return written(placement, "placement"); }

JobSpec spec_from_json(const json& json) { return whole<JobSpec>(json, "what a job asks for"); }
wire::TermsPatch terms_from_json(const json& json) {
  return whole<wire::TermsPatch>(json, "the terms of a job");
}
JobRecord record_from_json(const json& json) { return whole<JobRecord>(json, "a job"); }

std::vector<DevicePlace> placement_from_json(const json& json) {
  std::vector<DevicePlace> placement;
  read(json, "placement", placement);
  return placement;
}

}  // namespace commensal::cluster
