// SPDX-License-Identifier: Apache-2.0
// The folder of a coordinator's sockets and lock, as its own and for as long as it runs: who cleans
// up may remove it, and the last logout does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/background.h"
#include "coordinator/wire/kernel_name.h"

namespace commensal::node {

/// Makes one process the coordinator of an instance: by its name in the kernel (kernel_name.h),
/// which no cleaner removes, and by the lock in its folder, which also holds where network
/// namespaces differ. Thread safety: none.
class InstancePlace {
 public:
  /// Takes both. @throws wire::BadPath, std::system_error.
  InstancePlace(std::filesystem::path folder, std::string instance);

  [[nodiscard]] bool held() const noexcept { return lock_ && lock_->held(); }
  /// If it is not held: "a coordinator 'default' runs in FOLDER already (pid N)".
  [[nodiscard]] std::string obstacle() const;
  /// What the log should say of the name in the kernel; empty: nothing.
  [[nodiscard]] std::string warning() const;
  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  [[nodiscard]] bool after_crash() const noexcept { return lock_ && lock_->after_crash(); }
  void leave_clean() noexcept;

  /// For who waits: readable when somebody asks for the folder; -1: there is no name.
  [[nodiscard]] int descriptor() const noexcept { return name_.descriptor(); }
  /// Answers. @return false if no descriptor is free: it should be waited for later only.
  bool tell() { return name_.tell(folder_); }

  /// Notes files that were just made in the folder: its sockets.
  void note(const std::vector<std::filesystem::path>& files);
  /// Whether lock and noted files are still what their names stand for.
  [[nodiscard]] bool is_whole() const;
  /// Takes a lock again, in the folder or, where that cannot be and nobody chose it, in another of
  /// the account's, and calls `make` with it, which makes the sockets and notes them.
  /// @return why not, of the last folder that was tried; empty: done.
  std::string move(const std::function<void(const std::filesystem::path& folder)>& make);

 private:
  struct Noted {
    std::filesystem::path path;
    dev_t device;
    ino_t inode;
  };
  [[nodiscard]] std::string try_move(const std::filesystem::path& folder,
                                     const std::function<void(const std::filesystem::path&)>& make);

  std::filesystem::path folder_;
  std::string instance_;
  wire::KernelName name_;
  std::optional<InstanceLock> lock_;
  std::vector<Noted> noted_;
};

}  // namespace commensal::node
