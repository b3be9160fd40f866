// SPDX-License-Identifier: Apache-2.0
// Where a node coordinator's sockets, lock and log are (docs/environment.md).
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace commensal::wire {

/// Raised for a runtime folder, instance name or socket path that cannot be used; `what` is one
/// sentence with the value.
class BadPath : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Longest path of an AF_UNIX socket, without the terminating zero.
inline constexpr std::size_t kMaxSocketPath = 107;

/// Returns the runtime folder of the environment: COMMENSAL_RUNTIME_DIR, else
/// $XDG_RUNTIME_DIR/commensal, else /tmp/commensal-UID. Touches no file. A coordinator of the
/// account may be in another one (kernel_name.h).
[[nodiscard]] std::filesystem::path default_runtime_dir();

/// Makes the folder (mode 0700) if it is missing and checks that only this user can enter it.
/// @throws BadPath if it is no folder, a symbolic link, somebody else's, open to others, or cannot
/// be made.
void prepare_runtime_dir(const std::filesystem::path& dir);
/// The same for another folder, which messages call `what`.
void prepare_private_dir(const std::filesystem::path& dir, std::string_view what);

/// Checks an instance name: 1 to 64 of letters, digits, '.', '_', '-', not beginning with '.'.
/// @throws BadPath naming the value.
void check_instance_name(std::string_view instance);

/// Return the files of an instance. The two sockets' paths are checked against the kernel's limit.
/// @throws BadPath if the name or the path's length cannot be used.
[[nodiscard]] std::filesystem::path control_socket_path(const std::filesystem::path& dir,
                                                        std::string_view instance);
[[nodiscard]] std::filesystem::path pages_socket_path(const std::filesystem::path& dir,
                                                      std::string_view instance);
[[nodiscard]] std::filesystem::path lock_path(const std::filesystem::path& dir,
                                              std::string_view instance);
[[nodiscard]] std::filesystem::path log_path(const std::filesystem::path& dir,
                                             std::string_view instance);

/// Returns the ZeroMQ endpoint of a socket path: "ipc://...".
[[nodiscard]] std::string ipc_endpoint(const std::filesystem::path& socket);

}  // namespace commensal::wire
