// SPDX-License-Identifier: Apache-2.0
// Random numbers as Python's `random.Random(seed)` draws them, so that a simulation with a seed can
// be compared with one in Python.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace commensal::policies {

/// A Mersenne Twister that can be taken up again: a policy keeps `drawn()` in its notes.
class SeededRandom {
 public:
  /// @param drawn  numbers that were drawn before and are passed over.
  // NOLINTNEXTLINE(bugprone-random-generator-seed): seeded in the body
  SeededRandom(std::uint32_t seed, std::uint64_t drawn) : drawn_(drawn) {
    PythonSeed words{seed};
    engine_.seed(words);
    engine_.discard(drawn);
  }

  /// Draws a whole number below `bound`, which is at least one.
  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    std::uint32_t bits = 0;
    while (bits < 32 && (std::uint64_t{bound} >> bits) != 0) ++bits;
    for (;;) {
      ++drawn_;
      const auto value = static_cast<std::uint32_t>(engine_()) >> (32 - bits);
      if (value < bound) return value;
    }
  }

  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i-- > 1;) {
      std::swap(values[i], values[below(static_cast<std::uint32_t>(i + 1))]);
    }
  }

  /// Draws two different positions of `size`, which is at least two.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> two_of(std::uint32_t size) {
    constexpr std::uint32_t kPool = 21;  // up to so many Python swaps in a copy, above it redraws
    const std::uint32_t first = below(size);
    if (size <= kPool) {
      const std::uint32_t second = below(size - 1);
      return {first, second == first ? size - 1 : second};
    }
    std::uint32_t second = below(size);
    while (second == first) second = below(size);
    return {first, second};
  }

  [[nodiscard]] std::uint64_t drawn() const noexcept { return drawn_; }

 private:
  /// The first state, from a key of one word (Matsumoto and Nishimura's init_by_array).
  struct PythonSeed {
    using result_type = std::uint32_t;
    std::uint32_t key;

    template <typename Iterator>
    void generate(Iterator begin, Iterator /*end*/) const {
      constexpr std::uint32_t kWords = 624;
      std::array<std::uint32_t, kWords> state{19650218U};
      const auto mixed = [&](std::uint32_t i) { return state[i - 1] ^ (state[i - 1] >> 30U); };
      for (std::uint32_t i = 1; i < kWords; ++i) state[i] = 1812433253U * mixed(i) + i;
      std::uint32_t i = 1;
      const auto next = [&] {
        if (++i < kWords) return;
        state[0] = state[kWords - 1];
        i = 1;
      };
      for (std::uint32_t k = 0; k < kWords; ++k, next()) {
        state[i] = (state[i] ^ (mixed(i) * 1664525U)) + key;
      }
      for (std::uint32_t k = 1; k < kWords; ++k, next()) {
        state[i] = (state[i] ^ (mixed(i) * 1566083941U)) - i;
      }
      state[0] = 0x80000000U;
      for (const std::uint32_t word : state) *begin++ = word;
    }
  };

  std::mt19937 engine_;
  std::uint64_t drawn_;
};

}  // namespace commensal::policies
