// SPDX-License-Identifier: Apache-2.0
// Guesses whether a block dies within its step, from what the same allocation did a step ago.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace commensal {

/// The part of a step in which a block is asked for.
enum class Phase : std::uint8_t { kUnknown, kData, kForward, kBackward, kOptimizer };

/// How long a block is expected to live. Blocks of one kind share chunks, so that at a safe point,
/// when all that live for a step are dead, live bytes lie in few chunks.
enum class Lifetime : std::uint8_t {
  kLong,  ///< outlives its step: weights, optimizer state, buffers, gradients
  kStep   ///< dies within it: activations, workspaces
};

/// A guess and where it came from; kept with the block and handed back when it dies. One word, put
/// together by shifts: parts that are written and then read as a whole would stall every
/// allocation.
class BirthMark {
 public:
  BirthMark() noexcept = default;
  BirthMark(std::uint32_t step, std::uint16_t signature, std::uint8_t turn,
            Lifetime lifetime = Lifetime::kLong) noexcept
      : bits_(std::uint64_t{step} << 32U | std::uint64_t{signature} << 16U |
              std::uint64_t{turn} << 8U | static_cast<std::uint64_t>(lifetime)) {}

  [[nodiscard]] std::uint32_t step() const noexcept {
    return static_cast<std::uint32_t>(bits_ >> 32U);
  }
  [[nodiscard]] std::uint16_t signature() const noexcept {
    return static_cast<std::uint16_t>(bits_ >> 16U);
  }
  [[nodiscard]] std::uint8_t turn() const noexcept {
    return static_cast<std::uint8_t>(bits_ >> 8U);
  }
  [[nodiscard]] Lifetime lifetime() const noexcept { return static_cast<Lifetime>(bits_ & 0xffU); }

 private:
  std::uint64_t bits_ = 0;
};

/// Remembers, for each signature (phase and size), which of its allocations outlived the last step.
///
/// Training repeats itself: the k-th allocation of a signature in a step does what the k-th did in
/// the step before. For the first 64 of a signature this is one bit each; the rest follow the share
/// that outlived its step. What was never seen is long-lived outside of steps and in the optimizer,
/// whose state is made in the first one, and dies within its step otherwise. A wrong guess costs
/// density, never correctness. The table is bounded: the signature unused for longest makes room.
///
/// Thread safety: none (the allocator's block lock).
class LifetimePredictor {
 public:
  static constexpr std::size_t kSignatures = 1024;
  static constexpr std::uint8_t kTurns = 64;

  /// A block of `size` bytes is born in step number `step` (steps only count up).
  [[nodiscard]] BirthMark born(Phase phase, std::size_t size, std::uint32_t step) noexcept;
  /// The block of that mark dies in step number `step`.
  void died(const BirthMark& mark, std::uint32_t step) noexcept;

 private:
  // Two to a cache line, none across two.
  struct alignas(32) Signature {
    std::uint64_t outlived = 0;   // bit k: the k-th of this step is not dead yet
    std::uint64_t last = 0;       // the same at the end of the step before
    std::uint32_t key = 0;        // 0: unused
    std::uint32_t step = 0;       // of `outlived`
    std::uint16_t births = 0;     // in `step`
    std::uint16_t deaths = 0;     // of these
    std::uint8_t share = 0;       // in 1/255: how many outlived their step, over the last steps
    std::uint8_t last_turns = 0;  // bits of `last` that mean something
    bool seen = false;            // `share` means something
  };
  static_assert(sizeof(Signature) == 32);
  [[nodiscard]] std::size_t find(std::uint32_t key) const noexcept {
    static_assert(kSignatures == std::size_t{1} << 10U, "22 = 32 - 10 bits");
    const std::size_t home = (key * 0x9E3779B1U) >> 22U;
    return table_[home].key == key ? home : find_from(home, key);
  }
  [[nodiscard]] std::size_t find_from(std::size_t home, std::uint32_t key) const noexcept;
  static void end_step(Signature& signature) noexcept;

  std::array<Signature, kSignatures> table_{};
};

}  // namespace commensal
