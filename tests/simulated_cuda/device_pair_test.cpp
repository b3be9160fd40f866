// SPDX-License-Identifier: Apache-2.0
// Two simulated devices in one process, and the switches of the settings.
#include <stdlib.h>
#include <unistd.h>

#include "tests/simulated_cuda/control.h"
#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::device_pair_test {
namespace {

constexpr std::size_t kChunk = 2UL << 20;

/// Says before the driver starts what machine it is to simulate.
const bool kTwoDevices = ::setenv("SIMULATED_CUDA_DEVICES", "2", 1) == 0;

CUmemAllocationProp chunk_on(CUmemLocationType type, int id) {
  CUmemAllocationProp made{};
  made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.location = {type, id};
  return made;
}

CUresult allow(CUdeviceptr address, CUmemLocationType type, int id,
               CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc right{};
  right.location = {type, id};
  right.flags = flags;
  return cuMemSetAccess(address, kChunk, &right, 1);
}

class DevicePair : public DriverTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kTwoDevices);
    DriverTest::SetUp();
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&other_, 1), CUDA_SUCCESS);
    // A chunk of device 1; device 0 is current.
    const auto properties = chunk_on(CU_MEM_LOCATION_TYPE_DEVICE, 1);
    ASSERT_EQ(cuMemAddressReserve(&range_, kChunk, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemCreate(&handle_, kChunk, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(range_, kChunk, 0, handle_, 0), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cuMemUnmap(range_, kChunk), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(range_, kChunk), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
    EXPECT_EQ(simulated_cuda_used(1), 0U);
    DriverTest::TearDown();
  }

  CUcontext other_ = nullptr;
  CUdeviceptr range_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

TEST_F(DevicePair, MemoryIsTakenOfTheDeviceWhereItIs) {
  const auto before = simulated_cuda_used(1);
  const auto own = simulated_cuda_used(0);
  const auto properties = chunk_on(CU_MEM_LOCATION_TYPE_DEVICE, 1);
  CUmemGenericAllocationHandle more = 0;
  ASSERT_EQ(cuMemCreate(&more, kChunk, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(simulated_cuda_used(1), before + kChunk);
  EXPECT_EQ(simulated_cuda_used(0), own);
  EXPECT_EQ(cuMemRelease(more), CUDA_SUCCESS);
}

// Rights are each device's own: a plain copy needs those of its stream's device, a peer copy
// those of the memory's device.
TEST_F(DevicePair, RightsAreEachDevicesOwn) {
  const Allocated memory(4096);
  const auto write = [&] { return cuMemcpyDtoD(range_, memory.at(), 4096); };
  ASSERT_EQ(allow(range_, CU_MEM_LOCATION_TYPE_DEVICE, 1), CUDA_SUCCESS);
  EXPECT_EQ(write(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyPeerAsync(range_, other_, memory.at(), context_, 4096, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(allow(range_, CU_MEM_LOCATION_TYPE_DEVICE, 0), CUDA_SUCCESS);
  EXPECT_EQ(write(), CUDA_SUCCESS);
  ASSERT_EQ(allow(range_, CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_SUCCESS);
  EXPECT_EQ(write(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoD(memory.at(), range_, 4096), CUDA_SUCCESS);
}

// cuEventRecord: event and stream "must be from the same context", else an invalid handle;
// cuStreamWaitEvent takes events of other devices.
TEST_F(DevicePair, EventsAreRecordedOnTheirDevice) {
  CUevent event = make_event();
  ASSERT_EQ(cuCtxSetCurrent(other_), CUDA_SUCCESS);
  CUstream stream = make_stream();
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

TEST_F(DevicePair, KernelsAreLaunchedOnTheirDevice) {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, "any"), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&kernel, module, "any"), CUDA_SUCCESS);
  CUstream stream = make_stream();
  ASSERT_EQ(cuCtxSetCurrent(other_), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

// cuCtxEnablePeerAccess: "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED".
TEST_F(DevicePair, PeerAccessIsEnabledOnce) {
  EXPECT_EQ(cuCtxEnablePeerAccess(context_, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuCtxEnablePeerAccess(other_, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(other_, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
}

// The switches are read once a process: each in a process of its own.

bool start() {
  CUcontext context = nullptr;
  return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
         cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

/// Maps a chunk and lets device 0 use it (and the host, where it may).
CUdeviceptr mapped_chunk(CUmemLocationType type) {
  const auto properties = chunk_on(type, 0);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  const bool made = cuMemAddressReserve(&address, kChunk, 0, 0, 0) == CUDA_SUCCESS &&
                    cuMemCreate(&handle, kChunk, &properties, 0) == CUDA_SUCCESS &&
                    cuMemMap(address, kChunk, 0, handle, 0) == CUDA_SUCCESS &&
                    allow(address, CU_MEM_LOCATION_TYPE_DEVICE, 0) == CUDA_SUCCESS;
  return made ? address : 0;
}

bool without_host_handles() {
  const auto properties = chunk_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
  CUmemGenericAllocationHandle handle = 0;
  int supported = 1;
  return start() && cuMemCreate(&handle, kChunk, &properties, 0) == CUDA_ERROR_NOT_SUPPORTED &&
         cuDeviceGetAttribute(&supported,
                              CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                              0) == CUDA_SUCCESS &&
         supported == 0;
}

bool without_host_pointer_attributes() {
  if (!start()) return false;
  unsigned type = 0;
  return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                               mapped_chunk(CU_MEM_LOCATION_TYPE_HOST_NUMA)) ==
             CUDA_ERROR_INVALID_VALUE &&
         cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                               mapped_chunk(CU_MEM_LOCATION_TYPE_DEVICE)) == CUDA_SUCCESS;
}

bool with_cpu_access() {
  if (!start()) return false;
  auto* bytes =
      reinterpret_cast<volatile unsigned char*>(mapped_chunk(CU_MEM_LOCATION_TYPE_DEVICE));
  bytes[kChunk - 1] = 9;
  unsigned char seen = 0;
  return simulated_cuda_peek(&seen, reinterpret_cast<CUdeviceptr>(bytes) + kChunk - 1, 1) == 0 &&
         seen == 9;
}

bool without_virtual_memory_while_capturing() {
  CUstream stream = nullptr;
  if (!start() || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return false;
  const CUdeviceptr address = mapped_chunk(CU_MEM_LOCATION_TYPE_DEVICE);
  CUgraph graph = nullptr;
  return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS &&
         cuMemUnmap(address, kChunk) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED &&
         cuMemUnmap(address, kChunk) == CUDA_SUCCESS;
}

bool without_peer_access() {
  CUcontext other = nullptr;
  int can = 1;
  if (!start() || cuDevicePrimaryCtxRetain(&other, 1) != CUDA_SUCCESS) return false;
  const CUdeviceptr address = mapped_chunk(CU_MEM_LOCATION_TYPE_DEVICE);
  return cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS && can == 0 &&
         cuCtxEnablePeerAccess(other, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED &&
         allow(address, CU_MEM_LOCATION_TYPE_DEVICE, 1) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED &&
         allow(mapped_chunk(CU_MEM_LOCATION_TYPE_HOST_NUMA), CU_MEM_LOCATION_TYPE_DEVICE, 1) ==
             CUDA_SUCCESS;
}

bool without_devices() {
  int count = 0;
  return cuInit(0) == CUDA_ERROR_NO_DEVICE &&
         cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED;
}

bool with_a_failing_start() { return cuInit(0) == CUDA_ERROR_SYSTEM_NOT_READY && start(); }

void expect_with(const char* name, const char* value, bool (*holds)()) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  ::setenv(name, value, 1);
  EXPECT_EXIT(::_exit(holds() ? 0 : 1), ::testing::ExitedWithCode(0), "");
  ::unsetenv(name);
}

TEST(Switches, HostHandlesCanBeMissing) {
  expect_with("SIMULATED_CUDA_HOST_HANDLES", "0", without_host_handles);
}

TEST(Switches, HostPointerAttributesCanBeMissing) {
  expect_with("SIMULATED_CUDA_HOST_POINTER_ATTRIBUTES", "0", without_host_pointer_attributes);
}

TEST(Switches, TheCpuCanBeLetIn) { expect_with("SIMULATED_CUDA_CPU_ACCESS", "1", with_cpu_access); }

TEST(Switches, CapturesCanForbidVirtualMemory) {
  expect_with("SIMULATED_CUDA_VIRTUAL_MEMORY_WHILE_CAPTURING", "0",
              without_virtual_memory_while_capturing);
}

TEST(Switches, DevicesCanBeKeptApart) {
  expect_with("SIMULATED_CUDA_PEER_ACCESS", "0", without_peer_access);
}

TEST(Switches, DevicesCanBeHidden) { expect_with("CUDA_VISIBLE_DEVICES", "", without_devices); }

TEST(Switches, CallsFailFromTheEnvironment) {
  expect_with("SIMULATED_CUDA_FAIL", "cuInit:1:CUDA_ERROR_SYSTEM_NOT_READY", with_a_failing_start);
}

TEST(Switches, AWrongSettingStopsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  ::setenv("SIMULATED_CUDA_MEMORY", "plenty", 1);
  EXPECT_DEATH((void)cuInit(0), "SIMULATED_CUDA_MEMORY is no number: plenty");
  ::unsetenv("SIMULATED_CUDA_MEMORY");
}

}  // namespace
}  // namespace commensal::simulated_cuda::device_pair_test
