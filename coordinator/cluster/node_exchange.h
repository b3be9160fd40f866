// SPDX-License-Identifier: Apache-2.0
// Which start of the cluster's coordinator a heartbeat is about.
#pragma once

#include <string>

namespace commensal::cluster {

/// Returns a word for a start of a coordinator, by the machine's source of randomness.
[[nodiscard]] std::string new_run();

}  // namespace commensal::cluster
