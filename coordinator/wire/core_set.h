// SPDX-License-Identifier: Apache-2.0
// A set of the machine's CPUs, as it stands on the device page.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/wire/pages.h"

namespace commensal::wire {

/// CPUs by the kernel's numbers, 0 to `kMost` - 1. A value.
class CoreSet {
 public:
  static constexpr std::size_t kMost = 64 * kCoreWords;
  using Words = std::array<std::uint64_t, kCoreWords>;

  CoreSet() = default;
  explicit CoreSet(const Words& words) noexcept : words_(words) {}
  /// Reads the kernel's lists: "0-3,8". Nothing if it is no such list, or names a CPU above those.
  [[nodiscard]] static std::optional<CoreSet> parse(std::string_view list);

  /// @throws std::out_of_range.
  void add(std::size_t cpu);
  [[nodiscard]] bool has(std::size_t cpu) const noexcept {
    return cpu < kMost && ((words_[cpu / 64] >> (cpu % 64)) & 1U) != 0;
  }
  [[nodiscard]] std::size_t count() const noexcept;
  [[nodiscard]] bool empty() const noexcept { return count() == 0; }
  /// In rising order.
  [[nodiscard]] std::vector<std::size_t> cpus() const;
  [[nodiscard]] const Words& words() const noexcept { return words_; }
  /// What `parse` reads; empty for none.
  [[nodiscard]] std::string to_string() const;

  [[nodiscard]] CoreSet operator&(const CoreSet& other) const noexcept;
  [[nodiscard]] CoreSet operator|(const CoreSet& other) const noexcept;
  bool operator==(const CoreSet&) const = default;

 private:
  Words words_{};
};

}  // namespace commensal::wire
