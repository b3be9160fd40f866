// SPDX-License-Identifier: Apache-2.0
// The numbers of Go's math/rand, so that a seed means what it means to a simulator written in Go.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace commensal::simulator {

/// Mitchell and Reeds' additive lagged Fibonacci generator over 607 words, seeded as by rand.Seed.
/// Thread safety: none.
class GoRandom {
 public:
  explicit GoRandom(std::uint64_t seed);

  /// Returns 63 bits (Int63, Int; as many as one Float64 takes).
  std::uint64_t bits();

  /// Draws from 0 to size - 1 (Intn). `size` is from 1 to 2^31 - 1.
  std::size_t draw(std::size_t size);

  /// Puts values into a random order (Shuffle).
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t left = values.size(); left > 1; --left) {
      std::swap(values[left - 1], values[scaled(left)]);
    }
  }

  /// Returns the numbers from 0 to size - 1 in a random order (Perm).
  std::vector<std::size_t> permutation(std::size_t size);

 private:
  static constexpr std::size_t kWords = 607;

  std::size_t scaled(std::size_t size);

  std::array<std::uint64_t, kWords> words_{};
  std::size_t tap_ = 0;
  std::size_t feed_ = kWords - 273;
};

}  // namespace commensal::simulator
