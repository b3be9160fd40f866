// SPDX-License-Identifier: Apache-2.0
// Knows whether forked children live that may still see memory as it was when they were forked.
#pragma once

#include <cstdint>
#include <vector>

namespace commensal {

/// Counts forks, and tells whether a child of some of them (or a child's child) is alive.
///
/// Each generation of children inherits the write end of a close-on-exec pipe and never uses it:
/// end of file on our end means that all of them have ended or called exec. A child that closes
/// descriptors it does not know looks as if it had ended.
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
    int read_end = -1;
    int write_end = -1;  // open while further forks may still join; -1: sealed
  };

  std::vector<Generation> generations_;
  ForkCount forks_ = 0;
};

}  // namespace commensal
