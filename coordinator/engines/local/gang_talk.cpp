// SPDX-License-Identifier: Apache-2.0
// Reports and orders as JSON.
#include "coordinator/engines/local/gang_talk.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "coordinator/wire/json_text.h"

namespace commensal::cluster::local {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
}

json to_json(const PartReady& ready) {
  return json{{"ready", {{"group", ready.group}, {"port", ready.port}}}};
}

json to_json(const PartEnded& ended, const std::string& reason) {
  json value{{"group", ended.group},
             {"exit_code", nullptr},
             {"taken_back", ended.outcome.kind == EngineEvent::Kind::kTakenBack},
             {"vanished", ended.outcome.kind == EngineEvent::Kind::kVanished},
             {"reason", reason}};
  if (ended.outcome.exit_code) value["exit_code"] = *ended.outcome.exit_code;
  return json{{"ended", std::move(value)}};
}

PartEnded ended_from(const json& value) {
  PartEnded ended{value.at("group").get<std::size_t>(), {}};
  ended.outcome.reason = value.at("reason").get<std::string>();
  if (!value.at("exit_code").is_null()) ended.outcome.exit_code = value["exit_code"].get<int>();
  if (value.at("taken_back").get<bool>()) ended.outcome.kind = EngineEvent::Kind::kTakenBack;
  if (value.at("vanished").get<bool>()) ended.outcome.kind = EngineEvent::Kind::kVanished;
  return ended;
}

/// Parses a line and hands it on; nothing if it is no JSON, or not of the shape that is asked for.
template <typename Word, typename Read>
std::optional<Word> word_of(std::string_view line, Read read) {
  try {
    const auto value = wire::try_parse_json(line);
    return value ? read(*value) : std::nullopt;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string line_of(const Report& report) {
  if (const auto* ready = std::get_if<PartReady>(&report)) return text_of(to_json(*ready));
  const auto& ended = std::get<PartEnded>(report);
  std::string reason = ended.outcome.reason;
  std::string line = text_of(to_json(ended, reason));
  while (line.size() > kLongestLine) {
    reason.resize(reason.size() * 3 / 4);
    line = text_of(to_json(ended, reason + "..."));
  }
  return line;
}

std::string line_of(const Order& order) {
  if (const auto* start = std::get_if<StartRanks>(&order)) {
    return text_of(json{{"start", {{"port", start->port}}}});
  }
  return text_of(json{{"stop", {{"grace_ms", std::get<StopRanks>(order).grace.count()}}}});
}

std::optional<Report> report_of(std::string_view line) {
  return word_of<Report>(line, [](const json& value) -> std::optional<Report> {
    if (!value.is_object()) return std::nullopt;
    if (value.contains("ready")) {
      const json& ready = value["ready"];
      return PartReady{ready.at("group").get<std::size_t>(), ready.at("port").get<int>()};
    }
    if (value.contains("ended")) return ended_from(value["ended"]);
    return std::nullopt;
  });
}

std::optional<Order> order_of(std::string_view line) {
  return word_of<Order>(line, [](const json& value) -> std::optional<Order> {
    if (!value.is_object()) return std::nullopt;
    if (value.contains("start")) return StartRanks{value["start"].at("port").get<int>()};
    if (value.contains("stop")) {
      return StopRanks{milliseconds{value["stop"].at("grace_ms").get<std::int64_t>()}};
    }
    return std::nullopt;
  });
}

std::vector<std::string> LineReader::add(std::string_view piece) {
  std::vector<std::string> lines;
  for (std::size_t end = piece.find('\n'); end != std::string_view::npos; end = piece.find('\n')) {
    lines.push_back(std::exchange(begun_, {}).append(piece.substr(0, end)));
    piece.remove_prefix(end + 1);
  }
  // What is longer than any line of ours is none of ours.
  if (begun_.size() <= kLongestLine) begun_ += piece.substr(0, kLongestLine + 1);
  return lines;
}

bool write_line(int fd, std::string_view line) {
  while (!line.empty()) {
    const ssize_t count = ::write(fd, line.data(), line.size());
    if (count >= 0) {
      line.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EPIPE) {
      return false;
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "cannot write to a pipe");
    }
  }
  return true;
}

}  // namespace commensal::cluster::local
