// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/control.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/simulated_cuda/core/kernel.h"
#include "tests/simulated_cuda/core/process.h"

using commensal::simulated_cuda::CallLog;
using commensal::simulated_cuda::Execution;
using commensal::simulated_cuda::Kernels;
using commensal::simulated_cuda::Process;

void simulated_cuda_fail(const char* function, uint64_t nth, int error, uint64_t times) {
  try {
    Process::get().log.fail(function, nth, static_cast<CUresult>(error),
                            times == 0 ? CallLog::kForever : times);
  } catch (const std::invalid_argument& wrong) {
    std::fprintf(stderr, "simulated_cuda_fail: %s\n", wrong.what());
    std::abort();  // a test that asks for no failure would prove nothing
  }
}

uint64_t simulated_cuda_calls(const char* function) {
  return Process::get().log.entry(function).calls;
}

uint64_t simulated_cuda_calls_while_capturing(const char* function) {
  return Process::get().log.entry(function).while_capturing;
}

uint64_t simulated_cuda_calls_refused(const char* function) {
  return Process::get().log.entry(function).refused;
}

uint64_t simulated_cuda_last_argument(const char* function, unsigned index) {
  const CallLog::Arguments last = Process::get().log.entry(function).last;
  return index < last.size() ? last[index] : 0;
}

size_t simulated_cuda_log(char* text, size_t size) {
  const std::string json = Process::get().log.json();
  if (size > 0) {
    std::strncpy(text, json.c_str(), size);
    text[size - 1] = '\0';
  }
  return json.size() + 1;
}

void simulated_cuda_clear(void) { Process::get().log.clear(); }

uint64_t simulated_cuda_launches(const char* kernel) { return Kernels::get().launches(kernel); }

uint64_t simulated_cuda_launches_on(unsigned multiprocessors) {
  return Kernels::get().launches_on(multiprocessors);
}

void simulated_cuda_hold(void) { Process::get().brake.hold(); }

void simulated_cuda_let_go(void) { Process::get().brake.let_go(); }

void simulated_cuda_set_copy_speed(uint64_t bytes_per_second) {
  Process::get().copy_bytes_per_second = bytes_per_second;
}

void simulated_cuda_set_kernel_time(uint64_t nanoseconds) {
  Process::get().kernel_nanoseconds = nanoseconds;
}

uint64_t simulated_cuda_used(int device) { return Process::get().ledger.used(device); }

int simulated_cuda_peek(void* to, uint64_t device_address, size_t bytes) {
  const bool copied =
      Process::get().memory.copy(reinterpret_cast<CUdeviceptr>(to), device_address, bytes, -1);
  return copied ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

int simulated_cuda_poke(uint64_t device_address, const void* from, size_t bytes) {
  const bool copied =
      Process::get().memory.copy(device_address, reinterpret_cast<CUdeviceptr>(from), bytes, -1);
  return copied ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

void simulated_cuda_define_kernel(const char* name, const size_t* sizes, size_t count,
                                  int (*body)(void** arguments)) {
  Kernels::get().define(
      name, std::vector<std::size_t>(sizes, sizes + count),
      [body](void** arguments, Execution&) { return static_cast<CUresult>(body(arguments)); });
}
