// SPDX-License-Identifier: Apache-2.0
// Lets go of Python's global lock while a thread waits, without linking Python.
#pragma once

namespace commensal {

/// Releases Python's global lock if this thread holds it.
/// @return a token for `take_python_lock_back`; null: not held, or there is no Python here.
[[nodiscard]] void* release_python_lock() noexcept;

/// Takes the lock back. Null: does nothing. While the interpreter ends, a thread other than the
/// one that ends it never returns from here, as it never would from Python's own call.
void take_python_lock_back(void* token) noexcept;

}  // namespace commensal
