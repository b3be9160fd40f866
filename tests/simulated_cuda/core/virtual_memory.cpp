// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: the half of AddressSpace that programs see as cuMem...
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "tests/simulated_cuda/core/address_space.h"
#include "tests/simulated_cuda/core/ledger.h"
#include "tests/simulated_cuda/core/settings.h"

namespace commensal::simulated_cuda {
namespace {

constexpr std::size_t kHostPage = 4096;

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

bool on_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

int protection(CUmemAccess_flags flags) {
  switch (flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_READ: return PROT_READ;
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE: return PROT_READ | PROT_WRITE;
    default: return PROT_NONE;
  }
}

}  // namespace

bool AddressSpace::aligned(std::size_t value) const { return value % settings_.granularity == 0; }

CUresult AddressSpace::reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                               CUdeviceptr hint) {
  if (bytes == 0 || bytes % kHostPage != 0 || hint % kHostPage != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (alignment != 0 && !std::has_single_bit(alignment)) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t align = std::max(alignment, settings_.granularity);
  const std::size_t room = bytes + align;
  if (room < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* found =
      ::mmap(pointer(hint), room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<CUdeviceptr>(found);
  const CUdeviceptr start = (begin + align - 1) / align * align;
  if (start > begin) ::munmap(found, start - begin);
  ::munmap(pointer(start + bytes), begin + room - start - bytes);
  const std::unique_lock lock(mutex_);
  reservations_[start] = bytes;
  *address = start;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::free_reservation(CUdeviceptr address, std::size_t bytes) {
  const std::unique_lock lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(pointer(address), bytes);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::check_properties(const CUmemAllocationProp& properties) const {
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const CUmemLocation& location = properties.location;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    const bool known = location.id >= 0 && location.id < static_cast<int>(settings_.visible.size());
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  }
  if (!on_host(location)) return CUDA_ERROR_INVALID_VALUE;
  if (!settings_.host_handles) return CUDA_ERROR_NOT_SUPPORTED;
  if (location.type == CU_MEM_LOCATION_TYPE_HOST) {
    const bool plain = properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE;
    return plain ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  return location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // one NUMA node
}

CUresult AddressSpace::create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                              const CUmemAllocationProp& properties) {
  if (bytes == 0 || !aligned(bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_properties(properties); error != CUDA_SUCCESS) return error;
  const int handles = properties.requestedHandleTypes;
  if ((handles & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;  // no fabric, no Windows
  }
  CUresult error = CUDA_SUCCESS;
  auto memory = PhysicalMemory::create(ledger_, bytes, properties, &error);
  if (memory == nullptr) return error;
  const std::unique_lock lock(mutex_);
  *handle = next_id_++ << 8;
  chunks_[*handle] = {std::move(memory), 1};
  return CUDA_SUCCESS;
}

CUresult AddressSpace::release(CUmemGenericAllocationHandle handle) {
  std::shared_ptr<PhysicalMemory> last;  // destroyed without the lock
  const std::unique_lock lock(mutex_);
  const auto found = chunks_.find(handle);
  if (found == chunks_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) {
    last = std::move(found->second.memory);
    chunks_.erase(found);
  }
  return CUDA_SUCCESS;
}

bool AddressSpace::reserved(CUdeviceptr address, std::size_t bytes) const {
  auto found = reservations_.upper_bound(address);
  if (found == reservations_.begin()) return false;
  --found;
  return bytes <= found->second && address - found->first <= found->second - bytes;
}

AddressSpace::Mappings::const_iterator AddressSpace::mapping_at(CUdeviceptr address) const {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return mappings_.end();
  --found;
  return address - found->first < found->second.bytes ? found : mappings_.end();
}

CUresult AddressSpace::map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                           CUmemGenericAllocationHandle handle) {
  if (bytes == 0 || !aligned(address)) return CUDA_ERROR_INVALID_VALUE;
  const std::unique_lock lock(mutex_);
  const auto chunk = chunks_.find(handle);
  if (chunk == chunks_.end()) return CUDA_ERROR_INVALID_VALUE;
  // A card's answer to any other piece of the allocation than the whole of it.
  if (offset != 0 || bytes != chunk->second.memory->bytes()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!reserved(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto next = mappings_.lower_bound(address);
  const bool overlaps = (next != mappings_.end() && next->first < address + bytes) ||
                        mapping_at(address) != mappings_.end();
  if (overlaps) return CUDA_ERROR_INVALID_VALUE;
  void* mapped = ::mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                        chunk->second.memory->file(), 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;  // the reservation is still there
  ::madvise(mapped, bytes, MADV_DONTFORK);
  Mapping made;
  made.bytes = bytes;
  made.memory = chunk->second.memory;
  made.handle = handle;
  made.id = next_id_++;
  mappings_.emplace(address, std::move(made));
  return CUDA_SUCCESS;
}

bool AddressSpace::covers_whole_mappings(CUdeviceptr address, std::size_t bytes) const {
  CUdeviceptr at = address;
  for (auto found = mappings_.find(address); found != mappings_.end() && found->first == at;
       ++found) {
    at += found->second.bytes;
    if (at >= address + bytes) return at == address + bytes;
  }
  return false;
}

CUresult AddressSpace::unmap(CUdeviceptr address, std::size_t bytes) {
  Mappings gone;  // destroyed without the lock: the last user of memory frees it
  const std::unique_lock lock(mutex_);
  if (bytes == 0 || !covers_whole_mappings(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  void* hole = ::mmap(pointer(address), bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (hole == MAP_FAILED) return CUDA_ERROR_OPERATING_SYSTEM;
  for (auto found = mappings_.find(address);
       found != mappings_.end() && found->first < address + bytes;) {
    gone.insert(mappings_.extract(found++));
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::check_rights(CUdeviceptr address, std::size_t bytes,
                                    const CUmemAccessDesc& right) const {
  const bool known_flags = right.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                           right.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                           right.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (!known_flags) return CUDA_ERROR_INVALID_VALUE;
  if (right.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    const bool known =
        right.location.id >= 0 && right.location.id < static_cast<int>(settings_.visible.size());
    if (!known) return CUDA_ERROR_INVALID_DEVICE;
    if (settings_.peer_access) return CUDA_SUCCESS;
    for (auto found = mappings_.find(address);
         found != mappings_.end() && found->first < address + bytes; ++found) {
      const PhysicalMemory& memory = *found->second.memory;
      if (memory.on_device() && memory.device() != right.location.id) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
      }
    }
    return CUDA_SUCCESS;
  }
  if (!on_host(right.location)) return CUDA_ERROR_INVALID_VALUE;
  for (auto found = mappings_.find(address);
       found != mappings_.end() && found->first < address + bytes; ++found) {
    // The CPU's rights are only for memory that is located on the host.
    if (found->second.memory->on_device()) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void AddressSpace::protect(CUdeviceptr address, const Mapping& mapping) const {
  CUmemAccess_flags flags = mapping.host;
  if (settings_.cpu_access) {
    for (const auto& [device, allowed] : mapping.devices) flags = std::max(flags, allowed);
  }
  ::mprotect(pointer(address), mapping.bytes, protection(flags));
}

CUresult AddressSpace::set_access(CUdeviceptr address, std::size_t bytes,
                                  const CUmemAccessDesc* rights, std::size_t count) {
  if (rights == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::unique_lock lock(mutex_);
  if (bytes == 0 || !covers_whole_mappings(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const CUresult error = check_rights(address, bytes, rights[i]);
    if (error != CUDA_SUCCESS) return error;
  }
  for (auto found = mappings_.find(address);
       found != mappings_.end() && found->first < address + bytes; ++found) {
    for (std::size_t i = 0; i < count; ++i) {
      if (on_host(rights[i].location)) {
        found->second.host = rights[i].flags;
      } else {
        found->second.devices[rights[i].location.id] = rights[i].flags;
      }
    }
    protect(found->first, found->second);
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::access(unsigned long long* flags, const CUmemLocation& location,
                              CUdeviceptr address) {
  const std::shared_lock lock(mutex_);
  const auto found = mapping_at(address);
  if (found == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (on_host(location)) {
    *flags = found->second.host;
    return CUDA_SUCCESS;
  }
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (location.id < 0 || location.id >= static_cast<int>(settings_.visible.size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const auto right = found->second.devices.find(location.id);
  *flags = right == found->second.devices.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : right->second;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
  const std::unique_lock lock(mutex_);
  const auto found = mapping_at(address);
  if (found == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  Chunk& chunk = chunks_[found->second.handle];  // made again if all references were released
  chunk.memory = found->second.memory;
  ++chunk.references;
  *handle = found->second.handle;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::properties(CUmemAllocationProp* properties,
                                  CUmemGenericAllocationHandle handle) {
  const std::shared_lock lock(mutex_);
  const auto found = chunks_.find(handle);
  if (found == chunks_.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = found->second.memory->properties();
  return CUDA_SUCCESS;
}

CUresult AddressSpace::export_handle(int* file, CUmemGenericAllocationHandle handle,
                                     CUmemAllocationHandleType type) {
  const std::unique_lock lock(mutex_);
  const auto found = chunks_.find(handle);
  if (found == chunks_.end()) return CUDA_ERROR_INVALID_VALUE;
  PhysicalMemory& memory = *found->second.memory;
  const bool asked_for = (memory.properties().requestedHandleTypes & type) != 0;
  if (!asked_for || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult error = CUDA_SUCCESS;
  *file = memory.exported(&error);
  return error;
}

std::pair<CUmemGenericAllocationHandle, std::shared_ptr<PhysicalMemory>> AddressSpace::known_memory(
    std::uint64_t identity) const {
  for (const auto& [handle, chunk] : chunks_) {
    if (chunk.memory->identity() == identity) return {handle, chunk.memory};
  }
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.memory->identity() == identity) return {mapping.handle, mapping.memory};
  }
  return {0, nullptr};
}

CUresult AddressSpace::import_handle(CUmemGenericAllocationHandle* handle, int file) {
  const std::unique_lock lock(mutex_);
  // Memory of this very process comes back under the handle that it has.
  auto [found, memory] = known_memory(PhysicalMemory::identity_of(file));
  if (memory == nullptr) {
    CUresult error = CUDA_SUCCESS;
    memory = PhysicalMemory::adopt(ledger_, file, &error);
    if (memory == nullptr) return error;
    found = next_id_++ << 8;
  }
  Chunk& chunk = chunks_[found];
  chunk.memory = std::move(memory);
  ++chunk.references;
  *handle = found;
  return CUDA_SUCCESS;
}

}  // namespace commensal::simulated_cuda
