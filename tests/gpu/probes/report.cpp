// SPDX-License-Identifier: Apache-2.0
// What a probe answers: figures with their spread, facts, and the JSON text of both.
#include "report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace probes {

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') {
      quoted += '\\';
      quoted += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(letter));
      quoted += escape.data();
    } else {
      quoted += letter;
    }
  }
  return quoted + '"';
}

std::string json_number(double number) {
  if (!std::isfinite(number)) return "null";
  std::array<char, 40> text{};
  // Six digits say more than any of these measurements can; counts up to 2^53 stay whole.
  const bool whole = number == std::floor(number) && std::abs(number) < 9.0e15;
  std::snprintf(text.data(), text.size(), whole ? "%.0f" : "%.6g", number);
  return text.data();
}

void JsonObject::raw(std::string_view key, std::string value) {
  members_.emplace_back(key, std::move(value));
}

std::string JsonObject::json() const {
  std::string text = "{";
  for (const auto& [key, value] : members_) {
    if (text.size() > 1) text += ", ";
    text += json_text(key) + ": " + value;
  }
  return text + "}";
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return std::nan("");
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * part;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

JsonObject spread(std::string_view unit, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  JsonObject object;
  object.text("unit", unit);
  object.number("n", static_cast<double>(values.size()));
  if (values.empty()) return object;
  object.number("min", values.front());
  object.number("p10", quantile(values, 0.1));
  object.number("median", quantile(values, 0.5));
  object.number("p90", quantile(values, 0.9));
  object.number("p99", quantile(values, 0.99));
  object.number("max", values.back());
  return object;
}

void Answer::figure(std::string_view name, std::string_view unit, std::vector<double> values) {
  figures_.raw(name, spread(unit, std::move(values)).json());
}

}  // namespace probes
