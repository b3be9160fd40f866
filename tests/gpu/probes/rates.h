// SPDX-License-Identifier: Apache-2.0
// Work per second of second processes: the same kernels everywhere, whatever a process may use.
#pragma once

#include <chrono>
#include <string>

#include "child.h"
#include "report.h"

namespace probes {

/// Kernels per second that a child has finished, from now on for so long.
double rate_of(Page& page, std::chrono::milliseconds time);

/// Kernels of this load per second: of one process alone, and of two at once.
void compare_rates(Answer& answer, const std::string& label, Load load,
                   const Environment& first_environment, const Environment& second_environment);

}  // namespace probes
