// SPDX-License-Identifier: Apache-2.0
// Messages to and from JSON. Absent or null is allowed for std::optional fields only.
#include "coordinator/wire/messages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>

#include "coordinator/wire/json_text.h"

namespace commensal::wire {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxIdLength = 63;  // must fit on the pages (kIdSize)
constexpr std::size_t kMaxValueShown = 80;

std::string printed(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxValueShown) text = text.substr(0, kMaxValueShown) + "...";
  return text;
}

[[noreturn]] void wrong(const std::string& field, std::string_view wanted, const json& value) {
  throw BadMessage("malformed",
                   "field '" + field + "' must be " + std::string{wanted} + ": " + printed(value));
}

// --- one field from JSON -------------------------------------------------------------------

void read(const json& value, const std::string& field, std::string& out) {
  if (!value.is_string()) wrong(field, "a string", value);
  out = value.get<std::string>();
}

void read(const json& value, const std::string& field, bool& out) {
  if (!value.is_boolean()) wrong(field, "true or false", value);
  out = value.get<bool>();
}

void read(const json& value, const std::string& field, double& out) {
  if (!value.is_number()) wrong(field, "a number", value);
  out = value.get<double>();
  if (!std::isfinite(out)) wrong(field, "a finite number", value);
}

template <typename Integer>
requires(std::is_integral_v<Integer> &&
         !std::is_same_v<Integer, bool>) void read(const json& value, const std::string& field,
                                                   Integer& out) {
  using Limits = std::numeric_limits<Integer>;
  bool fits = false;
  if (value.is_number_unsigned()) {
    fits = value.get<std::uint64_t>() <= static_cast<std::uint64_t>(Limits::max());
  } else if (value.is_number_integer()) {  // negative, or stored as signed
    const auto number = value.get<std::int64_t>();
    if constexpr (std::is_unsigned_v<Integer>) {
      fits = number >= 0;
    } else {
      fits = number >= std::int64_t{Limits::min()} && number <= std::int64_t{Limits::max()};
    }
  }
  if (!fits) {
    wrong(field, std::is_unsigned_v<Integer> ? "an integer that is not negative" : "an integer",
          value);
  }
  out = value.get<Integer>();
}

void read(const json& value, const std::string& field, Bytes& out) {
  std::uint64_t count = 0;
  read(value, field, count);
  out = Bytes{count};
}

void read(const json& value, const std::string& field, JobClass& out) {
  if (value == "guaranteed") {
    out = JobClass::kGuaranteed;
  } else if (value == "opportunistic") {
    out = JobClass::kOpportunistic;
  } else {
    wrong(field, "\"guaranteed\" or \"opportunistic\"", value);
  }
}

void read(const json& value, const std::string& field, json& out) {
  if (!value.is_object()) wrong(field, "an object", value);
  out = value;
}

/// A part of a message that has fields of its own.
template <typename T>
concept Record = std::is_same_v<T, MemoryRange> || std::is_same_v<T, ShareRange> ||
    std::is_same_v<T, UsedDevice>;
template <Record T>
void read(const json& value, const std::string& field, T& out);
template <Record T>
void read(const json& value, const std::string& field, std::vector<T>& out);

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// Visits the fields of a message as a reader: `field(name, member)`.
class Reader {
 public:
  Reader(const json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  template <typename T>
  void operator()(const char* name, T& member) const {
    const std::string field = prefix_ + name;
    const auto found = object_.find(name);
    const bool absent = found == object_.end() || found->is_null();
    if constexpr (IsOptional<T>::value) {
      if (absent) return;
      read(*found, field, member.emplace());
    } else {
      if (absent) throw BadMessage("malformed", "field '" + field + "' is missing");
      read(*found, field, member);
    }
  }

 private:
  const json& object_;
  std::string prefix_;
};

/// Visits the fields of a message as a writer.
class Writer {
 public:
  explicit Writer(json& object) : object_(object) {}

  template <typename T>
  void operator()(const char* name, T& member) const {
    if constexpr (IsOptional<std::remove_const_t<T>>::value) {
      if (member) (*this)(name, *member);
    } else {
      write(object_[name], member);
    }
  }

 private:
  template <typename T>
  static void write(json& out, const T& value) {
    out = value;
  }
  static void write(json& out, Bytes value) { out = value.count(); }
  static void write(json& out, const JobClass& value) { out = std::string{to_string(value)}; }
  template <Record T>
  static void write(json& out, const T& value);
  template <Record T>
  static void write(json& out, const std::vector<T>& values) {
    out = json::array();
    for (const T& value : values) write(out.emplace_back(), value);
  }

  json& object_;
};

// --- the fields of every message, once for both directions -----------------------------------

template <typename T, typename V>
concept Like = std::is_same_v<std::remove_const_t<T>, V>;

void fields(Like<MemoryRange> auto& m, const auto& field) {
  field("min_bytes", m.min);
  field("max_bytes", m.max);
}
void fields(Like<ShareRange> auto& m, const auto& field) {
  field("min", m.min);
  field("max", m.max);
}
void fields(Like<JobTerms> auto& m, const auto& field) {
  for_each_term([&](const auto& term) { field(term.name, m.*term.own); });
}
void fields(Like<TermsPatch> auto& m, const auto& field) {
  for_each_term([&](const auto& term) { field(term.name, m.*term.change); });
}
void fields(Like<UsedDevice> auto& m, const auto& field) {
  field("device", m.device);
  field("held_bytes", m.held_bytes);
  field("revision", m.revision);
  field("limit_bytes", m.limit_bytes);
}
void fields(Like<Register> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("name", m.name);
  field("tenant", m.tenant);
  field("job_class", m.job_class);
  fields(m.terms, field);
  field("pid", m.pid);
  field("start_ticks", m.start_ticks);
  field("role", m.role);
  field("rank", m.rank);
  field("world_size", m.world_size);
  field("gang", m.gang);
  field("epoch", m.epoch);
  field("devices", m.devices);
}
void fields(Like<Registered> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("coordinator", m.coordinator);
  field("coordinator_pid", m.coordinator_pid);
  field("capacity_bytes", m.capacity_bytes);
  field("limit_bytes", m.limit_bytes);
  field("share", m.share);
  field("law", m.law);
  field("job_class", m.job_class);
  field("revision", m.revision);
  field("reason", m.reason);
  field("device", m.device);
}
void fields(Like<Stats> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("stats", m.stats);
  field("final", m.final);
}
void fields(Like<Change> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("revision", m.revision);
  field("limit_bytes", m.limit_bytes);
  fields(m.terms, field);
  field("paused", m.paused);
  field("parked", m.parked);
  field("reason", m.reason);
  field("device", m.device);
  field("job_class", m.job_class);
}
void fields(Like<Answer> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("revision", m.revision);
  field("outcome", m.outcome);
  field("done_bytes", m.done_bytes);
  field("deferred_bytes", m.deferred_bytes);
  field("held_bytes", m.held_bytes);
  field("reason", m.reason);
  field("device", m.device);
  field("job_class", m.job_class);
}
void fields(Like<AskMemory> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("needed_bytes", m.needed_bytes);
  field("held_bytes", m.held_bytes);
  field("device", m.device);
}
void fields(Like<StatusRequest> auto& m, const auto& field) { field("job", m.job); }
void fields(Like<StatusReply> auto& m, const auto& field) { field("status", m.status); }
void fields(Like<SetRequest> auto& m, const auto& field) {
  field("job", m.job);
  fields(m.terms, field);
  field("paused", m.paused);
  field("job_class", m.job_class);
}
void fields(Like<SetReply> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("revision", m.revision);
  field("outcome", m.outcome);
  field("reason", m.reason);
}
void fields(Like<MapRequest> auto& m, const auto& field) {
  field("job", m.job);
  field("pid", m.pid);
  field("ticket", m.ticket);
}
void fields(Like<MapReply> auto& m, const auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("ticket", m.ticket);
  field("map", m.map);
  field("reason", m.reason);
}
void fields(Like<ExplainRequest> auto& m, const auto& field) {
  field("job", m.job);
  field("seconds", m.seconds);
  field("series", m.series);
}
void fields(Like<ExplainReply> auto& m, const auto& field) { field("explanation", m.explanation); }
void fields(Like<Error> auto& m, const auto& field) {
  field("code", m.code);
  field("what", m.what);
  field("device", m.device);
}

template <Record T>
void read(const json& value, const std::string& field, T& out) {
  if (!value.is_object()) wrong(field, "an object", value);
  fields(out, Reader{value, field + "."});
}
template <Record T>
void read(const json& value, const std::string& field, std::vector<T>& out) {
  if (!value.is_array()) wrong(field, "a list", value);
  out.clear();
  for (const json& each : value) {
    const std::string name = field + "[" + std::to_string(out.size()) + "]";
    read(each, name, out.emplace_back());
  }
}
template <Record T>
void Writer::write(json& out, const T& value) {
  out = json::object();
  fields(value, Writer{out});
}

// The position is that of the type in `Message`.
constexpr std::string_view kTypeNames[] = {
    "register",   "registered",     "stats",        "change",          "answer",
    "ask_memory", "status_request", "status_reply", "set_request",     "set_reply",
    "error",      "map_request",    "map_reply",    "explain_request", "explain_reply"};
static_assert(std::size(kTypeNames) == std::variant_size_v<Message>);

template <std::size_t Index = 0>
Message read_as(std::string_view type, const json& object) {
  if constexpr (Index == std::variant_size_v<Message>) {
    throw BadMessage("unknown_type", "field 'type' names no message: " + printed(object["type"]));
  } else {
    if (type != kTypeNames[Index]) return read_as<Index + 1>(type, object);
    std::variant_alternative_t<Index, Message> message;
    fields(message, Reader{object, ""});
    return message;
  }
}

void check_revision(Revision revision) {
  if (revision <= kMaxRevision) return;
  throw BadMessage("malformed", "field 'revision' is too large: " + std::to_string(revision));
}

/// Refuses no device, too many, ones that are no GPUs beside the first, and one that is named
/// twice.
void check_devices(const std::vector<UsedDevice>& devices) {
  if (devices.empty() || devices.size() > kMaxDevices) {
    throw BadMessage("malformed", "field 'devices' must name 1 to " + std::to_string(kMaxDevices) +
                                      " devices: " + std::to_string(devices.size()));
  }
  std::set<std::string> named;
  for (const UsedDevice& each : devices) {
    const bool is_gpu = !each.device.empty() && each.device != "host";
    if (!named.empty() && !is_gpu) {
      throw BadMessage("malformed", "field 'devices' must name GPUs beside the first device: " +
                                        printed(each.device));
    }
    if (!named.insert(each.device).second) {
      throw BadMessage("malformed",
                       "field 'devices' names a device twice: " + printed(each.device));
    }
    check_revision(each.revision);
  }
}

std::size_t depth_of(const json& value) {
  std::size_t deepest = 0;
  if (!value.is_structured()) return deepest;
  for (const json& element : value) deepest = std::max(deepest, depth_of(element));
  return deepest + 1;
}

/// What a job says of itself is told to others within a status, which must be readable to them.
void check_depth(const json& stats) {
  constexpr std::size_t kMost = 16;
  if (depth_of(stats) > kMost) {
    throw BadMessage("malformed", "field 'stats' nests deeper than " + std::to_string(kMost));
  }
}

/// Refuses ids that would not fit on a page, and revisions that leave no newer one.
void check_values(const Message& message) {
  std::visit(
      [](const auto& m) {
        if constexpr (requires { m.job_id; }) {
          if (m.job_id.size() > kMaxIdLength || m.job_id.find('\0') != std::string::npos) {
            throw BadMessage("malformed", "field 'job_id' must have at most 63 bytes, none zero: " +
                                              printed(json(m.job_id)));
          }
        }
        if constexpr (requires { m.revision; }) {
          check_revision(m.revision);
        }
        using T = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<T, Register>) {
          if (m.job_id.empty()) {
            throw BadMessage("malformed", "field 'job_id' must not be empty: \"\"");
          }
          if (m.pid <= 0 || m.pid > std::numeric_limits<std::int32_t>::max()) {
            throw BadMessage("malformed",
                             "field 'pid' must be a process id: " + std::to_string(m.pid));
          }
          check_devices(m.devices);
        }
        if constexpr (std::is_same_v<T, Stats>) check_depth(m.stats);
      },
      message);
}

json parse(std::string_view frame) {
  // A map of memory has many short ones.
  constexpr JsonBounds kFrame{.bytes = kMaxFrameBytes, .values = std::size_t{1} << 18U};
  try {
    return parse_json(frame, kFrame);
  } catch (const BadJson& problem) {
    throw BadMessage("malformed", std::string{"frame "} + problem.what());
  }
}

}  // namespace

std::string encode(const Message& message) {
  json object = json::object();
  object["v"] = kProtocolVersion;
  object["type"] = kTypeNames[message.index()];
  std::visit([&](const auto& m) { fields(m, Writer{object}); }, message);
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Message decode(std::string_view frame) {
  if (frame.size() > kMaxFrameBytes) {
    throw BadMessage("oversized", "frame is too large: " + std::to_string(frame.size()) + " > " +
                                      std::to_string(kMaxFrameBytes) + " bytes");
  }
  const json object = parse(frame);
  if (!object.is_object()) wrong("frame", "a JSON object", object);
  std::int64_t version = 0;
  std::string type;
  const Reader field{object, ""};
  field("v", version);
  if (version != kProtocolVersion) {
    throw BadMessage("version", "field 'v' is " + std::to_string(version) +
                                    ", this side speaks version " +
                                    std::to_string(kProtocolVersion));
  }
  field("type", type);
  Message message = read_as(type, object);
  check_values(message);
  return message;
}

}  // namespace commensal::wire
