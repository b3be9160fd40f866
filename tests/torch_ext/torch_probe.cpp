// SPDX-License-Identifier: Apache-2.0
// What PyTorch itself says about installed callbacks; loaded by the Python tests.
#include <ATen/record_function.h>

extern "C" {

/// Returns for how many of so many ops some FUNCTION callback would run, on this thread.
int commensal_testing_observed_ops(int ops) {
  int observed = 0;
  for (int i = 0; i < ops; ++i) {
    if (at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value()) ++observed;
  }
  return observed;
}
}
