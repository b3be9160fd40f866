// SPDX-License-Identifier: Apache-2.0
// How a coordinator is the only one of its account, and is found, whatever folder an environment
// names: by a name that the kernel keeps while the process lives.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/wire/handover.h"

namespace commensal::wire {

/// Returns the folders that an account's coordinators are in unless somebody chose another:
/// $XDG_RUNTIME_DIR/commensal if that is set, /run/user/UID/commensal, /tmp/commensal-UID. A login,
/// cron and a service have different ones; they mean the same coordinator.
[[nodiscard]] std::vector<std::filesystem::path> account_folders();

/// Returns where a coordinator that is started with this folder makes it: in the last one of
/// `account_folders` if it is one of them and what it lies in is gone, as after a login's end.
[[nodiscard]] std::filesystem::path usable_folder(const std::filesystem::path& folder);

/// Returns the name, in the abstract namespace of AF_UNIX, of an instance whose folder this is:
/// "commensald-UID-INSTANCE" in any of `account_folders`; with a number for a folder that was
/// chosen, so that coordinators in two chosen folders do not exclude each other.
[[nodiscard]] std::string kernel_name(const std::filesystem::path& folder,
                                      std::string_view instance);

/// Returns where the coordinator listens that is meant by `folder`: for one of `account_folders` it
/// is asked, as far as one answers; any other folder is meant as it is. Waits for half a second at
/// most.
[[nodiscard]] std::filesystem::path where_listens(const std::filesystem::path& folder,
                                                  std::string_view instance);

/// Holds a name, and tells who asks in which folder its holder is. Any process may take a name, so
/// the user of who has it is looked at. Thread safety: none.
class KernelName {
 public:
  /// Takes the name unless somebody has it. @throws std::system_error if no socket can be made.
  explicit KernelName(const std::string& name);

  [[nodiscard]] bool held() const noexcept { return static_cast<bool>(listener_); }
  /// If it is not held: whether a process of this user has it; and which one.
  [[nodiscard]] bool is_ours() const noexcept;
  [[nodiscard]] pid_t holder() const noexcept { return holder_; }
  [[nodiscard]] uid_t holders_user() const noexcept { return user_; }

  /// Becomes readable when somebody asks; -1: it is not held.
  [[nodiscard]] int descriptor() const noexcept { return listener_.get(); }
  /// Answers all who have asked. @return false if that needs a descriptor and none is free.
  bool tell(const std::filesystem::path& folder);

 private:
  UniqueFd listener_;
  pid_t holder_ = 0;
  uid_t user_ = 0;
};

}  // namespace commensal::wire
