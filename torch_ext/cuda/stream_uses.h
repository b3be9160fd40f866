// SPDX-License-Identifier: Apache-2.0
// Blocks that other streams than their own still use: when they may be served again.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "allocator/base/mutex.h"
#include "torch_ext/cuda/cuda_calls.h"

namespace commensal {

/// Holds back freed blocks until every stream that was recorded for them (PyTorch's
/// `record_stream`) has come past the moment of the free. While a graph is captured nothing is
/// asked of the runtime, which would break the capture: blocks wait for its end.
///
/// Thread safety: all. `done` is called with no lock held.
class StreamUses {
 public:
  struct Stream {
    int device = 0;
    cudaStream_t handle = nullptr;
    bool operator==(const Stream&) const = default;
  };
  /// Takes a block that no stream uses any more.
  using Done = std::function<void(void* block)>;

  /// @param calls  not owned; must outlive this.
  StreamUses(CudaCalls& calls, Done done);
  ~StreamUses();
  StreamUses(const StreamUses&) = delete;
  StreamUses& operator=(const StreamUses&) = delete;

  /// Notes that a live block is used by a stream beside its own.
  void record(void* block, Stream stream);
  /// Whether a stream was recorded for any live block: one load.
  [[nodiscard]] bool any_recorded() const noexcept {
    return recorded_.load(std::memory_order_acquire) != 0;
  }
  /// A block is freed. Returns whether it is held back; else no stream was recorded for it, and it
  /// may be served again at once. @param capturing  a capture may be under way.
  [[nodiscard]] bool freed(void* block, bool capturing);
  /// Calls `done` with each block whose streams have come past. Cheap when there is none.
  void process(bool capturing);
  /// Waits for the streams of every block that is held back, and calls `done` with it. Does nothing
  /// during a capture.
  void drain(bool capturing);

  /// Blocks that are freed and held back.
  [[nodiscard]] std::vector<void*> waiting() const;
  [[nodiscard]] bool idle() const noexcept { return held_.load(std::memory_order_acquire) == 0; }

 private:
  struct Held {
    void* block = nullptr;
    std::vector<Stream> unmarked;  // freed during a capture
    std::vector<cudaEvent_t> marks;
  };
  void mark(Held& held);
  void try_mark(Held& held) noexcept;
  [[nodiscard]] bool came_past(Held& held, bool wait);
  [[nodiscard]] std::vector<void*> take_done(bool wait);

  CudaCalls& calls_;
  const Done done_;
  std::atomic<std::size_t> recorded_{0};
  std::atomic<std::size_t> held_{0};

  mutable Mutex mutex_;
  std::unordered_map<void*, std::vector<Stream>> uses_ COMMENSAL_GUARDED_BY(mutex_);
  std::deque<Held> waiting_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
