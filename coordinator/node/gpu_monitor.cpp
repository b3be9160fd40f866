// SPDX-License-Identifier: Apache-2.0
// NVML, without its header: that comes with a driver only. The declarations follow NVIDIA's manual.
#include "coordinator/node/gpu_monitor.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace commensal::node {
namespace {

constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned kMigEnabled = 1;
constexpr unsigned long long kNotTold = ~0ULL;
constexpr std::size_t kTextSize = 96;

using Handle = struct OpaqueDevice*;

struct MemoryV2 {
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
constexpr unsigned kMemoryV2 = static_cast<unsigned>(sizeof(MemoryV2)) | (2U << 24U);

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};

struct Utilization {
  unsigned gpu;  // percent
  unsigned memory;
};

using ReadProcesses = int (*)(Handle, unsigned*, Process*);

// The library's own types have other names: a sanitizer that compares them must not look.
#if defined(__clang__)
#define COMMENSAL_FOREIGN_CALL __attribute__((no_sanitize("function")))
#else
#define COMMENSAL_FOREIGN_CALL
#endif
template <typename Result, typename... Parameters>
COMMENSAL_FOREIGN_CALL Result call(Result (*function)(Parameters...),
                                   std::type_identity_t<Parameters>... arguments) {
  return function(arguments...);
}

struct Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, Handle*) = nullptr;
  int (*uuid)(Handle, char*, unsigned) = nullptr;
  int (*name)(Handle, char*, unsigned) = nullptr;
  int (*memory)(Handle, MemoryV2*) = nullptr;
  // What a driver may lack.
  int (*mig_mode)(Handle, unsigned*, unsigned*) = nullptr;
  int (*most_instances)(Handle, unsigned*) = nullptr;
  int (*instance)(Handle, unsigned, Handle*) = nullptr;
  int (*utilization)(Handle, Utilization*) = nullptr;
  std::array<ReadProcesses, 3> processes{};  // of CUDA, of MPS clients, of graphics
};

class Library {
 public:
  explicit Library(const std::string& name)
      : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    if (handle_ == nullptr) throw std::runtime_error("cannot load " + name);
    try {
      find(functions_.init, "nvmlInit_v2");
      find(functions_.shutdown, "nvmlShutdown");
      find(functions_.error, "nvmlErrorString");
      find(functions_.count, "nvmlDeviceGetCount_v2");
      find(functions_.by_index, "nvmlDeviceGetHandleByIndex_v2");
      find(functions_.uuid, "nvmlDeviceGetUUID");
      find(functions_.name, "nvmlDeviceGetName");
      find(functions_.memory, "nvmlDeviceGetMemoryInfo_v2");
      find_any(functions_.mig_mode, "nvmlDeviceGetMigMode");
      find_any(functions_.most_instances, "nvmlDeviceGetMaxMigDeviceCount");
      find_any(functions_.instance, "nvmlDeviceGetMigDeviceHandleByIndex");
      find_any(functions_.utilization, "nvmlDeviceGetUtilizationRates");
      find_any(functions_.processes[0], "nvmlDeviceGetComputeRunningProcesses_v3");
      find_any(functions_.processes[1], "nvmlDeviceGetMPSComputeRunningProcesses_v3");
      find_any(functions_.processes[2], "nvmlDeviceGetGraphicsRunningProcesses_v3");
      check(call(functions_.init), "nvmlInit");
    } catch (...) {
      ::dlclose(handle_);
      throw;
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    (void)call(functions_.shutdown);
    ::dlclose(handle_);
  }

  [[nodiscard]] const Functions& functions() const noexcept { return functions_; }

  void check(int result, const char* what) const {
    if (result == kSuccess) return;
    const char* const text = call(functions_.error, result);
    throw std::runtime_error(std::string{what} + ": " + (text == nullptr ? "unknown" : text) +
                             " (" + std::to_string(result) + ")");
  }

 private:
  template <typename Function>
  void find_any(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
  }
  template <typename Function>
  void find(Function& function, const char* name) {
    find_any(function, name);
    if (function == nullptr) throw std::runtime_error(std::string{"NVML lacks "} + name);
  }

  void* handle_;
  Functions functions_;
};

class Nvml final : public GpuMonitor {
 public:
  explicit Nvml(std::string library) : name_(std::move(library)) {}

  std::vector<GpuFacts> all() override {
    std::vector<GpuFacts> found;
    problem_.clear();
    try {
      for (const Shown& shown : list()) found.push_back(shown.facts);
      if (found.empty()) problem_ = "NVML shows no GPU";
    } catch (const std::runtime_error& error) {
      problem_ = error.what();
    }
    return found;
  }

  std::optional<GpuUse> use(const std::string& id) override {
    try {
      if (!handles_.contains(id)) (void)list();
      if (const auto found = handles_.find(id); found != handles_.end()) {
        return read_use(found->second);
      }
      problem_ = "NVML shows no GPU " + id;
    } catch (const std::runtime_error& error) {
      problem_ = error.what();
      handles_.clear();  // it may have become another one, or none
    }
    return std::nullopt;
  }

  std::string problem() override { return problem_; }

 private:
  struct Shown {
    GpuFacts facts;
    Handle handle;
  };

  const Library& nvml() {
    if (library_ == nullptr) library_ = std::make_unique<Library>(name_);
    return *library_;
  }

  std::string text(int (*read)(Handle, char*, unsigned), Handle handle, const char* what) {
    std::array<char, kTextSize> out{};
    nvml().check(call(read, handle, out.data(), static_cast<unsigned>(out.size())), what);
    out.back() = '\0';
    return out.data();
  }

  MemoryV2 memory(Handle handle) {
    MemoryV2 told{};
    told.version = kMemoryV2;
    nvml().check(call(nvml().functions().memory, handle, &told), "nvmlDeviceGetMemoryInfo");
    return told;
  }

  Shown show(Handle handle, const std::string& parent) {
    const Functions& f = nvml().functions();
    const MemoryV2 told = memory(handle);
    return {{text(f.uuid, handle, "nvmlDeviceGetUUID"), text(f.name, handle, "nvmlDeviceGetName"),
             saturating_sub(Bytes{told.total}, Bytes{told.reserved}), !parent.empty(), parent},
            handle};
  }

  std::vector<Shown> list() {
    const Functions& f = nvml().functions();
    unsigned count = 0;
    nvml().check(call(f.count, &count), "nvmlDeviceGetCount");
    std::vector<Shown> found;
    for (unsigned index = 0; index < count; ++index) {
      Handle handle = nullptr;
      nvml().check(call(f.by_index, index, &handle), "nvmlDeviceGetHandleByIndex");
      unsigned mode = 0;
      unsigned pending = 0;
      const bool told = f.mig_mode != nullptr && f.most_instances != nullptr &&
                        f.instance != nullptr &&
                        call(f.mig_mode, handle, &mode, &pending) == kSuccess;
      if (!told || mode != kMigEnabled) {
        found.push_back(show(handle, ""));
        continue;
      }
      const std::string parent = text(f.uuid, handle, "nvmlDeviceGetUUID");
      unsigned most = 0;
      nvml().check(call(f.most_instances, handle, &most), "nvmlDeviceGetMaxMigDeviceCount");
      for (unsigned place = 0; place < most; ++place) {
        Handle instance = nullptr;  // places may be empty
        if (call(f.instance, handle, place, &instance) == kSuccess)
          found.push_back(show(instance, parent));
      }
    }
    handles_.clear();
    for (const Shown& shown : found) handles_[shown.facts.id] = shown.handle;
    return found;
  }

  GpuUse read_use(Handle handle) {
    GpuUse use;
    use.free = Bytes{memory(handle).free};
    Utilization told{};  // of a MIG instance it is not known
    const auto read_utilization = nvml().functions().utilization;
    if (read_utilization != nullptr && call(read_utilization, handle, &told) == kSuccess) {
      use.busy = std::min(1.0, told.gpu / 100.0);
    }
    for (const ReadProcesses read : nvml().functions().processes) {
      if (read == nullptr) continue;
      for (const Process& process : processes(handle, read)) {
        if (process.used == kNotTold) continue;
        Bytes& held = use.processes[process.pid];
        held = std::max(held, Bytes{process.used});  // who computes and draws stands in two lists
      }
    }
    return use;
  }

  // Empty where the driver does not tell.
  static std::vector<Process> processes(Handle handle, ReadProcesses read) {
    std::vector<Process> list(16);
    for (int tries = 0; tries < 4; ++tries) {
      auto count = static_cast<unsigned>(list.size());
      const int result = call(read, handle, &count, list.data());
      if (result == kInsufficientSize) {
        list.resize(count + 16);  // others may begin meanwhile
        continue;
      }
      list.resize(result == kSuccess ? std::min<std::size_t>(count, list.size()) : 0);
      return list;
    }
    return {};
  }

  std::string name_;
  std::unique_ptr<Library> library_;
  std::map<std::string, Handle> handles_;  // as of the newest list
  std::string problem_;
};

}  // namespace

std::unique_ptr<GpuMonitor> nvml_monitor(const std::string& library) {
  return std::make_unique<Nvml>(library);
}

std::optional<GpuFacts> find_gpu(const std::vector<GpuFacts>& gpus, const std::string& id) {
  constexpr std::string_view kGpu = "GPU-";
  const std::string instance =
      id.starts_with(kGpu) ? "MIG-" + id.substr(kGpu.size()) : std::string();
  for (const GpuFacts& gpu : gpus) {
    if (gpu.id == id || gpu.id == instance) return gpu;
  }
  return std::nullopt;
}

Device make_gpu_device(const GpuFacts& facts, const MemoryBudget& budget) {
  Device device;
  device.id = facts.id;
  device.kind = DeviceKind::kGpu;
  device.name = facts.name;
  device.machine = facts.total;
  const std::string of = std::string{facts.mig ? "MIG instance" : "GPU"} + " with " +
                         to_string(facts.total) + (facts.mig ? " of " + facts.parent : "");
  if (budget.bytes) {
    device.capacity = std::min(*budget.bytes, facts.total);
    device.reason = "memory as configured; " + of;
    if (*budget.bytes > facts.total) device.reason += "; more was configured than it has";
    return device;
  }
  constexpr std::uint64_t kMiB = 1U << 20U;
  const auto bytes =
      static_cast<std::uint64_t>(static_cast<double>(facts.total.count()) * budget.fraction);
  device.capacity = Bytes{bytes - bytes % kMiB};
  device.reason = of;
  return device;
}

}  // namespace commensal::node
