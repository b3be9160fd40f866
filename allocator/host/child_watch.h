// SPDX-License-Identifier: Apache-2.0
// Knows whether forked children live that may still see memory as it was when they were forked.
#pragma once

#include <cstdint>
#include <vector>

namespace commensal {

/// Counts forks, and tells whether a child of some of them (or a child's child) is alive.
///
/// Each generation of children inherits a shared mapping of a file in memory and never uses it. The
/// kernel seals the file against writing once nobody has it mapped: then all of them have ended or
/// called exec. No descriptor is inherited, so a child may close what it likes.
/// Thread safety: none; the caller serialises, around fork() too.
class ChildWatch {
 public:
  /// Numbers forks; what exists at a fork was made at a smaller or equal count.
  using ForkCount = std::uint64_t;

  ChildWatch() = default;
  ~ChildWatch();
  ChildWatch(const ChildWatch&) = delete;
  ChildWatch& operator=(const ChildWatch&) = delete;

  /// Call before fork(), in the parent.
  void prepare() noexcept;
  /// Call after fork(), in the child: it keeps only what its own parent needs to see it alive.
  void forget_in_child() noexcept;

  /// Returns how many forks there were.
  [[nodiscard]] ForkCount forks() const noexcept { return forks_; }
  /// Tells whether a child lives that was forked after count `made` and up to count `gone`.
  [[nodiscard]] bool child_saw(ForkCount made, ForkCount gone) noexcept;

 private:
  struct Generation {
    ForkCount first = 0;
    ForkCount last = 0;
    int file = -1;           // in our own table (own_descriptors.h); -1: nobody can tell its end
    void* shared = nullptr;  // mapped while further forks may still join
  };

  static Generation begin_generation() noexcept;
  static void end_joining(Generation& generation) noexcept;
  static bool all_ended(const Generation& generation) noexcept;

  std::vector<Generation> generations_;
  ForkCount forks_ = 0;
};

}  // namespace commensal
