// SPDX-License-Identifier: Apache-2.0
// The predictor's table and its rules.
#include "allocator/lifetime.h"

#include <algorithm>

namespace commensal {
namespace {

constexpr std::size_t kProbes = 4;
constexpr std::uint32_t kWholeShare = 255;
constexpr std::uint16_t kMostBirths = UINT16_MAX;
constexpr std::uint32_t kLargestSize = (std::uint32_t{1} << 29U) - 1;

// Sizes from 32 GiB on share a signature.
std::uint32_t key_of(Phase phase, std::size_t size) noexcept {
  const auto units = static_cast<std::uint32_t>(std::min<std::size_t>(size >> 6U, kLargestSize));
  return (static_cast<std::uint32_t>(phase) + 1) << 29U | units;
}

Lifetime when_unseen(Phase phase) noexcept {
  return phase == Phase::kUnknown || phase == Phase::kOptimizer ? Lifetime::kLong : Lifetime::kStep;
}

}  // namespace

// Returns the place of a key: its own, an unused one, or the one that was unused for longest.
std::size_t LifetimePredictor::find_from(std::size_t home, std::uint32_t key) const noexcept {
  std::size_t oldest = home;
  for (std::size_t i = 0; i < kProbes; ++i) {
    const std::size_t at = (home + i) % kSignatures;
    if (table_[at].key == key || table_[at].key == 0) return at;
    if (table_[at].step < table_[oldest].step) oldest = at;
  }
  return oldest;
}

void LifetimePredictor::end_step(Signature& signature) noexcept {
  if (signature.births == 0) return;
  const std::uint32_t births = signature.births;
  const std::uint32_t outlived = births - std::min<std::uint32_t>(births, signature.deaths);
  const std::uint32_t now = outlived * kWholeShare / births;
  signature.share =
      static_cast<std::uint8_t>(signature.seen ? (signature.share * 3U + now) / 4U : now);
  signature.seen = true;
  signature.last = signature.outlived;
  signature.last_turns =
      static_cast<std::uint8_t>(std::min<std::uint32_t>(signature.births, kTurns));
  signature.births = signature.deaths = 0;
  signature.outlived = 0;
}

BirthMark LifetimePredictor::born(Phase phase, std::size_t size, std::uint32_t step) noexcept {
  const std::uint32_t key = key_of(phase, size);
  const std::size_t at = find(key);
  Signature& signature = table_[at];
  if (signature.key != key) {
    signature = Signature{};
    signature.key = key;
    signature.step = step;
  }
  if (signature.step != step) {
    end_step(signature);
    signature.step = step;
  }
  const auto turn = static_cast<std::uint8_t>(std::min<std::uint32_t>(signature.births, kTurns));
  if (++signature.births == kMostBirths) {  // only their ratio matters from here on
    signature.births /= 2;
    signature.deaths /= 2;
  }
  bool outlives = when_unseen(phase) == Lifetime::kLong;
  if (turn < signature.last_turns) {
    outlives = (signature.last >> turn & 1U) != 0;
  } else if (signature.seen) {
    outlives = signature.share * 2U >= kWholeShare;
  }
  if (turn < kTurns) signature.outlived |= std::uint64_t{1} << turn;
  return BirthMark{step, static_cast<std::uint16_t>(at), turn,
                   outlives ? Lifetime::kLong : Lifetime::kStep};
}

void LifetimePredictor::died(const BirthMark& mark, std::uint32_t step) noexcept {
  if (mark.step() != step) return;
  Signature& signature = table_[mark.signature()];
  if (signature.step != step) return;  // another one has its place now
  if (signature.deaths < kMostBirths) ++signature.deaths;
  if (mark.turn() < kTurns) signature.outlived &= ~(std::uint64_t{1} << mark.turn());
}

}  // namespace commensal
