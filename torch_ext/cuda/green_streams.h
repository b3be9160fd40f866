// SPDX-License-Identifier: Apache-2.0
// Streams whose kernels run on a part of a GPU's multiprocessors: one a green context.
#pragma once

#include <map>
#include <optional>

#include "allocator/cuda/device_context.h"

namespace commensal {

/// How a device's multiprocessors are divided.
struct MultiprocessorSizes {
  unsigned total = 0;
  unsigned least = 1;  ///< of a part
  unsigned step = 1;   ///< parts are multiples of this
};

/// The part of a device that a share stands for.
struct MultiprocessorPart {
  unsigned asked = 0;             ///< share times total, rounded down
  std::optional<unsigned> count;  ///< to ask the driver for; absent: the whole device
};

/// Never more than the share, but at least the smallest part: the driver rounds up by itself.
[[nodiscard]] MultiprocessorPart part_for(double share, const MultiprocessorSizes& sizes) noexcept;

/// A stream of a green context.
struct GreenStream {
  CUstream stream = nullptr;
  unsigned multiprocessors = 0;  ///< as the driver says
};

/// The green contexts of a device, made when they are asked for and kept as long as the process
/// lives: PyTorch's allocators and events remember their streams. There are few sizes.
/// Thread safety: none; made for the thread that trains.
class GreenStreams {
 public:
  /// @param device  ordinal among the visible devices. @throws SourceError.
  explicit GreenStreams(int device);

  [[nodiscard]] const MultiprocessorSizes& sizes() const noexcept { return sizes_; }
  /// Returns the stream on so many multiprocessors, or a few more where the driver rounds up.
  /// @throws SourceError or OutOfMemory naming the call that the driver refused; nothing stays.
  GreenStream with(unsigned count);
  [[nodiscard]] bool ours(CUstream stream) const noexcept;

 private:
  GreenStream make(unsigned count);

  const DeviceContext context_;
  CUdevResource whole_{};
  MultiprocessorSizes sizes_;
  std::map<unsigned, GreenStream> made_;  // by what was asked for
};

}  // namespace commensal
