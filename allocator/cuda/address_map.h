// SPDX-License-Identifier: Apache-2.0
// Reserved addresses and what is mapped there; every change is made whole or undone.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/cuda/handle_store.h"

namespace commensal {

/// Physical memory and the address where it is, or is to be, mapped.
struct Placed {
  CUdeviceptr address = 0;
  Bytes size;
  Tier tier = Tier::kFree;
  CUmemGenericAllocationHandle handle = 0;
};

/// Maps, unmaps and exchanges runs: `Placed` one behind the other, without a gap. A run is given
/// access in one call (one for each stretch on the same tier) and unmapped in one.
///
/// A change that fails half-way is undone; undoing is tried several times. What the driver refuses
/// even then is noted and made good by `mend`: until then no other change is made, and nobody may
/// use the memory concerned. Thread safety: none; the caller holds a DeviceContext::Scope.
class AddressMap {
 public:
  AddressMap(const CudaDriver& driver, const HandleStore& handles)
      : driver_(driver), handles_(handles) {}

  /// @throws OutOfMemory, SourceError.
  [[nodiscard]] CUdeviceptr reserve(Bytes size);
  /// @throws SourceError; nothing has changed then.
  void unreserve(CUdeviceptr address, Bytes size);

  /// @throws OutOfMemory, SourceError; nothing is mapped then.
  void map(std::span<const Placed> run);
  void map(const Placed& one) { map(std::span(&one, 1)); }
  /// @throws SourceError; everything is mapped as before then.
  void unmap(CUdeviceptr address, Bytes size);
  /// Unmaps, or notes that it is still to be done.
  void unmap_at_last(CUdeviceptr address, Bytes size) noexcept;
  /// Puts `to` where `from` is; both are the same run of addresses and sizes, or one of them is
  /// nothing. After an error `from` is mapped as before. Allocates nothing, if `expect` has made
  /// room.
  [[nodiscard]] CUresult replace(std::span<const Placed> from, std::span<const Placed> to) noexcept;
  /// Gives a device access to what is mapped already: one call for each run. `all` is in the order
  /// of addresses. @throws SourceError; what it was given is taken away then.
  void let_in(CUdevice device, std::span<const Placed> all);
  /// Makes room to note what goes wrong with so many chunks.
  void expect(std::size_t chunks);

  /// Does what is left to do. Returns whether everything is as it should be.
  [[nodiscard]] bool mend() noexcept;
  /// Says what the driver refuses; only after `mend` returned false.
  [[nodiscard]] std::string trouble() const;
  /// Tells whether memory that belongs at an address is missing there.
  [[nodiscard]] bool has_holes() const noexcept { return !holes_.empty(); }

 private:
  struct Stray {
    CUdeviceptr address = 0;
    Bytes size;
  };
  struct Hole {
    Placed placed;
    bool mapped = false;  // only access is missing
  };

  [[nodiscard]] CUresult allow(std::span<const Placed> run) noexcept;
  [[nodiscard]] CUresult place(std::span<const Placed> run, const char** call) noexcept;
  void restore(std::span<const Placed> run) noexcept;

  const CudaDriver& driver_;
  const HandleStore& handles_;
  std::vector<Stray> strays_;  // mapped and should not be
  std::vector<Hole> holes_;    // not mapped and should be
  CUresult refused_ = CUDA_SUCCESS;
};

}  // namespace commensal
