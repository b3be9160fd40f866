// SPDX-License-Identifier: Apache-2.0
// The version of libcommensal_runtime, to be compared by those who load it.
#pragma once

namespace commensal {

/// Returns the version of the library, "MAJOR.MINOR.PATCH".
[[nodiscard]] const char* runtime_version() noexcept;

}  // namespace commensal
