// SPDX-License-Identifier: Apache-2.0
// How fast models train on each type of GPU, alone and two on the same GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace commensal::policies {

/// Steps per second by profile (a model on so many GPUs) and GPU type. What was not measured is
/// zero, as is what does not fit. Thread safety: reading.
class ThroughputTable {
 public:
  /// Speeds of two jobs that share their GPUs.
  struct Pair {
    double first = 0;
    double second = 0;
    bool operator==(const Pair&) const = default;
  };

  ThroughputTable(std::vector<std::string> types, std::vector<std::string> profiles);

  void set_alone(std::uint32_t type, std::uint32_t profile, double rate);
  void set_together(std::uint32_t type, std::uint32_t first, std::uint32_t second, Pair rates);

  [[nodiscard]] const std::vector<std::string>& types() const noexcept { return types_; }
  [[nodiscard]] std::optional<std::uint32_t> find_type(std::string_view name) const;
  [[nodiscard]] std::optional<std::uint32_t> find_profile(const std::string& name) const;

  [[nodiscard]] double alone(std::uint32_t type, std::uint32_t profile) const {
    return alone_[type * profiles_.size() + profile];
  }
  [[nodiscard]] Pair together(std::uint32_t type, std::uint32_t first, std::uint32_t second) const {
    return together_[(type * profiles_.size() + first) * profiles_.size() + second];
  }

  /// Speed on the type that durations refer to: v100, where the table has it and the model fits;
  /// otherwise the fastest type.
  [[nodiscard]] double reference(std::uint32_t profile) const;

  /// Numbers in this table of the types of a cluster, in their order.
  /// @throws std::invalid_argument for a type that the table does not have.
  [[nodiscard]] std::vector<std::uint32_t> types_of(const std::vector<std::string>& names) const;

 private:
  std::vector<std::string> types_;
  std::unordered_map<std::string, std::uint32_t> profiles_;
  std::vector<double> alone_;
  std::vector<Pair> together_;
};

}  // namespace commensal::policies
