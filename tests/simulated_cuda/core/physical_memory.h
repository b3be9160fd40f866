// SPDX-License-Identifier: Apache-2.0
// A piece of a simulated device's (or the host's) memory, without an address of its own.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace commensal::simulated_cuda {

class Ledger;

/// Bytes on a memfd: they can be mapped any number of times, at any address, in any process.
///
/// Counted in the ledger from creation to destruction if located on a device. The driver's own
/// copies go through `view()`, so that the addresses that programs know can refuse the CPU.
/// Immutable; any member may be called from any thread.
class PhysicalMemory {
 public:
  /// Takes memory at `location` (device, host or host-NUMA node).
  /// @return the memory, or null with `*error` set: out of memory, operating system.
  static std::shared_ptr<PhysicalMemory> create(Ledger& ledger, std::size_t bytes,
                                                const CUmemAllocationProp& properties,
                                                CUresult* error);

  /// Takes over the descriptor of memory that `create` made in any process of the machine.
  static std::shared_ptr<PhysicalMemory> adopt(Ledger& ledger, int file, CUresult* error);

  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const CUmemAllocationProp& properties() const noexcept { return properties_; }
  [[nodiscard]] bool on_device() const noexcept;
  [[nodiscard]] int device() const noexcept { return properties_.location.id; }
  [[nodiscard]] std::byte* view() const noexcept { return view_; }
  [[nodiscard]] int file() const noexcept { return file_; }

  /// Returns the identity of the memory behind a descriptor, 0 if it is not open.
  [[nodiscard]] static std::uint64_t identity_of(int file) noexcept;

  /// The same number in every process that has this memory; unlike that of any other memory.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }

  /// Returns a descriptor that another process can adopt; -1 with `*error` set if there is none.
  [[nodiscard]] int exported(CUresult* error);

 private:
  PhysicalMemory(Ledger& ledger, int file, std::size_t bytes, std::byte* view,
                 const CUmemAllocationProp& properties);

  Ledger& ledger_;
  const int file_;
  const std::size_t bytes_;
  std::byte* const view_;
  const CUmemAllocationProp properties_;
  const std::uint64_t identity_;
  bool shared_ = false;  // counted as an exported chunk; set before a second holder can exist
};

}  // namespace commensal::simulated_cuda
