// SPDX-License-Identifier: Apache-2.0
// Reads a fuzzer's bytes as decisions, and ends the process where something is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace commensal::fuzz {

/// Takes numbers and texts from the front of the input; at its end everything is zero or empty.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  [[nodiscard]] bool empty() const noexcept { return at_ >= size_; }
  std::uint8_t byte() noexcept { return empty() ? std::uint8_t{0} : data_[at_++]; }
  /// Returns a number below `n`; n > 0.
  std::uint64_t below(std::uint64_t n) noexcept { return number() % n; }
  /// Returns small numbers mostly, and extreme ones.
  std::uint64_t number() noexcept {
    const std::uint8_t kind = byte();
    if (kind < 192) return kind;
    if (kind < 224) return std::uint64_t{byte()} << (kind - 192U);
    if (kind < 240) return UINT64_MAX - byte();
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8U | byte();
    return value;
  }
  std::string text(std::size_t most) {
    std::string result;
    for (std::size_t n = byte() % (most + 1); n > 0 && !empty(); --n) {
      result.push_back(static_cast<char>(byte()));
    }
    return result;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

/// Ends the process, as a finding, unless `holds`.
inline void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: broken promise: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace commensal::fuzz
