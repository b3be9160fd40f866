// SPDX-License-Identifier: Apache-2.0
// Messages to and from JSON. Absent or null is allowed for std::optional fields only.
#include "coordinator/wire/messages.h"

#include <algorithm>
#include <limits>
#include <set>
#include <type_traits>

#include "coordinator/wire/json_fields.h"
#include "coordinator/wire/json_text.h"
#include "coordinator/wire/message_fields.h"

namespace commensal::wire {

namespace {

using nlohmann::json;

/// What every frame begins with.
struct Header {
  std::int64_t v = 0;
  std::string type;
};
void fields(SameAs<Header> auto& header, auto& field) {
  field("v", header.v);
  field("type", header.type);
}

constexpr std::size_t kMaxIdLength = 63;  // must fit on the pages (kIdSize)

// The position is that of the type in `Message`.
constexpr std::string_view kTypeNames[] = {
    "register",   "registered",     "stats",        "change",          "answer",
    "ask_memory", "status_request", "status_reply", "set_request",     "set_reply",
    "error",      "map_request",    "map_reply",    "explain_request", "explain_reply"};
static_assert(std::size(kTypeNames) == std::variant_size_v<Message>);

template <std::size_t Index = 0>
Message read_as(std::string_view type, const json& object) {
  if constexpr (Index == std::variant_size_v<Message>) {
    throw BadMessage("unknown_type", "field 'type' names no message: " + shown(object["type"]));
  } else {
    if (type != kTypeNames[Index]) return read_as<Index + 1>(type, object);
    std::variant_alternative_t<Index, Message> message;
    read_fields(object, "frame", message);
    return message;
  }
}

/// Refuses ones that are no GPUs beside the first, and one that is named twice.
void check_devices(const std::vector<UsedDevice>& devices) {
  std::set<std::string> named;
  for (const UsedDevice& each : devices) {
    const bool is_gpu = !each.device.empty() && each.device != "host";
    if (!named.empty() && !is_gpu) {
      throw BadMessage("malformed", "field 'devices' must name GPUs beside the first device: " +
                                        shown(each.device));
    }
    if (!named.insert(each.device).second) {
      throw BadMessage("malformed", "field 'devices' names a device twice: " + shown(each.device));
    }
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

/// Refuses ids that would not fit on a page, and what no rule of a field says.
void check_values(const Message& message) {
  std::visit(
      [](const auto& m) {
        if constexpr (requires { m.job_id; }) {
          if (m.job_id.size() > kMaxIdLength || m.job_id.find('\0') != std::string::npos) {
            throw BadMessage("malformed", "field 'job_id' must have at most 63 bytes, none zero: " +
                                              shown(json(m.job_id)));
          }
        }
        using T = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<T, Register>) {
          if (m.job_id.empty()) {
            throw BadMessage("malformed", "field 'job_id' must not be empty: \"\"");
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
  json object = std::visit([](const auto& m) { return write_fields(m); }, message);
  object["v"] = kProtocolVersion;
  object["type"] = kTypeNames[message.index()];
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Message decode(std::string_view frame) {
  if (frame.size() > kMaxFrameBytes) {
    throw BadMessage("oversized", "frame is too large: " + std::to_string(frame.size()) + " > " +
                                      std::to_string(kMaxFrameBytes) + " bytes");
  }
  const json object = parse(frame);
  try {
    Header header;
    read_fields(object, "frame", header);
    if (header.v != kProtocolVersion) {
      throw BadMessage("version", "field 'v' is " + std::to_string(header.v) +
                                      ", this side speaks version " +
                                      std::to_string(kProtocolVersion));
    }
    Message message = read_as(header.type, object);
    check_values(message);
    return message;
  } catch (const BadField& problem) {
    throw BadMessage("malformed", problem.what());
  }
}

}  // namespace commensal::wire
