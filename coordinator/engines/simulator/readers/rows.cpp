// SPDX-License-Identifier: Apache-2.0
// Values of a CSV file, exactly as they are written.
#include "coordinator/engines/simulator/readers/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace commensal::simulator {

double Field::number() const {
  double value = 0;
  const char* const begin = text_.data();  // NOLINT(bugprone-suspicious-stringview-data-usage)
  const char* const end = begin + text_.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value)) fail("no number");
  return value;
}

double Field::positive_or_zero() const {
  const double value = number();
  if (value < 0) fail("negative");
  return value;
}

std::int32_t Field::count(std::int32_t least) const {
  std::int32_t value = 0;
  const char* const begin = text_.data();  // NOLINT(bugprone-suspicious-stringview-data-usage)
  const char* const end = begin + text_.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc{} || stop != end) fail("no whole number");
  if (value < least) fail(fmt::format("less than {}", least));
  return value;
}

void Field::fail(std::string_view what) const {
  throw BadTrace(
      fmt::format("{}, line {}, column {}: {}: \"{}\"", file_, line_, column_, what, text_));
}

std::vector<std::string> between_bars(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('|'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

BadTrace bad_row(std::string_view file, std::uint64_t line, const io::error::base& error) {
  if (dynamic_cast<const io::error::too_few_columns*>(&error) != nullptr) {
    return BadTrace(fmt::format("{}, line {}: fewer values than columns", file, line));
  }
  if (dynamic_cast<const io::error::too_many_columns*>(&error) != nullptr) {
    return BadTrace(fmt::format("{}, line {}: more values than columns", file, line));
  }
  return BadTrace(fmt::format("{}, line {}: {}", file, line, error.what()));
}

}  // namespace commensal::simulator
