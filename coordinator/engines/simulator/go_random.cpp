// SPDX-License-Identifier: Apache-2.0
// Go's math/rand keeps a table of 607 words: the generator's state after 7.8e12 steps from seed 1.
// Here it is computed: a step is linear, so x^n modulo the generator's polynomial leaps to step n.
#include "coordinator/engines/simulator/go_random.h"

namespace commensal::simulator {
namespace {

constexpr std::size_t kWords = 607;
constexpr std::size_t kTap = 273;
constexpr std::uint64_t kWarmUpSteps = 7'800'000'000'000;
constexpr std::uint64_t kModulus = 2'147'483'647;  // of the generator that seeds

using Words = std::array<std::uint64_t, kWords>;

/// Three numbers of x -> 48271 x mod 2^31 - 1 a word, shifted over each other.
class Seeder {
 public:
  explicit Seeder(std::uint64_t seed) : x_(seed % kModulus) {
    if (x_ == 0) x_ = 89'482'311;
    for (int i = 0; i < 20; ++i) next();
  }
  std::uint64_t word(unsigned shift) {
    std::uint64_t value = next() << (2 * shift);
    value ^= next() << shift;
    return value ^ next();
  }

 private:
  std::uint64_t next() { return x_ = x_ * 48271 % kModulus; }
  std::uint64_t x_;
};

/// The product of two polynomials modulo x^607 = x^334 + 1; coefficients modulo 2^64.
Words product(const Words& a, const Words& b) {
  std::array<std::uint64_t, 2 * kWords> wide{};
  for (std::size_t i = 0; i < kWords; ++i) {
    for (std::size_t j = 0; j < kWords; ++j) wide[i + j] += a[i] * b[j];
  }
  for (std::size_t i = 2 * kWords - 1; i >= kWords; --i) {
    wide[i - kWords] += wide[i];
    wide[i - kTap] += wide[i];
  }
  Words rest{};
  for (std::size_t i = 0; i < kWords; ++i) rest[i] = wide[i];
  return rest;
}

/// Position in the table of the word number `n` of the sequence: it is written from the middle
/// down.
std::size_t position(std::uint64_t n) {
  return static_cast<std::size_t>((kWords - kTap - 1 + kWords - n % kWords) % kWords);
}

Words warmed_up() {
  std::vector<std::uint64_t> sequence(2 * kWords);
  Seeder seeder(1);
  Words start{};
  for (std::uint64_t& word : start) word = seeder.word(10);
  for (std::size_t n = 0; n < kWords; ++n) sequence[n] = start[position(n)];
  for (std::size_t n = kWords; n < sequence.size(); ++n) {
    sequence[n] = sequence[n - kWords] + sequence[n - kTap];
  }
  Words power{1};
  Words square{0, 1};
  for (std::uint64_t left = kWarmUpSteps; left > 0; left >>= 1U) {
    if ((left & 1U) != 0) power = product(power, square);
    square = product(square, square);
  }
  Words table{};
  for (std::size_t k = 0; k < kWords; ++k) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < kWords; ++i) word += power[i] * sequence[i + k];
    table[position(kWarmUpSteps + k)] = word;
  }
  return table;
}

}  // namespace

GoRandom::GoRandom(std::uint64_t seed) {
  static const Words table = warmed_up();
  Seeder seeder(seed);
  for (std::size_t i = 0; i < kWords; ++i) words_[i] = seeder.word(20) ^ table[i];
}

std::uint64_t GoRandom::bits() {
  tap_ = (tap_ + kWords - 1) % kWords;
  feed_ = (feed_ + kWords - 1) % kWords;
  words_[feed_] += words_[tap_];
  return words_[feed_] & (UINT64_MAX >> 1U);
}

std::size_t GoRandom::draw(std::size_t size) {
  constexpr std::uint64_t kRange = std::uint64_t{1} << 31U;
  const std::uint64_t fair = kRange - kRange % size;  // above it, some would be drawn more often
  std::uint64_t drawn = bits() >> 32U;
  while (drawn >= fair) drawn = bits() >> 32U;
  return static_cast<std::size_t>(drawn % size);
}

std::size_t GoRandom::scaled(std::size_t size) {
  constexpr std::uint64_t kRange = std::uint64_t{1} << 32U;
  const std::uint64_t unfair = kRange % size;
  std::uint64_t wide = (bits() >> 31U) * size;
  while (wide % kRange < unfair) wide = (bits() >> 31U) * size;
  return static_cast<std::size_t>(wide / kRange);
}

std::vector<std::size_t> GoRandom::permutation(std::size_t size) {
  std::vector<std::size_t> numbers(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t other = draw(i + 1);
    numbers[i] = numbers[other];
    numbers[other] = i;
  }
  return numbers;
}

}  // namespace commensal::simulator
