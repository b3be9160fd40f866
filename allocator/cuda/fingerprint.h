// SPDX-License-Identifier: Apache-2.0
// Fingerprints of memory, computed on the device: whether bytes are those that were copied.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/cuda/device_context.h"

namespace commensal {

/// 128 bits over some memory: equal for equal bytes, else almost surely not.
struct DeviceFingerprint {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const DeviceFingerprint&) const noexcept = default;
};

/// Computes what the kernel computes, on the CPU. `size` is a multiple of 16.
[[nodiscard]] DeviceFingerprint fingerprint_of(const void* bytes, std::size_t size) noexcept;

/// The name of the kernel and its PTX (fingerprint_kernel.cu).
inline constexpr const char* kFingerprintKernel = "commensal_fingerprint";
extern const char* const kFingerprintPtx;

/// Launches the kernel and holds its results.
///
/// It is tried out against `fingerprint_of` before it is believed: a kernel that does nothing would
/// make all memory look alike. Where it does not work, `reason` says why and nothing else may be
/// called. Thread safety: none; the caller holds a DeviceContext::Scope.
class Fingerprinter {
 public:
  /// Place of a result. It is read after the stream's work is done.
  using Slot = std::uint32_t;
  static constexpr Slot kNoSlot = UINT32_MAX;

  /// @param stream  used for the trial. Never fails for want of the kernel: see `reason`.
  /// @throws OutOfMemory, SourceError if there is no memory for results.
  Fingerprinter(const DeviceContext& context, CUstream stream);
  ~Fingerprinter();
  Fingerprinter(const Fingerprinter&) = delete;
  Fingerprinter& operator=(const Fingerprinter&) = delete;

  /// Says why there are no fingerprints; empty: there are.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

  /// Returns a free slot, kNoSlot if none is left.
  [[nodiscard]] Slot take() noexcept;
  void give(Slot slot) noexcept;
  /// Puts a computation over device-accessible memory into the stream.
  [[nodiscard]] CUresult launch(CUdeviceptr address, Bytes size, CUstream stream,
                                Slot slot) noexcept;
  [[nodiscard]] DeviceFingerprint value(Slot slot) const noexcept { return results_[slot]; }

  /// Forgets everything without a call, in a forked child.
  void abandon() noexcept { abandoned_ = true; }

 private:
  void load(CUstream stream);
  void try_out(CUstream stream);
  void close() noexcept;

  const CudaDriver& driver_;
  std::string reason_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  unsigned most_blocks_ = 1;
  CUdeviceptr sums_ = 0;                  // where the kernel adds up, one for each slot
  DeviceFingerprint* results_ = nullptr;  // pinned copies of them
  std::vector<Slot> free_;
  bool abandoned_ = false;
};

}  // namespace commensal
