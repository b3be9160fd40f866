// SPDX-License-Identifier: Apache-2.0
// The addresses of a process that the simulated driver knows, and what may be done at them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>

#include "tests/simulated_cuda/core/physical_memory.h"

namespace commensal::simulated_cuda {

struct Settings;

/// What kind of memory an address belongs to.
enum class Kind {
  kPageable,    ///< unknown to the driver
  kHole,        ///< reserved, nothing mapped
  kMapped,      ///< a chunk mapped by `cuMemMap`, on a device or on the host
  kAllocated,   ///< `cuMemAlloc`
  kPinned,      ///< `cuMemHostAlloc`
  kRegistered,  ///< `cuMemHostRegister`
};

/// What the driver knows about an address.
struct Known {
  Kind kind = Kind::kPageable;
  CUdeviceptr start = 0;  ///< of the mapping, allocation or hole
  std::size_t bytes = 0;  ///< from `start`
  std::uint64_t id = 0;   ///< never used twice
  int device = -1;        ///< where it lives; -1: on the host
  unsigned flags = 0;     ///< as given when pinned or registered
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;
};

/// Reservations, mappings with their access rights, allocations and pinned host memory.
///
/// All checks that the driver's manual documents are made here; an error leaves everything as it
/// was. Any member may be called from any thread.
class AddressSpace {
 public:
  AddressSpace(const Settings& settings, Ledger& ledger) : settings_(settings), ledger_(ledger) {}

  // Virtual memory management; the functions that programs call have the same names.
  CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                   CUdeviceptr hint);
  CUresult free_reservation(CUdeviceptr address, std::size_t bytes);
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                  const CUmemAllocationProp& properties);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
               CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, std::size_t bytes);
  CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* rights,
                      std::size_t count);
  CUresult access(unsigned long long* flags, const CUmemLocation& location, CUdeviceptr address);
  CUresult retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address);
  CUresult properties(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle);
  CUresult export_handle(int* file, CUmemGenericAllocationHandle handle,
                         CUmemAllocationHandleType type);
  CUresult import_handle(CUmemGenericAllocationHandle* handle, int file);
  CUresult check_properties(const CUmemAllocationProp& properties) const;

  // Memory with an address of its own.
  CUresult allocate(CUdeviceptr* address, std::size_t bytes, int device);
  CUresult deallocate(CUdeviceptr address);
  CUresult pin(void** address, std::size_t bytes, unsigned flags);
  CUresult unpin(void* address);
  CUresult add_registration(void* address, std::size_t bytes, unsigned flags);
  CUresult remove_registration(void* address);

  [[nodiscard]] Known find(CUdeviceptr address) const;

  /// Says whether the CPU has a right to the chunk that is mapped here.
  [[nodiscard]] bool open_to_cpu(CUdeviceptr address) const;

  /// Says whether work of `device` may read (write) these bytes: wholly known or wholly pageable,
  /// mapped, access granted. @param device  -1: access by the memory's own device is enough.
  [[nodiscard]] bool accessible(CUdeviceptr address, std::size_t bytes, int device,
                                bool write) const;

  /// Copies, fills or reads and writes at once, as the device would; in one go, nothing is
  /// unmapped meanwhile. @return false if an address is not accessible (any more).
  [[nodiscard]] bool copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, int device) const;
  [[nodiscard]] bool fill(CUdeviceptr to, std::uint32_t pattern, std::size_t width,
                          std::size_t bytes, int device) const;
  [[nodiscard]] bool store(CUdeviceptr to, std::uint64_t value, std::size_t width,
                           int device) const;
  [[nodiscard]] bool load(CUdeviceptr from, std::uint64_t* value, std::size_t width,
                          int device) const;

 private:
  struct Mapping {
    std::size_t bytes = 0;
    std::shared_ptr<PhysicalMemory> memory;
    CUmemGenericAllocationHandle handle = 0;
    std::map<int, CUmemAccess_flags> devices;  // access rights of each device
    CUmemAccess_flags host = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    std::uint64_t id = 0;
  };
  struct Allocation {
    std::size_t bytes = 0;
    Kind kind = Kind::kAllocated;
    std::shared_ptr<PhysicalMemory> memory;  // of kAllocated
    unsigned flags = 0;
    std::uint64_t id = 0;
  };
  struct Chunk {
    std::shared_ptr<PhysicalMemory> memory;
    std::size_t references = 0;
  };
  /// Bytes that lie together: where the driver reaches them, and how many.
  struct Piece {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
  };
  using Mappings = std::map<CUdeviceptr, Mapping>;

  [[nodiscard]] bool aligned(std::size_t value) const;
  [[nodiscard]] bool reserved(CUdeviceptr address, std::size_t bytes) const;
  [[nodiscard]] Mappings::const_iterator mapping_at(CUdeviceptr address) const;
  [[nodiscard]] bool covers_whole_mappings(CUdeviceptr address, std::size_t bytes) const;
  [[nodiscard]] CUresult check_rights(CUdeviceptr address, std::size_t bytes,
                                      const CUmemAccessDesc& right) const;
  void protect(CUdeviceptr address, const Mapping& mapping) const;
  [[nodiscard]] Piece reach(CUdeviceptr address, int device, bool write) const;
  [[nodiscard]] Known find_locked(CUdeviceptr address) const;
  [[nodiscard]] bool accessible_locked(CUdeviceptr address, std::size_t bytes, int device,
                                       bool write) const;
  /// Bytes from `address` on about which the driver knows nothing.
  [[nodiscard]] std::size_t unknown_from(CUdeviceptr address) const;
  [[nodiscard]] std::pair<CUmemGenericAllocationHandle, std::shared_ptr<PhysicalMemory>>
  known_memory(std::uint64_t identity) const;
  CUresult add_allocation(CUdeviceptr* address, std::shared_ptr<PhysicalMemory> memory);
  template <typename Step>
  bool each_piece(CUdeviceptr address, std::size_t bytes, int device, bool write, Step step) const;

  const Settings& settings_;
  Ledger& ledger_;
  mutable std::shared_mutex mutex_;  // guards all that follows
  std::map<CUdeviceptr, std::size_t> reservations_;
  Mappings mappings_;
  std::map<CUdeviceptr, Allocation> allocations_;
  std::map<CUmemGenericAllocationHandle, Chunk> chunks_;
  std::uint64_t next_id_ = 1;
};

}  // namespace commensal::simulated_cuda
