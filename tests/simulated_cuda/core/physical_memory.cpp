// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/physical_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/simulated_cuda/core/ledger.h"

namespace commensal::simulated_cuda {
namespace {

// What another process must know stands in the memfd's name, which travels with the descriptor.
constexpr const char* kNameFormat = "commensal-simulated-cuda:%d:%d:%d:%d";

std::string name_for(const Ledger& ledger, const CUmemAllocationProp& properties) {
  const bool on_device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int number = on_device ? ledger.physical(properties.location.id) : 0;
  char name[96];
  std::snprintf(name, sizeof name, kNameFormat, static_cast<int>(properties.location.type), number,
                static_cast<int>(properties.requestedHandleTypes),
                static_cast<int>(properties.allocFlags.gpuDirectRDMACapable));
  return name;
}

bool properties_of(int file, CUmemAllocationProp* properties) {
  char target[128] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  if (::readlink(link.c_str(), target, sizeof target - 1) < 0) return false;
  const std::string format = std::string{"/memfd:"} + kNameFormat;
  int type = 0;
  int id = 0;
  int handles = 0;
  int rdma = 0;
  if (std::sscanf(target, format.c_str(), &type, &id, &handles, &rdma) != 4) return false;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handles);
  properties->location.type = static_cast<CUmemLocationType>(type);
  properties->location.id = id;
  properties->allocFlags.gpuDirectRDMACapable = static_cast<unsigned char>(rdma);
  return true;
}

std::byte* view_of(int file, std::size_t bytes) {
  void* view = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (view == MAP_FAILED) return nullptr;
  ::madvise(view, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(view);
}

}  // namespace

PhysicalMemory::PhysicalMemory(Ledger& ledger, int file, std::size_t bytes, std::byte* view,
                               const CUmemAllocationProp& properties)
    : ledger_(ledger),
      file_(file),
      bytes_(bytes),
      view_(view),
      properties_(properties),
      identity_(identity_of(file)) {}

std::uint64_t PhysicalMemory::identity_of(int file) noexcept {
  struct ::stat status {};
  return ::fstat(file, &status) == 0 ? status.st_ino : 0;
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::create(Ledger& ledger, std::size_t bytes,
                                                       const CUmemAllocationProp& properties,
                                                       CUresult* error) {
  const bool on_device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  *error = CUDA_ERROR_OUT_OF_MEMORY;
  if (on_device && !ledger.take(properties.location.id, bytes)) return nullptr;
  const int file = ::memfd_create(name_for(ledger, properties).c_str(), MFD_CLOEXEC);
  std::byte* view = nullptr;
  if (file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0) view = view_of(file, bytes);
  if (view == nullptr) {
    if (file >= 0) ::close(file);
    if (on_device) ledger.give_back(properties.location.id, bytes);
    *error = CUDA_ERROR_OPERATING_SYSTEM;
    return nullptr;
  }
  *error = CUDA_SUCCESS;
  return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(ledger, file, bytes, view, properties));
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::adopt(Ledger& ledger, int file, CUresult* error) {
  CUmemAllocationProp properties;
  struct ::stat status {};
  *error = CUDA_ERROR_INVALID_VALUE;
  if (::fstat(file, &status) != 0 || !properties_of(file, &properties)) return nullptr;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const bool on_device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_device) properties.location.id = ledger.visible(properties.location.id);
  *error = CUDA_ERROR_INVALID_DEVICE;
  if (properties.location.id < 0) return nullptr;
  *error = CUDA_ERROR_OUT_OF_MEMORY;
  if (on_device && !ledger.hold(properties.location.id, bytes, status.st_ino)) return nullptr;
  const int own = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
  std::byte* view = own >= 0 ? view_of(own, bytes) : nullptr;
  if (view == nullptr) {
    if (own >= 0) ::close(own);
    if (on_device) ledger.let_go(status.st_ino);
    *error = CUDA_ERROR_OPERATING_SYSTEM;
    return nullptr;
  }
  *error = CUDA_SUCCESS;
  std::shared_ptr<PhysicalMemory> memory(new PhysicalMemory(ledger, own, bytes, view, properties));
  memory->shared_ = true;
  return memory;
}

PhysicalMemory::~PhysicalMemory() {
  ::munmap(view_, bytes_);
  ::close(file_);
  if (!on_device()) return;
  if (shared_) {
    ledger_.let_go(identity_);
  } else {
    ledger_.give_back(device(), bytes_);
  }
}

bool PhysicalMemory::on_device() const noexcept {
  return properties_.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

int PhysicalMemory::exported(CUresult* error) {
  if (on_device() && !shared_) {
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    if (!ledger_.share(device(), bytes_, identity_)) return -1;
    shared_ = true;
  }
  const int file = ::fcntl(file_, F_DUPFD_CLOEXEC, 0);
  *error = file < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
  return file;
}

}  // namespace commensal::simulated_cuda
