// SPDX-License-Identifier: Apache-2.0
// What the suites of documented rules share. They use nothing but the driver's API, so that the
// same programs, with a real libcuda.so.1 first on the library path, hold the rules to a card.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ostream>
#include <vector>

/// Defined by the simulated driver alone.
extern "C" std::uint64_t simulated_cuda_used(int device) __attribute__((weak));

inline void PrintTo(CUresult result, std::ostream* out) {
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) == CUDA_SUCCESS) {
    *out << name;
  } else {
    *out << "CUresult " << static_cast<int>(result);
  }
}

namespace commensal::simulated_cuda {

/// Says whether these tests run on the simulation, not on a card.
inline bool simulated() { return simulated_cuda_used != nullptr; }

/// Says whether a card let pass what the manual forbids. The simulation is strict there, so that
/// our mistakes show early; a card need not be. A test that asks this says which card did so.
inline bool passed_on_a_card(CUresult result) { return !simulated() && result == CUDA_SUCCESS; }

/// A device with its context current; what a test takes of the device, it must give back.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDeviceGet(&device_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, device_), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    if (simulated()) used_before_ = simulated_cuda_used(0);
  }

  void TearDown() override {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    if (simulated()) {
      EXPECT_EQ(simulated_cuda_used(0), used_before_);
    }
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(device_), CUDA_SUCCESS);
  }

  CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    return stream;
  }

  CUevent make_event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent event = nullptr;
    EXPECT_EQ(cuEventCreate(&event, flags), CUDA_SUCCESS);
    return event;
  }

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::uint64_t used_before_ = 0;
};

/// Pinned host memory.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes) {
    EXPECT_EQ(cuMemHostAlloc(&address_, bytes, 0), CUDA_SUCCESS);
    std::memset(address_, 0, bytes);
  }
  ~Pinned() { EXPECT_EQ(cuMemFreeHost(address_), CUDA_SUCCESS); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  template <typename Value = std::byte>
  Value* as() {
    return static_cast<Value*>(address_);
  }
  CUdeviceptr device() const { return reinterpret_cast<CUdeviceptr>(address_); }

 private:
  void* address_ = nullptr;
};

/// Device memory from `cuMemAlloc`.
class Allocated {
 public:
  explicit Allocated(std::size_t bytes) { EXPECT_EQ(cuMemAlloc(&address_, bytes), CUDA_SUCCESS); }
  ~Allocated() { EXPECT_EQ(cuMemFree(address_), CUDA_SUCCESS); }
  Allocated(const Allocated&) = delete;
  Allocated& operator=(const Allocated&) = delete;

  CUdeviceptr at(std::size_t offset = 0) const { return address_ + offset; }

 private:
  CUdeviceptr address_ = 0;
};

/// Holds a stream's work back until `pull`: the stream waits for a word of host memory.
class Plug {
 public:
  explicit Plug(CUstream stream) : stream_(stream) {
    EXPECT_EQ(cuStreamWaitValue32(stream, word_.device(), 1, CU_STREAM_WAIT_VALUE_EQ),
              CUDA_SUCCESS);
  }
  ~Plug() {
    pull();
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }
  Plug(const Plug&) = delete;
  Plug& operator=(const Plug&) = delete;

  void pull() { __atomic_store_n(word_.as<std::uint32_t>(), 1U, __ATOMIC_SEQ_CST); }

 private:
  Pinned word_{4};
  CUstream stream_;
};

}  // namespace commensal::simulated_cuda
