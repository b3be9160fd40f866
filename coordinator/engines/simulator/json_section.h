// SPDX-License-Identifier: Apache-2.0
// Objects of a JSON file whose keys and values are checked: what is wrong is named by file, place,
// key and value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace commensal::simulator {

/// A file of nodes or of a state that cannot be used.
class BadCluster : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads a whole file.
/// @throws BadCluster if it cannot be opened or is no JSON.
[[nodiscard]] nlohmann::json parse_json(const std::string& file);

/// An object of a file, and how it is called in messages. Every call throws BadCluster for a value
/// that does not fit. Refers to the object: it must outlive this.
class Section {
 public:
  /// @param keys  those that there may be; empty: any.
  Section(std::string file, std::string where, const nlohmann::json& object,
          const std::vector<std::string_view>& keys);

  [[nodiscard]] bool has(std::string_view key) const;
  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t fallback, std::int64_t least,
                                   std::int64_t most) const;
  [[nodiscard]] double number(std::string_view key, double fallback, double least,
                              double most) const;
  /// A text that is not empty.
  [[nodiscard]] std::string text(std::string_view key, std::string_view fallback) const;
  /// A text that has to be there.
  [[nodiscard]] std::string text(std::string_view key) const;
  /// One of `choices`.
  [[nodiscard]] std::string choice(std::string_view key, std::string_view fallback,
                                   const std::vector<std::string>& choices) const;
  /// A list; empty if there is none.
  [[nodiscard]] const nlohmann::json& list(std::string_view key) const;
  /// What stands there; null if nothing does.
  [[nodiscard]] const nlohmann::json& value(std::string_view key) const;
  /// Texts of a list.
  [[nodiscard]] std::vector<std::string> texts(std::string_view key) const;

  [[noreturn]] void fail(std::string_view what, const nlohmann::json& value) const;

 private:
  [[nodiscard]] const nlohmann::json& at(std::string_view key) const;

  std::string file_;
  std::string where_;
  const nlohmann::json& object_;
};

}  // namespace commensal::simulator
