// SPDX-License-Identifier: Apache-2.0
// Memory with an address of its own, look-ups, and the device's reads and writes.
#include "tests/simulated_cuda/core/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "tests/simulated_cuda/core/ledger.h"
#include "tests/simulated_cuda/core/settings.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace commensal::simulated_cuda {
namespace {

/// While it lives, ThreadSanitizer does not look at what this thread reads and writes. Two streams
/// may use the same bytes at the same time, as on a card: a copy that is made while the job writes,
/// and compared afterwards, does so on purpose.
class DeviceAccess {
 public:
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
#ifdef __SANITIZE_THREAD__
  DeviceAccess() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~DeviceAccess() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  DeviceAccess() {}
  ~DeviceAccess() {}
#endif
};

constexpr std::size_t kHostPage = 4096;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

CUresult AddressSpace::add_allocation(CUdeviceptr* address,
                                      std::shared_ptr<PhysicalMemory> memory) {
  const std::size_t bytes = memory->bytes();
  CUdeviceptr start = 0;
  if (const CUresult error = reserve(&start, bytes, 0, 0); error != CUDA_SUCCESS) return error;
  const int allowed = settings_.cpu_access ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* mapped = ::mmap(reinterpret_cast<void*>(start), bytes, allowed, MAP_SHARED | MAP_FIXED,
                        memory->file(), 0);
  const std::unique_lock lock(mutex_);
  reservations_.erase(start);  // programs cannot map there
  if (mapped == MAP_FAILED) {
    ::munmap(reinterpret_cast<void*>(start), bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ::madvise(mapped, bytes, MADV_DONTFORK);
  Allocation made;
  made.bytes = bytes;
  made.memory = std::move(memory);
  made.id = next_id_++;
  allocations_.emplace(start, std::move(made));
  *address = start;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::allocate(CUdeviceptr* address, std::size_t bytes, int device) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUresult error = CUDA_SUCCESS;
  auto memory =
      PhysicalMemory::create(ledger_, round_up(bytes, settings_.granularity), properties, &error);
  if (memory == nullptr) return error;
  return add_allocation(address, std::move(memory));
}

CUresult AddressSpace::deallocate(CUdeviceptr address) {
  Allocation gone;  // destroyed without the lock
  const std::unique_lock lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.kind != Kind::kAllocated) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(reinterpret_cast<void*>(address), found->second.bytes);
  gone = std::move(found->second);
  allocations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::pin(void** address, std::size_t bytes, unsigned flags) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* made = ::mmap(nullptr, round_up(bytes, kHostPage), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::unique_lock lock(mutex_);
  allocations_[number(made)] = {round_up(bytes, kHostPage), Kind::kPinned, nullptr, flags,
                                next_id_++};
  *address = made;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::unpin(void* address) {
  const std::unique_lock lock(mutex_);
  const auto found = allocations_.find(number(address));
  if (found == allocations_.end() || found->second.kind != Kind::kPinned) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(address, found->second.bytes);
  allocations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::add_registration(void* address, std::size_t bytes, unsigned flags) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUdeviceptr start = number(address);
  const std::unique_lock lock(mutex_);
  if (find_locked(start).kind != Kind::kPageable || unknown_from(start) < bytes) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  allocations_[start] = {bytes, Kind::kRegistered, nullptr, flags, next_id_++};
  return CUDA_SUCCESS;
}

CUresult AddressSpace::remove_registration(void* address) {
  const std::unique_lock lock(mutex_);
  const auto found = allocations_.find(number(address));
  if (found == allocations_.end() || found->second.kind != Kind::kRegistered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  allocations_.erase(found);
  return CUDA_SUCCESS;
}

Known AddressSpace::find(CUdeviceptr address) const {
  const std::shared_lock lock(mutex_);
  return find_locked(address);
}

bool AddressSpace::open_to_cpu(CUdeviceptr address) const {
  const std::shared_lock lock(mutex_);
  const auto found = mapping_at(address);
  return found != mappings_.end() && found->second.host != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

Known AddressSpace::find_locked(CUdeviceptr address) const {
  if (const auto found = mapping_at(address); found != mappings_.end()) {
    const Mapping& mapping = found->second;
    const CUmemAllocationProp& made = mapping.memory->properties();
    return {Kind::kMapped,
            found->first,
            mapping.bytes,
            mapping.id,
            mapping.memory->on_device() ? mapping.memory->device() : -1,
            0,
            made.requestedHandleTypes};
  }
  auto found = allocations_.upper_bound(address);
  if (found != allocations_.begin()) {
    --found;
    const Allocation& made = found->second;
    if (address - found->first < made.bytes) {
      return {made.kind,
              found->first,
              made.bytes,
              made.id,
              made.memory == nullptr ? -1 : made.memory->device(),
              made.flags,
              CU_MEM_HANDLE_TYPE_NONE};
    }
  }
  auto hole = reservations_.upper_bound(address);
  if (hole != reservations_.begin()) {
    --hole;
    if (address - hole->first < hole->second) return {Kind::kHole, hole->first, hole->second};
  }
  return {};
}

std::size_t AddressSpace::unknown_from(CUdeviceptr address) const {
  CUdeviceptr next = std::numeric_limits<CUdeviceptr>::max();
  if (const auto found = allocations_.lower_bound(address); found != allocations_.end()) {
    next = std::min(next, found->first);
  }
  if (const auto found = reservations_.lower_bound(address); found != reservations_.end()) {
    next = std::min(next, found->first);
  }
  return next - address;
}

AddressSpace::Piece AddressSpace::reach(CUdeviceptr address, int device, bool write) const {
  if (const auto found = mapping_at(address); found != mappings_.end()) {
    const Mapping& mapping = found->second;
    const PhysicalMemory& memory = *mapping.memory;
    CUmemAccess_flags allowed = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (const auto& [number, flags] : mapping.devices) {
      const bool counts =
          device < 0 ? !memory.on_device() || number == memory.device() : number == device;
      if (counts) allowed = std::max(allowed, flags);
    }
    const CUmemAccess_flags needed =
        write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    if (allowed < needed) return {};
    const std::size_t into = address - found->first;
    return {memory.view() + into, mapping.bytes - into};
  }
  const Known known = find_locked(address);
  auto* const itself = reinterpret_cast<std::byte*>(address);
  const std::size_t into = address - known.start;
  switch (known.kind) {
    case Kind::kAllocated:
      return {allocations_.at(known.start).memory->view() + into, known.bytes - into};
    case Kind::kPinned:
    case Kind::kRegistered: return {itself, known.bytes - into};
    case Kind::kPageable: return {itself, unknown_from(address)};
    default: return {};
  }
}

template <typename Step>
bool AddressSpace::each_piece(CUdeviceptr address, std::size_t bytes, int device, bool write,
                              Step step) const {
  while (bytes > 0) {
    Piece piece = reach(address, device, write);
    if (piece.at == nullptr) return false;
    piece.bytes = std::min(piece.bytes, bytes);
    step(piece);
    address += piece.bytes;
    bytes -= piece.bytes;
  }
  return true;
}

bool AddressSpace::accessible(CUdeviceptr address, std::size_t bytes, int device,
                              bool write) const {
  const std::shared_lock lock(mutex_);
  return accessible_locked(address, bytes, device, write);
}

bool AddressSpace::accessible_locked(CUdeviceptr address, std::size_t bytes, int device,
                                     bool write) const {
  if (address == 0) return false;
  const Known known = find_locked(address);
  if (known.kind == Kind::kPageable) return unknown_from(address) >= bytes;
  if (known.kind != Kind::kMapped) {  // no copy runs over the end of an allocation
    return known.kind != Kind::kHole && known.bytes - (address - known.start) >= bytes;
  }
  return each_piece(address, bytes, device, write, [](const Piece&) {});
}

bool AddressSpace::copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, int device) const {
  const std::shared_lock lock(mutex_);
  const DeviceAccess unordered;
  if (!accessible_locked(to, bytes, device, true)) return false;
  if (!accessible_locked(from, bytes, device, false)) return false;
  return each_piece(to, bytes, device, true, [&](const Piece& target) {
    std::byte* at = target.at;
    (void)each_piece(from, target.bytes, device, false, [&](const Piece& source) {
      std::memmove(at, source.at, source.bytes);
      at += source.bytes;
      from += source.bytes;
    });
  });
}

bool AddressSpace::fill(CUdeviceptr to, std::uint32_t pattern, std::size_t width, std::size_t bytes,
                        int device) const {
  const std::shared_lock lock(mutex_);
  const DeviceAccess unordered;
  if (!accessible_locked(to, bytes, device, true)) return false;
  return each_piece(to, bytes, device, true, [&](const Piece& piece) {
    if (width == 1) {
      std::memset(piece.at, static_cast<int>(pattern & 0xff), piece.bytes);
      return;
    }
    for (std::size_t done = 0; done < piece.bytes; done += width) {
      std::memcpy(piece.at + done, &pattern, width);
    }
  });
}

bool AddressSpace::store(CUdeviceptr to, std::uint64_t value, std::size_t width, int device) const {
  const std::shared_lock lock(mutex_);
  if (!accessible_locked(to, width, device, true)) return false;
  std::byte* at = reach(to, device, true).at;
  if (width == 4) {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(at), static_cast<std::uint32_t>(value),
                     __ATOMIC_SEQ_CST);
  } else {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(at), value, __ATOMIC_SEQ_CST);
  }
  return true;
}

bool AddressSpace::load(CUdeviceptr from, std::uint64_t* value, std::size_t width,
                        int device) const {
  const std::shared_lock lock(mutex_);
  if (!accessible_locked(from, width, device, false)) return false;
  const std::byte* at = reach(from, device, false).at;
  *value = width == 4
               ? __atomic_load_n(reinterpret_cast<const std::uint32_t*>(at), __ATOMIC_SEQ_CST)
               : __atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_SEQ_CST);
  return true;
}

}  // namespace commensal::simulated_cuda
