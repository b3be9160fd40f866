// SPDX-License-Identifier: Apache-2.0
// Writes a file so that it is whole, or not there.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace commensal::simulator {

/// Lets `write` fill a file beside its place, and renames it.
/// @throws std::system_error if it cannot be written; nothing is left then.
void write_whole(const std::string& file, const std::function<void(std::ostream& out)>& write);

}  // namespace commensal::simulator
