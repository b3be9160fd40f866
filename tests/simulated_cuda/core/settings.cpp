// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/settings.h"

#include <bit>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "tests/simulated_cuda/core/device.h"

namespace commensal::simulated_cuda {
namespace {

const char* variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void read(const char* name, std::string& into) {
  if (const char* value = variable(std::string{"SIMULATED_CUDA_"} + name)) into = value;
}

template <typename Number>
void read(const char* name, Number& into) {
  std::string text;
  read(name, text);
  if (text.empty()) return;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument(std::string{"SIMULATED_CUDA_"} + name + " is no number: " + text);
  }
}

void read(const char* name, bool& into) {
  int number = into ? 1 : 0;
  read(name, number);
  into = number != 0;
}

/// The device that an item of `CUDA_VISIBLE_DEVICES` means: a number or the beginning of an
/// identity; -1 if there is none.
int named_device(const std::string& item, int devices) {
  if (item.starts_with("GPU-")) {
    for (int number = 0; number < devices; ++number) {
      if (device_uuid_text(number).starts_with(item)) return number;
    }
    return -1;
  }
  int number = -1;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
  const bool whole = error == std::errc{} && end == item.data() + item.size();
  return whole && number < devices ? number : -1;
}

/// Device numbers as `CUDA_VISIBLE_DEVICES` gives them: the list ends at the first that is unknown.
std::vector<int> visible_devices(int devices) {
  std::vector<int> seen;
  const char* listed = std::getenv("CUDA_VISIBLE_DEVICES");
  if (listed == nullptr) {
    for (int number = 0; number < devices; ++number) seen.push_back(number);
    return seen;
  }
  std::istringstream list{listed};
  for (std::string item; std::getline(list, item, ',');) {
    const int number = named_device(item, devices);
    if (number < 0) break;
    seen.push_back(number);
  }
  return seen;
}

}  // namespace

Settings Settings::from_environment() {
  Settings made;
  read("DEVICES", made.devices);
  read("MEMORY", made.memory);
  read("CONTEXT_MEMORY", made.context_memory);
  read("GRANULARITY", made.granularity);
  read("COPY_BYTES_PER_SECOND", made.copy_bytes_per_second);
  read("KERNEL_NANOSECONDS", made.kernel_nanoseconds);
  read("HOST_HANDLES", made.host_handles);
  read("HOST_POINTER_ATTRIBUTES", made.host_pointer_attributes);
  read("CPU_ACCESS", made.cpu_access);
  read("VIRTUAL_MEMORY_WHILE_CAPTURING", made.virtual_memory_while_capturing);
  read("PEER_ACCESS", made.peer_access);
  read("LEDGER", made.ledger);
  read("FAIL", made.fail);
  read("LOG", made.log);
  read("TRACE", made.trace);
  if (made.devices < 0 || made.devices > 8) {
    throw std::invalid_argument("SIMULATED_CUDA_DEVICES is not 0 to 8");
  }
  if (!std::has_single_bit(made.granularity) || made.granularity < 4096) {
    throw std::invalid_argument("SIMULATED_CUDA_GRANULARITY is no power of two from 4096 on");
  }
  made.visible = visible_devices(made.devices);
  return made;
}

}  // namespace commensal::simulated_cuda
