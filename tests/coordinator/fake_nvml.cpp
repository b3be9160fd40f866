// SPDX-License-Identifier: Apache-2.0
// NVML of a machine that nobody has: a plain GPU, one that is divided into two MIG instances, and a
// driver that does not tell everything. What it says is set by the environment of the process.
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalid = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kLost = 15,
};

struct Part {
  const char* uuid;
  const char* name;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
};

constexpr unsigned long long kMiB = 1ULL << 20U;
Part plain{"GPU-11111111-0000-0000-0000-000000000000", "Fake H100", 80000 * kMiB, 500 * kMiB,
           60000 * kMiB};
Part divided{"GPU-22222222-0000-0000-0000-000000000000", "Fake H100", 80000 * kMiB, 500 * kMiB,
             70000 * kMiB};
Part first{"MIG-33333333-0000-0000-0000-000000000000", "Fake H100 MIG 3g.40gb", 40000 * kMiB, 0,
           30000 * kMiB};
Part second{"MIG-44444444-0000-0000-0000-000000000000", "Fake H100 MIG 3g.40gb", 40000 * kMiB, 0,
            40000 * kMiB};

int users = 0;

bool asked(const char* what) {
  const char* const value = std::getenv("FAKE_NVML");
  return value != nullptr && std::string(value).find(what) != std::string::npos;
}

Part* part(void* handle) { return static_cast<Part*>(handle); }

struct MemoryV2 {
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};

int put(const char* text, char* out, unsigned length) {
  if (std::strlen(text) >= length) return kInsufficientSize;
  std::strcpy(out, text);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (asked("no-driver")) return 9;
  ++users;
  return kSuccess;
}
int nvmlShutdown() {
  --users;
  return kSuccess;
}
const char* nvmlErrorString(int result) {
  return result == 9 ? "Driver Not Loaded" : result == kLost ? "GPU is lost" : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  if (users == 0) return kUninitialized;
  *count = asked("no-gpu") ? 0 : 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  if (asked("lost")) return kLost;
  *handle = index == 0 ? &plain : &divided;
  return kSuccess;
}
int nvmlDeviceGetUUID(void* handle, char* out, unsigned length) {
  return put(part(handle)->uuid, out, length);
}
int nvmlDeviceGetName(void* handle, char* out, unsigned length) {
  return put(part(handle)->name, out, length);
}
int nvmlDeviceGetMemoryInfo_v2(void* handle, MemoryV2* memory) {
  if (memory->version != (sizeof(MemoryV2) | (2U << 24U))) return kInvalid;
  if (asked("lost")) return kLost;
  const Part& shown = *part(handle);
  *memory = {memory->version, shown.total, shown.reserved, shown.free,
             shown.total - shown.reserved - shown.free};
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void* handle, unsigned* percent) {
  if (handle != &plain) return kNotSupported;
  percent[0] = asked("overfull") ? 137 : 37;
  percent[1] = 12;
  return kSuccess;
}
int nvmlDeviceGetMigMode(void* handle, unsigned* now, unsigned* pending) {
  if (handle == &plain) return kNotSupported;
  *now = *pending = asked("no-mig") ? 0 : 1;
  return kSuccess;
}
int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return kSuccess;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void*, unsigned index, void** handle) {
  if (index != 0 && index != 4) return kNotFound;  // there are gaps between them
  *handle = index == 0 ? &first : &second;
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process* list) {
  if (handle == &divided) return kNotSupported;
  const unsigned there = asked("crowd") ? 40 : 2;
  const unsigned room = *count;
  *count = there;
  if (room < there) return kInsufficientSize;
  for (unsigned i = 0; i < there; ++i) list[i] = {100 + i, (10 + i) * kMiB, ~0U, ~0U};
  list[1].used = ~0ULL;  // it does not tell
  return kSuccess;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void* handle, unsigned* count, Process* list) {
  if (handle != &plain || *count < 1) return kNotSupported;
  *count = 1;
  list[0] = {100, 25 * kMiB, ~0U, ~0U};
  return kSuccess;
}

}  // extern "C"
