// SPDX-License-Identifier: Apache-2.0
// The documented rules of contexts, allocations, pinned memory, copies and pointers.
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::memory_rules_test {
namespace {

using MemoryRules = DriverTest;

// "The CUDA driver API must be initialized with cuInit": else CUDA_ERROR_NOT_INITIALIZED.
TEST(DriverStart, NothingWorksBeforeCuInit) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        int count = 0;
        ::_exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// A forked child cannot use the driver of its parent.
TEST_F(MemoryRules, AForkedChildCannotUseTheDriver) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::size_t free = 0;
    std::size_t total = 0;
    ::_exit(cuMemGetInfo(&free, &total) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// cuDeviceGet, cuDevicePrimaryCtxRetain: CUDA_ERROR_INVALID_DEVICE.
TEST_F(MemoryRules, ThereAreNoOtherDevices) {
  CUdevice device = 0;
  EXPECT_EQ(cuDeviceGet(&device, 99), CUDA_ERROR_INVALID_DEVICE);
  CUcontext context = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 99), CUDA_ERROR_INVALID_DEVICE);
}

// Most calls need a current context: CUDA_ERROR_INVALID_CONTEXT.
TEST_F(MemoryRules, AllocatingNeedsACurrentContext) {
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_ERROR_INVALID_CONTEXT);
  CUcontext none = context_;
  EXPECT_EQ(cuCtxGetCurrent(&none), CUDA_SUCCESS);
  EXPECT_EQ(none, nullptr);
  ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
}

// The primary context is one: every retain gives the same.
TEST_F(MemoryRules, APrimaryContextIsOne) {
  CUcontext again = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&again, device_), CUDA_SUCCESS);
  EXPECT_EQ(again, context_);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(device_), CUDA_SUCCESS);
}

TEST_F(MemoryRules, ContextsOfAThreadAreAStack) {
  EXPECT_EQ(cuCtxPushCurrent(context_), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  EXPECT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, context_);
  CUcontext current = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, context_);
}

// cuMemAlloc: "If bytesize is 0, cuMemAlloc() returns CUDA_ERROR_INVALID_VALUE".
TEST_F(MemoryRules, AllocatesNoZeroBytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryRules, AllocatesNoMoreThanTheDeviceHas) {
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
}

// cuMemFree takes what cuMemAlloc gave; anything else is CUDA_ERROR_INVALID_VALUE.
TEST_F(MemoryRules, FreesOnlyWhatWasAllocated) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAlloc(&address, 1 << 20), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(address + 256), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS);  // null is no operation
}

TEST_F(MemoryRules, CopiesThereAndBack) {
  const Allocated memory(1 << 20);
  std::vector<std::uint32_t> sent(1 << 18);
  for (std::size_t i = 0; i < sent.size(); ++i)
    sent[i] = static_cast<std::uint32_t>(i * 2654435761);
  EXPECT_EQ(cuMemcpyHtoD(memory.at(), sent.data(), 1 << 20), CUDA_SUCCESS);
  std::vector<std::uint32_t> received(1 << 18);
  EXPECT_EQ(cuMemcpyDtoH(received.data(), memory.at(), 1 << 20), CUDA_SUCCESS);
  EXPECT_EQ(received, sent);
}

// A copy over the end of an allocation is refused.
TEST_F(MemoryRules, CopiesStayWithinAnAllocation) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const Allocated memory(1 << 20);
  ASSERT_EQ(cuMemGetAddressRange(&base, &bytes, memory.at(4096)), CUDA_SUCCESS);
  EXPECT_EQ(base, memory.at());
  EXPECT_GE(bytes, 1U << 20);
  EXPECT_NE(cuMemsetD8(memory.at(), 0, 1UL << 40), CUDA_SUCCESS);
}

TEST_F(MemoryRules, NothingIsCopiedFromNull) {
  const Allocated memory(4096);
  EXPECT_EQ(cuMemcpyHtoD(memory.at(), nullptr, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(nullptr, memory.at(), 4), CUDA_ERROR_INVALID_VALUE);
}

// cuMemset...: fills only memory of a device; the address is aligned to the width.
TEST_F(MemoryRules, FillsNeedAlignedDeviceMemory) {
  const Allocated memory(4096);
  EXPECT_EQ(cuMemsetD32(memory.at(2), 0, 1), CUDA_ERROR_INVALID_VALUE);
  std::uint32_t local = 0;
  EXPECT_EQ(cuMemsetD32(reinterpret_cast<CUdeviceptr>(&local), 0, 1), CUDA_ERROR_INVALID_VALUE);
}

// From pageable host memory, an asynchronous copy "will return once the pageable buffer has been
// copied to the staging memory": the buffer may change before the stream gets there.
TEST_F(MemoryRules, PageableMemoryIsReadBeforeAnAsynchronousCopyReturns) {
  const Allocated memory(4096);
  CUstream stream = make_stream();
  std::uint32_t value = 1;
  {
    Plug plug(stream);
    EXPECT_EQ(cuMemcpyHtoDAsync(memory.at(), &value, 4, stream), CUDA_SUCCESS);
    value = 2;
  }
  EXPECT_EQ(cuMemcpyDtoH(&value, memory.at(), 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 1U);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

// To pageable host memory, "the function will return only once the copy has completed".
TEST_F(MemoryRules, PageableMemoryIsWrittenBeforeAnAsynchronousCopyReturns) {
  const Allocated memory(4096);
  CUstream stream = make_stream();
  EXPECT_EQ(cuMemsetD32Async(memory.at(), 5, 1, stream), CUDA_SUCCESS);
  std::uint32_t value = 0;
  EXPECT_EQ(cuMemcpyDtoHAsync(&value, memory.at(), 4, stream), CUDA_SUCCESS);
  EXPECT_EQ(value, 5U);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

// From pinned memory a copy is asynchronous: it reads when the stream gets there.
TEST_F(MemoryRules, PinnedMemoryIsReadWhenTheStreamGetsThere) {
  const Allocated memory(4096);
  Pinned pinned(4096);
  CUstream stream = make_stream();
  *pinned.as<std::uint32_t>() = 1;
  {
    Plug plug(stream);
    EXPECT_EQ(cuMemcpyHtoDAsync(memory.at(), pinned.as(), 4, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    *pinned.as<std::uint32_t>() = 2;
  }
  std::uint32_t value = 0;
  EXPECT_EQ(cuMemcpyDtoH(&value, memory.at(), 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 2U);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

// cuMemHostRegister: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED; cuMemHostUnregister takes the
// address that was registered: else CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED.
TEST_F(MemoryRules, HostMemoryIsRegisteredOnce) {
  std::vector<std::byte> memory(1 << 16);
  ASSERT_EQ(cuMemHostRegister(memory.data(), memory.size(), 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(memory.data(), memory.size(), 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr seen = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer(&seen, memory.data(), 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(MemoryRules, PinnedMemoryIsFreedByItsStart) {
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 8192, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(static_cast<std::byte*>(pinned) + 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

// cuPointerGetAttribute: CUDA_ERROR_INVALID_VALUE for a pointer that the driver does not know.
TEST_F(MemoryRules, TellsWhatAPointerPointsTo) {
  const Allocated memory(1 << 20);
  Pinned pinned(4096);
  int local = 0;
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory.at(100)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned.device()),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(&local)),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr start = 0;
  EXPECT_EQ(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory.at(100)),
            CUDA_SUCCESS);
  EXPECT_EQ(start, memory.at());
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory.at()),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
}

// A buffer's id is never given again, so that a new allocation at an old address is told apart.
TEST_F(MemoryRules, BufferIdsAreUnique) {
  unsigned long long first = 0;
  unsigned long long second = 0;
  {
    const Allocated memory(1 << 20);
    EXPECT_EQ(cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory.at()),
              CUDA_SUCCESS);
  }
  const Allocated memory(1 << 20);
  EXPECT_EQ(cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory.at()),
            CUDA_SUCCESS);
  EXPECT_NE(first, second);
}

// cuGetProcAddress: success with a null pointer and "not found" for a name that there is not;
// an invalid value for a version above the driver's.
TEST_F(MemoryRules, FindsFunctionsByName) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  EXPECT_EQ(cuGetProcAddress("cuMemAlloc", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  ASSERT_NE(function, nullptr);
  CUdeviceptr address = 0;
  EXPECT_EQ(reinterpret_cast<decltype(&cuMemAlloc)>(function)(&address, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(cuGetProcAddress("cuNoSuchFunction", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(cuGetProcAddress("cuMemAlloc", &function, 999990, 0, &status),
            CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace commensal::simulated_cuda::memory_rules_test
