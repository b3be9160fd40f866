// SPDX-License-Identifier: Apache-2.0
// Which tag the memory gets that a thread asks for: that of the innermost region it is in.
#pragma once

#include <cstdint>

#include "allocator/tags.h"

namespace commensal {

/// Returns the tag of the calling thread's region; zero: it is in none. One relaxed load while no
/// region is open in the process.
///
/// PyTorch hands a region on to the threads that work for one: autograd's, `torch.jit.fork`'s.
/// Other threads (a loader's, the user's own) are in no region but their own.
[[nodiscard]] TagId current_tag() noexcept;

}  // namespace commensal

extern "C" {

/// Puts the calling thread into a region; `tag` zero: into none, whatever is around it.
/// @return what `commensal_torch_leave_region` wants; null if there is no memory for it.
void* commensal_torch_enter_region(std::uint32_t tag);
/// Ends a region: what was around it holds again, also for threads that were handed it. Once.
void commensal_torch_leave_region(void* region);
}
