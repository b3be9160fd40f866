// SPDX-License-Identifier: Apache-2.0
// Reports and orders as JSON.
#include "coordinator/engines/local/gang_talk.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "coordinator/wire/json_fields.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster::local {
namespace {

using nlohmann::json;

/// A word on its way: an object with one field, which says what it is.
struct ReportLine {
  std::optional<PartReady> ready;
  std::optional<PartEnded> ended;
};
void fields(SameAs<ReportLine> auto& line, auto& field) {
  field("ready", line.ready);
  field("ended", line.ended);
}
struct OrderLine {
  std::optional<StartRanks> start;
  std::optional<StopRanks> stop;
};
void fields(SameAs<OrderLine> auto& line, auto& field) {
  field("start", line.start);
  field("stop", line.stop);
}

template <typename Line>
std::string written_line(const Line& line) {
  return wire::write_fields(line).dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
}

/// Reads a line; one without a word if it is no JSON, or not of that shape.
template <typename Line>
Line line_in(std::string_view text) {
  Line line;
  try {
    wire::read_fields(wire::try_parse_json(text).value_or(nullptr), "a line", line);
  } catch (const wire::BadField&) {
    return {};
  }
  return line;
}

}  // namespace

std::string line_of(const Report& report) {
  if (const auto* ready = std::get_if<PartReady>(&report)) {
    return written_line(ReportLine{*ready, std::nullopt});
  }
  PartEnded ended = std::get<PartEnded>(report);
  std::string reason = ended.outcome.reason;
  std::string line = written_line(ReportLine{std::nullopt, ended});
  while (line.size() > kLongestLine) {
    reason.resize(reason.size() * 3 / 4);
    ended.outcome.reason = reason + "...";
    line = written_line(ReportLine{std::nullopt, ended});
  }
  return line;
}

std::string line_of(const Order& order) {
  if (const auto* start = std::get_if<StartRanks>(&order)) {
    return written_line(OrderLine{*start, std::nullopt});
  }
  return written_line(OrderLine{std::nullopt, std::get<StopRanks>(order)});
}

std::optional<Report> report_of(std::string_view text) {
  auto line = line_in<ReportLine>(text);
  if (line.ready) return *line.ready;
  if (line.ended) return *std::move(line.ended);
  return std::nullopt;
}

std::optional<Order> order_of(std::string_view text) {
  const auto line = line_in<OrderLine>(text);
  if (line.start) return *line.start;
  if (line.stop) return *line.stop;
  return std::nullopt;
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
