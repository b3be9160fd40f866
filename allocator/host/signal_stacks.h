// SPDX-License-Identifier: Apache-2.0
// Which thread has an alternate signal stack, and stacks for those that have none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commensal {

/// What is known of one thread.
struct SignalStackOwner {
  int tid = 0;
  std::uint64_t started = 0;   ///< with the number, this names a thread: numbers are used again
  std::byte* stack = nullptr;  ///< ours for it; null: none
  bool ready = false;          ///< signals reach it on an alternate stack, ours or its own
  bool given = false;          ///< it had `stack` at some time, and may have it still
  bool seen = false;
};

/// Keeps a stack for each thread from its first need to its end.
///
/// A thread that runs generated code may use its stack pointer for something else: PyTorch's LSTM
/// does (oneDNN). A signal's frame must not be put there, and is not where the thread has an
/// alternate stack. Sized for the kernel's frame with all registers, and for handlers of the
/// program that run there.
///
/// One a process, zero-initialized static storage. No locks and no allocation but mmap: used
/// between `stop` and `resume` too. Thread safety: none; whoever stops threads uses it in turn.
class SignalStacks {
 public:
  static constexpr std::uint32_t kMaxThreads = 16384;

  /// Begins a look at all threads.
  void begin_look() noexcept;
  /// Returns the thread's entry, a new one if need be; null: the table is full. Entries stay
  /// where they are until `end_look`.
  SignalStackOwner* meet(int tid, std::uint64_t started) noexcept;
  /// Takes the stacks of threads that were not met: they have ended.
  void end_look() noexcept;

  /// Maps a stack for a thread unless it has one of ours. False: the system refuses.
  [[nodiscard]] bool provide(SignalStackOwner& owner) noexcept;
  /// Notes that the thread has got our stack, or that it has its own.
  void note_given(SignalStackOwner& owner) noexcept;
  void note_own(SignalStackOwner& owner) noexcept;

  /// Returns the bytes of each stack.
  [[nodiscard]] static std::size_t size() noexcept;
  /// Returns the stacks that wait for a thread.
  [[nodiscard]] std::uint32_t unused() const noexcept { return unused_count_; }

  /// In a forked child: whatever is in use stays with whom it may belong to.
  void forget_in_child() noexcept;

 private:
  static constexpr std::uint32_t kBuckets = 2 * kMaxThreads;

  void put_into_bucket(std::uint32_t index) noexcept;
  void take_back(SignalStackOwner& owner) noexcept;

  std::uint32_t count_ = 0;
  std::uint32_t unused_count_ = 0;
  SignalStackOwner owners_[kMaxThreads] = {};
  std::uint32_t buckets_[kBuckets] = {};  // index + 1 into owners_; 0: empty
  std::byte* unused_[kMaxThreads] = {};
};

}  // namespace commensal
