// SPDX-License-Identifier: Apache-2.0
// Devices that whoever starts the keeper gives it.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {

/// In `Placed::uuids`: the device is one of those that CUDA_VISIBLE_DEVICES of the keeper names.
inline constexpr const char* kGivenDevice = "given";

/// Puts devices from `visible` ("0,3", or UUIDs) in their places: the n-th given device of a node
/// is the n-th one there. Where there are too few the rank gets "host": it sets no variable. Pure.
[[nodiscard]] Placed with_given_devices(Placed placed, std::string_view visible);

}  // namespace commensal::cluster::local
