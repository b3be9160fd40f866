// SPDX-License-Identifier: Apache-2.0
// Finds out whether the kernel may write to this process's memory without one of its threads.
#pragma once

#include <string>

namespace commensal {

/// Says what asynchronous kernel I/O this process has set up: libaio contexts and io_uring rings,
/// found by their mappings and descriptors. Empty: none. Stopping threads does not stop it.
/// @throws SourceError if /proc cannot be read.
[[nodiscard]] std::string asynchronous_kernel_io();

/// Decides it from the text of /proc/PID/maps.
[[nodiscard]] std::string asynchronous_kernel_io_in(const std::string& maps);

}  // namespace commensal
