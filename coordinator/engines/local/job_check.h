// SPDX-License-Identifier: Apache-2.0
// What can never be started here, told before anything is kept of it.
#pragma once

#include "coordinator/cluster/engine.h"

namespace commensal::cluster::local {

/// @throws std::invalid_argument naming the value that no process can be made from.
void check_job(const Attempt& attempt, const JobSpec& spec);

}  // namespace commensal::cluster::local
