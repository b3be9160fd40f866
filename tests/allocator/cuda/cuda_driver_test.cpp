// SPDX-License-Identifier: Apache-2.0
// What is said where there is no driver, or one that lacks a function.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/cuda/driver.h"

namespace commensal::cuda_driver_test {
namespace {

std::string refusal() {
  try {
    const CudaMemorySource source;
  } catch (const SourceError& error) {
    return error.what();
  }
  return "no refusal";
}

// One after the other in one process: a driver that was found stays.
TEST(CudaDriverTest, WhatIsMissingIsNamedInOneSentenceAndLookedForAgain) {
  if (void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); driver != nullptr) {
    ::dlclose(driver);
    GTEST_SKIP() << "this machine has a CUDA driver";
  }
  const std::string missing = refusal();
  EXPECT_EQ(missing.rfind("no CUDA driver: libcuda.so.1: ", 0), 0U) << missing;
  EXPECT_EQ(missing, refusal());
  ASSERT_NE(::dlopen(COMMENSAL_OLD_CUDA, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  EXPECT_EQ(refusal(),
            "the CUDA driver has no cuCtxRecordEvent: elastic memory on a GPU needs a driver of "
            "CUDA 12.5 or later");
}

}  // namespace
}  // namespace commensal::cuda_driver_test
