// SPDX-License-Identifier: Apache-2.0
// Limits where PyTorch's own CUDA allocator serves everything: no more than a cap.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "allocator/base/mutex.h"
#include "allocator/device_memory.h"
#include "torch_ext/cuda/cuda_calls.h"
#include "torch_ext/cuda/forwarding_allocator.h"

namespace commensal {

/// Bounds what PyTorch's allocator holds of one GPU: its memory fraction is the limit's, and what
/// it caches is given back where that is above. Live memory stays. A fraction that the program sets
/// itself holds besides. Where the allocator knows no fraction, limits are noted and nothing more.
/// Thread safety: all.
class CapOnly final : public DeviceMemory {
 public:
  struct Options {
    int device = 0;
    /// Whether the calling thread may act: only there is it known that no op of its runs.
    bool (*may_act)() = nullptr;
    /// Whether a graph may be captured now: then nothing is done. Null: nobody knows, so nothing is
    /// given back, which might break a capture.
    bool (*capturing)() = nullptr;
  };
  /// The allocator must live as long.
  CapOnly(ForwardingAllocator::Base& allocator, CudaCalls& calls, const Options& options);

  /// Why the limit bounds nothing; empty: it does.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  /// Applies a limit that has grown at once. @return whether one had.
  bool raise();
  /// Bytes that the process may hold; the largest number: no limit.
  [[nodiscard]] Bytes limit() const noexcept { return Bytes{limit_.load()}; }

  LimitTicket post_limit(Bytes limit) override;
  LimitTicket safe_point() override;
  [[nodiscard]] bool work_pending() const noexcept override;
  [[nodiscard]] AllocatorStats stats() const override;
  [[nodiscard]] Bytes capacity() const override { return total_; }

 private:
  struct Held {
    Bytes reserved;
    Bytes allocated;
    Bytes unused;  ///< in segments without a block
  };
  [[nodiscard]] Held held() const;
  void bound(Bytes limit);
  [[nodiscard]] c10::DeviceIndex device() const noexcept {
    return static_cast<c10::DeviceIndex>(options_.device);
  }

  ForwardingAllocator::Base& allocator_;
  const Options options_;
  const Bytes total_;
  std::string problem_;  // written by the constructor alone
  std::atomic<std::uint64_t> limit_{UINT64_MAX};
  std::atomic<std::uint64_t> applied_{UINT64_MAX};
  std::atomic<std::uint64_t> over_{0};  // at the last safe point
  std::atomic<std::uint64_t> given_back_{0};
  std::atomic<Revision> revision_{0};

  mutable Mutex mutex_;
  double own_fraction_ COMMENSAL_GUARDED_BY(mutex_) = 1.0;  // the program's
  double set_fraction_ COMMENSAL_GUARDED_BY(mutex_) = 1.0;  // what it is now
  std::string reason_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
