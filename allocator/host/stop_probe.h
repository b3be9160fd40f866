// SPDX-License-Identifier: Apache-2.0
// Tries whether threads that block signals can be stopped here.
#pragma once

#include <string>

namespace commensal {

/// Starts a thread that blocks all signals and looks whether it stands in the way of moves.
/// @return why it does; empty: threads of any kind can be stopped. Takes the process's signal for
/// that (thread_stopper.h): for a process that moves memory, or that soon ends.
[[nodiscard]] std::string probe_thread_stops();

}  // namespace commensal
