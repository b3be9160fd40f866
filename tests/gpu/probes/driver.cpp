// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's functions, found at run time: the program starts and speaks without a driver.
#include "driver.h"

#include <dlfcn.h>

namespace probes {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

void* library() {
  static void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw NoDevice(std::string{"no CUDA driver here: "} + ::dlerror());
  return handle;
}

Driver load() {
  Driver driver;
  void* const from = library();
#define PROBES_TEXT(name) #name
#define PROBES_FIND(name) \
  driver.name = reinterpret_cast<decltype(driver.name)>(::dlsym(from, PROBES_TEXT(name)));
  PROBES_DRIVER_FUNCTIONS(PROBES_FIND)
#undef PROBES_FIND
#undef PROBES_TEXT
  return driver;
}

}  // namespace

const Driver& Driver::get() {
  static const Driver driver = load();
  return driver;
}

bool driver_is_simulated() { return ::dlsym(library(), "simulated_cuda_calls") != nullptr; }

std::string name_of(CUresult result) {
  const char* text = nullptr;
  auto* const ask = Driver::get().cuGetErrorName;
  if (ask == nullptr || ask(result, &text) != CUDA_SUCCESS || text == nullptr) {
    return "CUDA error " + std::to_string(static_cast<int>(result));
  }
  return text;
}

DriverError::DriverError(const std::string& function, CUresult result)
    : std::runtime_error(function + ": " + name_of(result)) {}

}  // namespace probes
