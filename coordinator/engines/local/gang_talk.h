// SPDX-License-Identifier: Apache-2.0
// What the keepers of a gang on several nodes say to each other: lines of JSON over pipes.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {

/// Of a node's keeper: its ranks can be started.
struct PartReady {
  std::size_t group = 0;  ///< number of its node in the placement
  int port = 0;           ///< where the ranks may meet on that node; 0: not known
  bool operator==(const PartReady&) const = default;
};
/// Of a node's keeper, its last word: none of its processes is left.
struct PartEnded {
  std::size_t group = 0;
  Outcome outcome;
  bool operator==(const PartEnded&) const = default;
};
void fields(SameAs<PartReady> auto& ready, auto& field) {
  field("group", ready.group);
  field("port", ready.port);
}
void fields(SameAs<PartEnded> auto& ended, auto& field) {
  field("group", ended.group);
  fields(ended.outcome, field);
}
using Report = std::variant<PartReady, PartEnded>;

/// To all: start your ranks.
struct StartRanks {
  int port = 0;  ///< where they meet, on the first rank's node
  bool operator==(const StartRanks&) const = default;
};
/// To all: end your ranks, started or not. A later one may leave less time.
struct StopRanks {
  std::chrono::milliseconds grace{};
  bool operator==(const StopRanks&) const = default;
};
void fields(SameAs<StartRanks> auto& start, auto& field) { field("port", start.port); }
void fields(SameAs<StopRanks> auto& stop, auto& field) { field("grace_ms", stop.grace); }
using Order = std::variant<StartRanks, StopRanks>;

/// No line is longer: what launchers of programs carry in one piece.
inline constexpr std::size_t kLongestLine = 1000;

/// Return the line, with its end. A reason that is too long is cut.
[[nodiscard]] std::string line_of(const Report& report);
[[nodiscard]] std::string line_of(const Order& order);
/// Read a line; nothing for one that is none of ours: launchers print, too.
[[nodiscard]] std::optional<Report> report_of(std::string_view line);
[[nodiscard]] std::optional<Order> order_of(std::string_view line);

/// Makes lines of what arrives in pieces.
class LineReader {
 public:
  /// Returns the lines that are whole with this piece, without their ends.
  [[nodiscard]] std::vector<std::string> add(std::string_view piece);

 private:
  std::string begun_;
};

/// Writes all of it. @return false if nobody reads any more. @throws std::system_error.
[[nodiscard]] bool write_line(int fd, std::string_view line);

}  // namespace commensal::cluster::local
