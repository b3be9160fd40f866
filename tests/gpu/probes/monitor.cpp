// SPDX-License-Identifier: Apache-2.0
// What the card says of itself through NVML. Reads only.
#include "monitor.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <type_traits>

namespace probes {
namespace {

// NVML's own types, as far as they are needed: its header is in no wheel.
using Card = struct OpaqueCard*;
constexpr int kSuccess = 0;
constexpr unsigned kSmClock = 1;
constexpr unsigned kMemoryClock = 2;
constexpr unsigned kCoreTemperature = 0;

// Calls a function of NVML. What the library does not have it does not tell.
template <typename Function, typename... Arguments>
bool tells(Function* function, Arguments... arguments) {
  return function != nullptr && function(arguments...) == kSuccess;
}

struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct Nvml {
  int (*init)() = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  int (*by_uuid)(const char*, Card*) = nullptr;
  int (*clock)(Card, unsigned, unsigned*) = nullptr;
  int (*power)(Card, unsigned*) = nullptr;
  int (*temperature)(Card, unsigned, unsigned*) = nullptr;
  int (*mode)(Card, unsigned*) = nullptr;
  int (*memory)(Card, Memory*) = nullptr;
  int (*processes)(Card, unsigned*, Process*) = nullptr;
  bool works = false;
};

Nvml load() {
  Nvml nvml;
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nvml;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
  };
  find(nvml.init, "nvmlInit_v2");
  find(nvml.driver, "nvmlSystemGetDriverVersion");
  find(nvml.by_uuid, "nvmlDeviceGetHandleByUUID");
  find(nvml.clock, "nvmlDeviceGetClockInfo");
  find(nvml.power, "nvmlDeviceGetPowerUsage");
  find(nvml.temperature, "nvmlDeviceGetTemperature");
  find(nvml.mode, "nvmlDeviceGetComputeMode");
  find(nvml.memory, "nvmlDeviceGetMemoryInfo");
  find(nvml.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  nvml.works = nvml.init != nullptr && nvml.by_uuid != nullptr && nvml.init() == kSuccess;
  return nvml;
}

const Nvml& nvml() {
  static const Nvml loaded = load();
  return loaded;
}

Card card(const std::string& uuid) {
  Card found = nullptr;
  if (!nvml().works || nvml().by_uuid(uuid.c_str(), &found) != kSuccess) return nullptr;
  return found;
}

}  // namespace

std::string driver_version() {
  std::array<char, 96> text{};
  if (!nvml().works || !tells(nvml().driver, text.data(), static_cast<unsigned>(text.size()))) {
    return {};
  }
  return text.data();
}

std::optional<CardState> card_state(const std::string& uuid) {
  Card const asked = card(uuid);
  unsigned milliwatts = 0;
  CardState state{};
  if (asked == nullptr || !tells(nvml().clock, asked, kSmClock, &state.sm_clock_mhz) ||
      !tells(nvml().clock, asked, kMemoryClock, &state.memory_clock_mhz) ||
      !tells(nvml().temperature, asked, kCoreTemperature, &state.temperature_c) ||
      !tells(nvml().power, asked, &milliwatts)) {
    return std::nullopt;
  }
  state.power_w = milliwatts / 1000.0;
  return state;
}

std::optional<CardUse> card_use(const std::string& uuid) {
  Card const asked = card(uuid);
  Memory memory{};
  std::array<Process, 256> processes{};
  unsigned count = processes.size();
  if (asked == nullptr || !tells(nvml().memory, asked, &memory) ||
      !tells(nvml().processes, asked, &count, processes.data())) {
    return std::nullopt;
  }
  CardUse use{memory.free, 0};
  for (unsigned i = 0; i < count; ++i) {
    if (processes[i].pid == static_cast<unsigned>(::getpid())) use.own += processes[i].used;
  }
  return use;
}

std::optional<unsigned> compute_mode(const std::string& uuid) {
  Card const asked = card(uuid);
  unsigned mode = 0;
  if (asked == nullptr || !tells(nvml().mode, asked, &mode)) return std::nullopt;
  return mode;
}

}  // namespace probes
