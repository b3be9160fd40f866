// SPDX-License-Identifier: Apache-2.0
// The GPU that tests of the CUDA memory source run on.
#include "tests/allocator/cuda/cuda_machine.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "tests/allocator/cuda/simulated_fingerprint.h"

namespace commensal {
namespace {

// Of the simulated driver: what the fingerprint kernel does is said here.
int (*peek)(void*, std::uint64_t, std::size_t) = nullptr;
int (*poke)(std::uint64_t, const void*, std::size_t) = nullptr;

void (*define_kernel)(const char*, const std::size_t*, std::size_t, int (*)(void**)) = nullptr;

void say_what_the_kernel_does(int (*body)(void**)) {
  define_kernel(kFingerprintKernel, kFingerprintArguments, 3, body);
}

int run_fingerprint(void** arguments) { return run_fingerprint_kernel(arguments, peek, poke); }

void expect_success(CUresult result, const char* call) {
  EXPECT_EQ(result, CUDA_SUCCESS) << call << ": " << CudaDriver::get().describe(result);
}

}  // namespace

CudaMachine& CudaMachine::get() {
  static CudaMachine machine;
  return machine;
}

CudaMachine::CudaMachine() {
  try {
    start();
  } catch (const std::exception& error) {
    reason_ = error.what();
  }
}

void CudaMachine::start() {
  const char* real = std::getenv("COMMENSAL_TEST_REAL_CUDA");
  const bool card = real != nullptr && std::string_view(real) == "1";
  // Once it is open, whoever asks for libcuda.so.1 gets this one.
  const char* const name = card ? "libcuda.so.1" : COMMENSAL_SIMULATED_CUDA;
  library_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) throw std::runtime_error(::dlerror());
  const CudaDriver& driver = CudaDriver::get();
  if (::dlsym(library_, "simulated_cuda_fail") != nullptr) open_simulation();
  CUdevice device = 0;
  check_cuda(driver.cuDeviceGet(&device, 0), "cuDeviceGet");
  check_cuda(driver.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
  enter();
}

void CudaMachine::open_simulation() {
  fail_ = symbol<void(const char*, std::uint64_t, int, std::uint64_t)>("simulated_cuda_fail");
  calls_ = symbol<std::uint64_t(const char*)>("simulated_cuda_calls");
  clear_ = symbol<void()>("simulated_cuda_clear");
  hold_ = symbol<void()>("simulated_cuda_hold");
  let_go_ = symbol<void()>("simulated_cuda_let_go");
  used_ = symbol<std::uint64_t(int)>("simulated_cuda_used");
  peek = symbol<int(void*, std::uint64_t, std::size_t)>("simulated_cuda_peek");
  poke = symbol<int(std::uint64_t, const void*, std::size_t)>("simulated_cuda_poke");
  define_kernel = symbol<void(const char*, const std::size_t*, std::size_t, int (*)(void**))>(
      "simulated_cuda_define_kernel");
  say_what_the_kernel_does(&run_fingerprint);
}

void* CudaMachine::find(const char* name) const {
  void* const found = ::dlsym(library_, name);
  if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
  return found;
}

void CudaMachine::enter() const {
  check_cuda(CudaDriver::get().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

MemoryAccess CudaMachine::access() {
  MemoryAccess access;
  access.direct = false;
  access.store = [](std::byte* to, const void* from, std::size_t bytes) {
    static auto* const copy =
        get().symbol<CUresult(CUdeviceptr, const void*, std::size_t)>("cuMemcpyHtoD_v2");
    expect_success(copy(to_cuda(to), from, bytes), "cuMemcpyHtoD");
  };
  access.load = [](void* to, const std::byte* from, std::size_t bytes) {
    static auto* const copy =
        get().symbol<CUresult(void*, CUdeviceptr, std::size_t)>("cuMemcpyDtoH_v2");
    expect_success(copy(to, to_cuda(from), bytes), "cuMemcpyDtoH");
  };
  return access;
}

void CudaMachine::fill(CUdeviceptr to, std::uint32_t word, std::size_t count,
                       CUstream stream) const {
  expect_success(symbol<CUresult(CUdeviceptr, unsigned, std::size_t, CUstream)>("cuMemsetD32Async")(
                     to, word, count, stream),
                 "cuMemsetD32Async");
}

void CudaMachine::fail(const std::string& function, std::uint64_t nth, CUresult error,
                       std::uint64_t times) const {
  fail_(function.c_str(), nth, static_cast<int>(error), times);
}

std::uint64_t CudaMachine::calls(const std::string& function) const {
  return calls_(function.c_str());
}

const std::vector<std::string>& CudaMachine::functions() {
#define COMMENSAL_CUDA_NAME(name) #name,
  static const std::vector<std::string> all = {COMMENSAL_CUDA_FUNCTIONS(COMMENSAL_CUDA_NAME)};
#undef COMMENSAL_CUDA_NAME
  return all;
}

ForgetfulKernel::ForgetfulKernel() {
  say_what_the_kernel_does([](void**) { return 0; });
}

ForgetfulKernel::~ForgetfulKernel() { say_what_the_kernel_does(&run_fingerprint); }

HeldStream::HeldStream() {
  const CudaDriver& driver = CudaDriver::get();
  void* word = nullptr;
  expect_success(driver.cuMemHostAlloc(&word, sizeof(std::uint32_t), 0), "cuMemHostAlloc");
  word_ = static_cast<std::uint32_t*>(word);
  *word_ = 0;
  expect_success(driver.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
                 "cuStreamCreateWithPriority");
  expect_success(CudaMachine::get().symbol<CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned)>(
                     "cuStreamWaitValue32_v2")(stream_, to_cuda(word_), 1, CU_STREAM_WAIT_VALUE_EQ),
                 "cuStreamWaitValue32");
}

void HeldStream::pull() noexcept { __atomic_store_n(word_, 1U, __ATOMIC_SEQ_CST); }

HeldStream::~HeldStream() {
  pull();
  const CudaDriver& driver = CudaDriver::get();
  expect_success(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  expect_success(driver.cuStreamDestroy(stream_), "cuStreamDestroy");
  expect_success(driver.cuMemFreeHost(word_), "cuMemFreeHost");
}

}  // namespace commensal
