// SPDX-License-Identifier: Apache-2.0
// Writes to and reads from the spill file on threads of its own, both ways at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <semaphore>
#include <thread>

#include "allocator/host/spill_file.h"

namespace commensal {

/// A few requests that are under way at once, each on a thread of its own, and as many buffers in
/// one huge page, whose long runs a disk takes in few requests. Without memory for a thread, the
/// call that submits does the work itself.
///
/// The threads begin with the first request, block all signals, write only where a request says,
/// and are named so that a fence need not stop them. Thread safety: none; between `idle()` and the
/// next request the buffers may also be used inside a fence.
class SlotIo {
 public:
  static constexpr std::size_t kAtOnce = 2;
  static constexpr std::size_t kBuffer = std::size_t{1} << 20U;

  /// @throws SourceError without address space for the buffers.
  explicit SlotIo(const SpillFile& file);
  ~SlotIo();
  SlotIo(const SlotIo&) = delete;
  SlotIo& operator=(const SlotIo&) = delete;

  /// Tells whether one more request may be submitted now.
  [[nodiscard]] bool room() const noexcept { return submitted_ - collected_ < kAtOnce; }
  [[nodiscard]] bool idle() const noexcept { return submitted_ == collected_; }
  /// Returns the buffer that belongs to the next request; null while there is no room for one.
  [[nodiscard]] std::byte* buffer() const noexcept {
    return room() ? buffers_ + submitted_ % kAtOnce * kBuffer : nullptr;
  }
  /// Begin to write `size` bytes to `at` of a slot, or to read them from there; `bytes` (a buffer,
  /// or any memory that stays mapped), `at` and `size` are multiples of 4 KiB, and there is room.
  /// `owner` comes back from `collect`.
  void write(const SpillSlot& slot, std::uint64_t at, const std::byte* bytes, std::size_t size,
             void* owner);
  void read(const SpillSlot& slot, std::uint64_t at, std::byte* bytes, std::size_t size,
            void* owner);
  struct Done {
    void* owner = nullptr;
    int error = 0;  ///< an errno
  };
  /// Waits for the oldest request; there must be one.
  [[nodiscard]] Done collect() noexcept;

  /// In a forked child, which has neither the threads nor the buffers. Called while idle.
  void forget_in_child() noexcept;

 private:
  static constexpr std::size_t kAll = kAtOnce * kBuffer;  // a huge page
  static constexpr std::size_t kWhole = 2 * kAll;         // with room to align it

  struct Request {
    SpillSlot slot;
    std::uint64_t at = 0;
    const std::byte* from = nullptr;  // to write
    std::byte* to = nullptr;          // to read
    std::size_t size = 0;             // 0: end the thread
    Done done;
  };
  /// Every `kAtOnce`th request, and the thread that does it.
  struct Worker {
    Request request;
    std::unique_ptr<std::thread> thread;
    std::binary_semaphore begun{0};
    std::binary_semaphore ended{0};
  };

  void begin_threads();
  void run(Worker& worker) noexcept;
  void carry_out(Request& request, SpillFile::Caller caller) const noexcept;
  void submit(const Request& request);

  const SpillFile& file_;
  void* whole_ = nullptr;
  std::byte* buffers_ = nullptr;
  std::array<Worker, kAtOnce> workers_;
  std::uint64_t submitted_ = 0;
  std::uint64_t collected_ = 0;
  bool begun_ = false;
};

}  // namespace commensal
