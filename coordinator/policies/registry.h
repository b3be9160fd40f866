// SPDX-License-Identifier: Apache-2.0
// Policies by name.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/policies/cluster_policy.h"

namespace commensal::policies {

/// Options of a policy as the user writes them (`--option k=v`). A policy takes what it knows; what
/// is left is an error.
class Options {
 public:
  explicit Options(std::map<std::string, std::string> given) : given_(std::move(given)) {}

  /// Takes an option; `fallback` if it was not given.
  /// @throws std::invalid_argument if it is no number.
  [[nodiscard]] double number(const std::string& name, double fallback);
  /// Takes an option that may be any text; `fallback` if it was not given.
  [[nodiscard]] std::string text(const std::string& name, std::string_view fallback);
  /// @throws std::invalid_argument if it is none of `choices`.
  [[nodiscard]] std::string choice(const std::string& name, std::string_view fallback,
                                   const std::vector<std::string>& choices);

  /// Options that nobody took.
  [[nodiscard]] std::vector<std::string> left() const;
  /// Options that were asked for, given or not.
  [[nodiscard]] const std::vector<std::string>& known() const noexcept { return known_; }

 private:
  std::vector<std::string> known_;
  std::map<std::string, std::string> given_;
};

struct PolicyEntry {
  std::string_view name;
  std::string_view summary;  ///< one line: what it does, from which source
  std::unique_ptr<ClusterPolicy> (*make)(Options& options);
};

/// All policies, by name.
[[nodiscard]] const std::vector<PolicyEntry>& all_policies();

/// Makes a policy. One that draws takes the seed as its option of that name; others do without.
/// @throws std::invalid_argument for a name or option that does not exist, with the nearest one.
[[nodiscard]] std::unique_ptr<ClusterPolicy> make_policy(
    std::string_view name, const std::map<std::string, std::string>& options,
    std::optional<std::uint64_t> seed = std::nullopt);

}  // namespace commensal::policies
