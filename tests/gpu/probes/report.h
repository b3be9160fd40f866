// SPDX-License-Identifier: Apache-2.0
// What a probe answers: figures with their spread, facts, and the JSON text of both.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace probes {

/// Quotes a text for JSON.
std::string json_text(std::string_view text);

/// Writes a number so that it reads back as the same; null for what JSON cannot hold.
std::string json_number(double number);

/// A JSON object in the order in which its members were added.
class JsonObject {
 public:
  void text(std::string_view key, std::string_view value) { raw(key, json_text(value)); }
  void number(std::string_view key, double value) { raw(key, json_number(value)); }
  void boolean(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }
  /// Adds a member whose value is JSON already.
  void raw(std::string_view key, std::string value);
  [[nodiscard]] bool empty() const noexcept { return members_.empty(); }
  [[nodiscard]] std::string json() const;

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

/// The value at `share` (0..1) of the way through sorted values, between neighbours in proportion.
double quantile(const std::vector<double>& sorted, double share);

double median_of(std::vector<double> values);

/// {"unit", "n", "min", "p10", "median", "p90", "p99", "max"} of values; n is 0 for none.
JsonObject spread(std::string_view unit, std::vector<double> values);

/// What one probe has found.
class Answer {
 public:
  /// @param name  with its unit at the end where it is no plain count, as in "map_2_mib_us".
  void figure(std::string_view name, std::string_view unit, std::vector<double> values);
  void fact(std::string_view name, std::string_view value) { facts_.text(name, value); }
  void fact(std::string_view name, const char* value) { facts_.text(name, value); }
  void fact(std::string_view name, std::same_as<bool> auto value) { facts_.boolean(name, value); }
  void fact(std::string_view name, double value) { facts_.number(name, value); }

  [[nodiscard]] const JsonObject& figures() const noexcept { return figures_; }
  [[nodiscard]] const JsonObject& facts() const noexcept { return facts_; }

 private:
  JsonObject figures_;
  JsonObject facts_;
};

}  // namespace probes
