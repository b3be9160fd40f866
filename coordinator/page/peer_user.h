// SPDX-License-Identifier: Apache-2.0
// Whose process is at the other end of a TCP connection within this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace commensal::page {

/// Asks the kernel (sock_diag) who owns the socket that is bound to `peer` and connected to `own`.
/// Absent: it is not on this machine (or in another network namespace), the addresses are no IP
/// addresses of one family, or the kernel does not say. Thread safety: any thread.
[[nodiscard]] std::optional<uid_t> user_of_peer(const std::string& peer, std::uint16_t peer_port,
                                                const std::string& own, std::uint16_t own_port);

}  // namespace commensal::page
