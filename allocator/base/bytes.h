// SPDX-License-Identifier: Apache-2.0
// A count of bytes that cannot be mixed up with other integers.
#pragma once

#include <cassert>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

namespace commensal {

/// Counts bytes. Never negative: `-` and `-=` assert that they do not go below zero.
class Bytes {
 public:
  constexpr Bytes() noexcept = default;
  constexpr explicit Bytes(std::uint64_t count) noexcept : count_(count) {}

  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] constexpr bool is_zero() const noexcept { return count_ == 0; }

  constexpr auto operator<=>(const Bytes&) const noexcept = default;

  constexpr Bytes& operator+=(Bytes other) noexcept {
    count_ += other.count_;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) noexcept {
    assert(other.count_ <= count_);
    count_ -= other.count_;
    return *this;
  }
  [[nodiscard]] friend constexpr Bytes operator+(Bytes a, Bytes b) noexcept { return a += b; }
  [[nodiscard]] friend constexpr Bytes operator-(Bytes a, Bytes b) noexcept { return a -= b; }
  [[nodiscard]] friend constexpr Bytes operator*(Bytes a, std::uint64_t n) noexcept {
    return Bytes{a.count_ * n};
  }
  [[nodiscard]] friend constexpr std::uint64_t operator/(Bytes a, Bytes b) noexcept {
    return a.count_ / b.count_;
  }

 private:
  std::uint64_t count_ = 0;
};

/// Returns `a - b`, or zero where that would be negative.
[[nodiscard]] constexpr Bytes saturating_sub(Bytes a, Bytes b) noexcept {
  return a > b ? a - b : Bytes{};
}

/// Rounds up to a multiple of `step`; `step` must not be zero.
[[nodiscard]] constexpr Bytes round_up(Bytes size, Bytes step) noexcept {
  return Bytes{(size.count() + step.count() - 1) / step.count() * step.count()};
}

/// Writes a count for people, in binary units: "48 MiB", "1.5 GiB", "0 B".
[[nodiscard]] std::string to_string(Bytes bytes);

/// Returns whole MiB.
[[nodiscard]] constexpr std::int64_t in_mib(Bytes bytes) noexcept {
  return static_cast<std::int64_t>(bytes.count() >> 20U);
}

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) noexcept { return Bytes{n}; }
constexpr Bytes operator""_KiB(unsigned long long n) noexcept { return Bytes{n << 10U}; }
constexpr Bytes operator""_MiB(unsigned long long n) noexcept { return Bytes{n << 20U}; }
constexpr Bytes operator""_GiB(unsigned long long n) noexcept { return Bytes{n << 30U}; }
}  // namespace literals

inline std::string to_string(Bytes bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::uint64_t whole = bytes.count();
  std::uint64_t rest = 0;
  std::size_t unit = 0;
  while (whole >= 1024 && unit + 1 < std::size(kUnits)) {
    rest = whole & 1023U;
    whole >>= 10U;
    ++unit;
  }
  std::string text = std::to_string(whole);
  if (const std::uint64_t tenth = rest * 10 / 1024; tenth != 0) {
    text += '.';
    text += static_cast<char>('0' + tenth);
  }
  return text + ' ' + kUnits[unit];
}

}  // namespace commensal
