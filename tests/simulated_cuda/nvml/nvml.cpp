// SPDX-License-Identifier: Apache-2.0
// The simulated machine as NVML shows it: all devices by identity, and who holds how much of them.
//
// NVML's header comes with a driver only, so what programs ask for is declared here as NVIDIA's
// manual documents it.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/simulated_cuda/core/device.h"
#include "tests/simulated_cuda/core/process.h"

using commensal::simulated_cuda::device_uuid_text;
using commensal::simulated_cuda::kDeviceName;
using commensal::simulated_cuda::kDriverVersion;
using commensal::simulated_cuda::Ledger;
using commensal::simulated_cuda::pci_bus_id;
using commensal::simulated_cuda::Process;

namespace {

enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
};

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct MemoryV2 {
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};

struct ProcessV1 {
  unsigned process;
  unsigned long long used;
};

struct ProcessV2 {
  unsigned process;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};

std::atomic<int> users{0};

/// A device's handle is its physical number plus one.
using Handle = void*;

int number_of(Handle handle) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(handle)) - 1;
}

int devices() { return Process::get().settings.devices; }

Result check(Handle handle) {
  if (users == 0) return kUninitialized;
  const int number = number_of(handle);
  return number >= 0 && number < devices() ? kSuccess : kInvalidArgument;
}

Result put_text(const std::string& text, char* to, unsigned length) {
  if (to == nullptr) return kInvalidArgument;
  if (length <= text.size()) return kInsufficientSize;
  std::strcpy(to, text.c_str());
  return kSuccess;
}

template <typename Matches>
Result find_device(Handle* handle, Matches matches) {
  if (users == 0) return kUninitialized;
  for (int number = 0; number < devices(); ++number) {
    if (!matches(number)) continue;
    *handle = reinterpret_cast<Handle>(static_cast<std::intptr_t>(number) + 1);
    return kSuccess;
  }
  return kNotFound;
}

template <typename Info, typename Fill>
Result put_processes(Handle handle, unsigned* count, Info* infos, Fill fill) {
  if (const Result error = check(handle); error != kSuccess) return error;
  if (count == nullptr) return kInvalidArgument;
  const auto shares = Process::get().ledger.physical_shares(number_of(handle));
  const unsigned room = infos == nullptr ? 0 : *count;
  *count = static_cast<unsigned>(shares.size());
  if (shares.size() > room) return kInsufficientSize;
  std::ranges::transform(shares, infos, fill);
  return kSuccess;
}

ProcessV2 describe(const Ledger::Share& share) {
  constexpr unsigned kNoInstance = 0xffff'ffff;
  return {static_cast<unsigned>(share.process), share.bytes, kNoInstance, kNoInstance};
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++users;
  return kSuccess;
}
int nvmlInit() { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

int nvmlShutdown() {
  if (users == 0) return kUninitialized;
  --users;
  return kSuccess;
}

const char* nvmlErrorString(int result) {
  switch (result) {
    case kSuccess: return "Success";
    case kUninitialized: return "Uninitialized";
    case kInvalidArgument: return "Invalid Argument";
    case kNotSupported: return "Not Supported";
    case kNotFound: return "Not Found";
    case kInsufficientSize: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return users == 0 ? kUninitialized : put_text("580.0.simulated", text, length);
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = kDriverVersion;
  return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  if (users == 0) return kUninitialized;
  *count = static_cast<unsigned>(devices());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  const Result found =
      find_device(handle, [=](int number) { return static_cast<unsigned>(number) == index; });
  return found == kNotFound ? kInvalidArgument : found;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  return find_device(handle, [=](int number) { return device_uuid_text(number) == uuid; });
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Handle* handle) {
  // Domains have four or eight digits.
  const auto ends_alike = [&](const std::string& own) {
    const std::string given{id};
    return given.size() >= own.size() &&
           given.compare(given.size() - own.size(), own.size(), own) == 0;
  };
  return find_device(handle, [&](int number) { return ends_alike(pci_bus_id(number)); });
}

int nvmlDeviceGetIndex(Handle handle, unsigned* index) {
  if (const Result error = check(handle); error != kSuccess) return error;
  *index = static_cast<unsigned>(number_of(handle));
  return kSuccess;
}

int nvmlDeviceGetUUID(Handle handle, char* text, unsigned length) {
  if (const Result error = check(handle); error != kSuccess) return error;
  return put_text(device_uuid_text(number_of(handle)), text, length);
}

int nvmlDeviceGetName(Handle handle, char* text, unsigned length) {
  if (const Result error = check(handle); error != kSuccess) return error;
  return put_text(kDeviceName, text, length);
}

int nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
  if (const Result error = check(handle); error != kSuccess) return error;
  Ledger& ledger = Process::get().ledger;
  memory->total = ledger.capacity();
  memory->used = ledger.physical_used(number_of(handle));
  memory->free = memory->total - memory->used;
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2* memory) {
  if (const Result error = check(handle); error != kSuccess) return error;
  Memory plain{};
  if (const int error = nvmlDeviceGetMemoryInfo(handle, &plain); error != kSuccess) return error;
  memory->total = plain.total;
  memory->reserved = 0;
  memory->free = plain.free;
  memory->used = plain.used;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count, ProcessV1* infos) {
  return put_processes(handle, count, infos, [](const Ledger::Share& share) {
    return ProcessV1{static_cast<unsigned>(share.process), share.bytes};
  });
}

int nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count, ProcessV2* infos) {
  return put_processes(handle, count, infos, describe);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, ProcessV2* infos) {
  return put_processes(handle, count, infos, describe);
}

// PyTorch looks these up; the devices have no links to each other.
int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return kNotSupported; }
int nvmlDeviceGetMigMode(Handle, unsigned*, unsigned*) { return kNotSupported; }

}  // extern "C"
