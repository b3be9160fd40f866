// SPDX-License-Identifier: Apache-2.0
// Pinned host memory for chunks that are parked where no host memory can be mapped at an address.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/mutex.h"
#include "allocator/cuda/device_context.h"

namespace commensal {

/// Hands out slots of pinned memory: the device copies from and to it at the speed of its link, and
/// reads it under the same address (unified addressing).
///
/// To pin costs about as much as to copy. So slots come from slabs, each as large as all before it,
/// 64 MiB at most, and a thread of the arena's own, `commensal-pin`, makes the next one while
/// copies fill the last. Slabs of which no slot is in use are given back by that thread, but for
/// `keep` bytes. Never is more than `most` pinned. While a graph is captured the thread waits.
///
/// Thread safety: `take` and `give` are serialised by the caller; all else from any thread.
class PinnedArena {
 public:
  struct Options {
    Bytes most;                     ///< pinned together
    Bytes keep;                     ///< pinned and not used
    bool (*capturing)() = nullptr;  ///< does any stream capture a graph? Null: never
    bool in_background = true;      ///< false: `take` and `give` do it all
  };

  PinnedArena(const DeviceContext& context, const Options& options);
  /// Gives everything back.
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  /// Returns a slot. @throws OutOfMemory, SourceError; nothing has changed then.
  [[nodiscard]] std::byte* take(Bytes size);
  /// Takes a slot back. What the driver refuses to unpin stays, and is tried again by later calls.
  void give(std::byte* slot) noexcept;

  [[nodiscard]] Bytes pinned() const noexcept;
  /// Returns what is pinned of slabs without a slot in use.
  [[nodiscard]] Bytes unused() const noexcept;

 private:
  struct Slab {
    std::byte* begin = nullptr;
    Bytes size;
    Bytes slot;
    std::vector<std::byte*> free;
    bool leaving = false;  // is being given back
    [[nodiscard]] bool idle() const noexcept {
      return !leaving && free.size() * slot.count() == size.count();
    }
  };

  [[nodiscard]] std::byte* find_slot(Bytes size) COMMENSAL_REQUIRES(mutex_);
  [[nodiscard]] bool has_slot(Bytes size) const COMMENSAL_REQUIRES(mutex_);
  [[nodiscard]] Bytes idle_bytes() const COMMENSAL_REQUIRES(mutex_);
  [[nodiscard]] bool work_is_due() const COMMENSAL_REQUIRES(mutex_);
  void add_slab(Bytes slot) COMMENSAL_REQUIRES(mutex_);
  bool give_back_one() noexcept COMMENSAL_REQUIRES(mutex_);
  void trim() noexcept COMMENSAL_REQUIRES(mutex_);
  [[nodiscard]] std::byte* pin(Bytes size) const;
  [[nodiscard]] bool unpin(std::byte* begin) const noexcept;
  void start_thread() noexcept COMMENSAL_REQUIRES(mutex_);
  void run() noexcept;
  void build() noexcept COMMENSAL_REQUIRES(mutex_);

  const DeviceContext& context_;
  const Options options_;
  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::unique_ptr<Slab>> slabs_ COMMENSAL_GUARDED_BY(mutex_);
  Bytes pinned_ COMMENSAL_GUARDED_BY(mutex_);           // and what is being made
  Bytes wanted_ COMMENSAL_GUARDED_BY(mutex_);           // make a slab of such slots; zero: none
  bool building_ COMMENSAL_GUARDED_BY(mutex_) = false;  // the thread makes one
  bool refused_ COMMENSAL_GUARDED_BY(mutex_) = false;   // the driver did not take one back
  bool stopping_ COMMENSAL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::thread> thread_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
