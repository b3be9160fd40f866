// SPDX-License-Identifier: Apache-2.0
// What a waiting thread owes to Python, without linking it: its global lock, and its signals.
#pragma once

namespace commensal {

/// Releases Python's global lock if this thread holds it.
/// @return a token for `take_python_lock_back`; null: not held, or there is no Python here.
[[nodiscard]] void* release_python_lock() noexcept;

/// Takes the lock back. Null: does nothing. While the interpreter ends, a thread other than the
/// one that ends it never returns from here, as it never would from Python's own call.
void take_python_lock_back(void* token) noexcept;

/// Waits until the calling thread, any thread, holds Python's global lock.
/// @return a token for `give_python_lock`; null: it was held before, there is no Python here, or it
///   is ending, and then only this thread runs.
[[nodiscard]] void* take_python_lock() noexcept;
/// Gives up what `take_python_lock` took, on the same thread. Null: does nothing.
void give_python_lock(void* token) noexcept;

/// Lets Python's signal handlers run on a main thread that waits without the lock; looks about ten
/// times a second. Elsewhere does nothing.
/// @return whether a handler has raised an exception (KeyboardInterrupt) that the interpreter has
///   not seen yet: it is raised at the next bytecode, so the thread must not wait before that.
[[nodiscard]] bool python_signal_raised() noexcept;

}  // namespace commensal
