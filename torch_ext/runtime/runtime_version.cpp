// SPDX-License-Identifier: Apache-2.0
// The one source file of libcommensal_runtime itself; the rest comes from its static parts.
#include "torch_ext/runtime/runtime_version.h"

namespace commensal {

const char* runtime_version() noexcept { return COMMENSAL_VERSION; }

}  // namespace commensal
