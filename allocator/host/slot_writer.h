// SPDX-License-Identifier: Apache-2.0
// Writes buffers to the spill file on a thread of its own, while the next one is filled.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <semaphore>
#include <thread>

#include "allocator/host/spill_file.h"

namespace commensal {

/// Two buffers in one huge page, whose long runs a disk takes in few requests, and a thread that
/// writes them in the order in which they were submitted. Without memory for a thread, `submit`
/// writes itself.
///
/// The thread begins with the first submission, blocks all signals, writes no managed memory, and
/// is named so that a fence need not stop it. Thread safety: none; between `idle()` and the next
/// submission the buffers may also be used inside a fence.
class SlotWriter {
 public:
  static constexpr std::size_t kBuffer = std::size_t{1} << 20U;

  /// @throws SourceError without address space for the buffers.
  explicit SlotWriter(const SpillFile& file);
  ~SlotWriter();
  SlotWriter(const SlotWriter&) = delete;
  SlotWriter& operator=(const SlotWriter&) = delete;

  /// Returns the buffer to fill next; null while all are being written.
  [[nodiscard]] std::byte* buffer() const noexcept {
    return submitted_ - collected_ < kBuffers ? buffer_of(submitted_) : nullptr;
  }
  /// Begins to write the first `size` bytes of `buffer()` at `at` of a slot. `owner` comes back
  /// from `collect`.
  void submit(const SpillSlot& slot, std::uint64_t at, std::size_t size, void* owner);
  [[nodiscard]] bool idle() const noexcept { return submitted_ == collected_; }
  struct Written {
    void* owner = nullptr;
    int error = 0;  ///< an errno
  };
  /// Waits for the oldest submission; there must be one.
  [[nodiscard]] Written collect() noexcept;

  /// In a forked child, which has neither the thread nor the buffers. Called while idle.
  void forget_in_child() noexcept;

 private:
  static constexpr std::size_t kBuffers = 2;
  static constexpr std::size_t kAll = kBuffers * kBuffer;  // a huge page
  static constexpr std::size_t kWhole = 2 * kAll;          // with room to align it

  struct Job {
    SpillSlot slot;
    std::uint64_t at = 0;
    std::size_t size = 0;  // 0: end the thread
    Written written;
  };

  [[nodiscard]] std::byte* buffer_of(std::uint64_t number) const noexcept {
    return buffers_ + number % kBuffers * kBuffer;
  }
  void begin_thread();
  void run() noexcept;

  const SpillFile& file_;
  void* whole_ = nullptr;
  std::byte* buffers_ = nullptr;
  std::array<Job, kBuffers> jobs_;
  std::uint64_t submitted_ = 0;
  std::uint64_t collected_ = 0;
  bool begun_ = false;
  std::unique_ptr<std::thread> thread_;  // none: `submit` writes itself
  std::counting_semaphore<kBuffers> to_write_{0};
  std::counting_semaphore<kBuffers> done_{0};
};

}  // namespace commensal
