// SPDX-License-Identifier: Apache-2.0
// The GPU that tests of the CUDA memory source run on: the simulated driver, or a card.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/cuda/cuda_memory_source.h"
#include "tests/allocator/memory_access.h"

namespace commensal {

/// Opens the simulated driver before anything else looks for one; with COMMENSAL_TEST_REAL_CUDA=1
/// in the environment, the machine's own.
///
/// Its device is current in the thread that calls `get` first. What steers the simulation may be
/// called on the simulation alone.
class CudaMachine {
 public:
  static CudaMachine& get();

  /// Says why there is no device; empty: there is one.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  [[nodiscard]] bool simulated() const noexcept { return fail_ != nullptr; }

  /// Makes the device's context current in the calling thread.
  void enter() const;
  /// How to reach chunks: by copies.
  [[nodiscard]] static MemoryAccess access();
  /// Sets words, in order with the stream.
  void fill(CUdeviceptr to, std::uint32_t word, std::size_t count, CUstream stream) const;

  // The simulation.
  /// Lets call number `nth` from now fail, and `times - 1` after it (0: all).
  void fail(const std::string& function, std::uint64_t nth, CUresult error = CUDA_ERROR_UNKNOWN,
            std::uint64_t times = 1) const;
  [[nodiscard]] std::uint64_t calls(const std::string& function) const;
  /// Forgets counts and the failures that are still to come.
  void clear() const { clear_(); }
  void hold() const { hold_(); }
  void let_go() const { let_go_(); }
  /// Returns what all processes together hold of the device.
  [[nodiscard]] Bytes used() const { return Bytes{used_(0)}; }

  /// Every function of the driver that the source uses.
  [[nodiscard]] static const std::vector<std::string>& functions();

  /// Any other function of the driver, by the name of its symbol.
  template <typename Function>
  [[nodiscard]] Function* symbol(const char* name) const {
    return reinterpret_cast<Function*>(find(name));
  }

 private:
  CudaMachine();
  [[nodiscard]] void* find(const char* name) const;
  void start();
  void open_simulation();

  void* library_ = nullptr;
  std::string reason_;
  CUcontext context_ = nullptr;
  void (*fail_)(const char*, std::uint64_t, int, std::uint64_t) = nullptr;
  std::uint64_t (*calls_)(const char*) = nullptr;
  void (*clear_)() = nullptr;
  void (*hold_)() = nullptr;
  void (*let_go_)() = nullptr;
  std::uint64_t (*used_)(int) = nullptr;
};

/// While it lives, the simulated fingerprint kernel does nothing.
class ForgetfulKernel {
 public:
  ForgetfulKernel();
  ~ForgetfulKernel();
  ForgetfulKernel(const ForgetfulKernel&) = delete;
  ForgetfulKernel& operator=(const ForgetfulKernel&) = delete;
};

/// A stream whose work waits until it is pulled.
class HeldStream {
 public:
  HeldStream();
  ~HeldStream();
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  void pull() noexcept;
  [[nodiscard]] CUstream stream() const noexcept { return stream_; }

 private:
  CUstream stream_ = nullptr;
  std::uint32_t* word_ = nullptr;  // pinned
};

/// Skips a test where there is no device, or where only the simulation will do.
#define COMMENSAL_NEEDS_CUDA()                                \
  if (!::commensal::CudaMachine::get().reason().empty()) {    \
    GTEST_SKIP() << ::commensal::CudaMachine::get().reason(); \
  }
#define COMMENSAL_NEEDS_SIMULATION()                                        \
  COMMENSAL_NEEDS_CUDA()                                                    \
  if (!::commensal::CudaMachine::get().simulated()) {                       \
    GTEST_SKIP() << "needs the simulated driver: it fails calls on demand"; \
  }

}  // namespace commensal
