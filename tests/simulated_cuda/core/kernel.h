// SPDX-License-Identifier: Apache-2.0
// Kernels: they take their time and do nothing, unless a test says what one of them does.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/mutex.h"
#include "tests/simulated_cuda/core/process.h"

namespace commensal::simulated_cuda {

struct LaunchShape {
  std::array<unsigned, 3> grid{1, 1, 1};
  std::array<unsigned, 3> block{1, 1, 1};
};

/// What a kernel does, on the stream's thread: gets pointers to copies of its arguments.
/// @return CUDA_SUCCESS, or the error that ends all work.
using KernelBody = std::function<CUresult(void** arguments, Execution& execution)>;

/// Kernels whose effect is simulated, by name. Any member may be called from any thread.
class Kernels {
 public:
  static Kernels& get();

  /// Lets launches of the kernel run `body`. @param sizes  bytes of each argument.
  void define(const std::string& name, std::vector<std::size_t> sizes, KernelBody body);

  /// Puts a launch into the stream. @param arguments  may be null if the kernel is not defined.
  CUresult launch(const std::shared_ptr<Stream>& stream, const std::string& name,
                  const LaunchShape& shape, void** arguments);

  [[nodiscard]] std::uint64_t launches(const std::string& name);
  /// Launches of all kernels on a part of the device of so many multiprocessors; 0: on all of it.
  [[nodiscard]] std::uint64_t launches_on(unsigned multiprocessors);

 private:
  struct Defined {
    std::vector<std::size_t> sizes;
    KernelBody body;
  };

  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Defined>> defined_ COMMENSAL_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> launches_ COMMENSAL_GUARDED_BY(mutex_);
  std::map<unsigned, std::uint64_t> by_part_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal::simulated_cuda
