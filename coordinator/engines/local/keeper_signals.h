// SPDX-License-Identifier: Apache-2.0
// Signals of a keeper as something to read.
#pragma once

#include "coordinator/wire/handover.h"

namespace commensal::cluster::local {

/// Blocks SIGTERM, SIGINT, SIGHUP and SIGCHLD of this thread. @return a signalfd of them that does
/// not block. @throws std::system_error.
[[nodiscard]] wire::UniqueFd take_signals();

}  // namespace commensal::cluster::local
