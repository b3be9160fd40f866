// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process on the simulated driver: its fingerprint kernel works there.
#include "tests/allocator/cuda/simulated_fingerprint.h"

#include "tests/simulated_cuda/control.h"

namespace commensal {
namespace {

[[gnu::constructor]] void say_what_the_kernel_does() {
  simulated_cuda_define_kernel(kFingerprintKernel, kFingerprintArguments, 3, [](void** arguments) {
    return run_fingerprint_kernel(arguments, &simulated_cuda_peek, &simulated_cuda_poke);
  });
}

}  // namespace
}  // namespace commensal
