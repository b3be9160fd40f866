// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/instance_place.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>

#include "coordinator/wire/paths.h"

namespace commensal::node {

namespace fs = std::filesystem;

InstancePlace::InstancePlace(fs::path folder, std::string instance)
    : folder_(std::move(folder)),
      instance_(std::move(instance)),
      name_(wire::kernel_name(folder_, instance_)) {
  if (!name_.is_ours()) lock_.emplace(wire::lock_path(folder_, instance_));
}

std::string InstancePlace::obstacle() const {
  const fs::path where = lock_ ? folder_ : wire::where_listens(folder_, instance_);
  return fmt::format("a coordinator '{}' runs in {} already (pid {})", instance_, where.native(),
                     lock_ ? lock_->holder() : name_.holder());
}

std::string InstancePlace::warning() const {
  if (name_.held() || name_.is_ours()) return "";
  return fmt::format(
      "another user's process has this coordinator's name in the kernel, so that commands find it "
      "by its folder only: user {}, process {}",
      static_cast<std::int64_t>(static_cast<std::int32_t>(name_.holders_user())), name_.holder());
}

void InstancePlace::leave_clean() noexcept {
  if (lock_) lock_->leave_clean();
}

void InstancePlace::note(const std::vector<fs::path>& files) {
  noted_.clear();
  for (const fs::path& file : files) {
    struct stat found {};
    if (::stat(file.c_str(), &found) == 0) noted_.push_back({file, found.st_dev, found.st_ino});
  }
}

bool InstancePlace::is_whole() const {
  return lock_ && lock_->is_at(wire::lock_path(folder_, instance_)) &&
         std::all_of(noted_.begin(), noted_.end(), [](const Noted& file) {
           struct stat found {};
           return ::stat(file.path.c_str(), &found) == 0 && found.st_dev == file.device &&
                  found.st_ino == file.inode;
         });
}

std::string InstancePlace::move(const std::function<void(const fs::path& folder)>& make) {
  std::vector<fs::path> folders{folder_};
  const std::vector<fs::path> others = wire::account_folders();
  if (wire::kernel_name(folder_, instance_) == wire::kernel_name(others.back(), instance_)) {
    folders.insert(folders.end(), others.begin(), others.end());
  }
  std::string problem;
  for (const fs::path& folder : folders) {
    problem = try_move(folder, make);
    if (problem.empty()) return "";
  }
  return problem;
}

std::string InstancePlace::try_move(const fs::path& folder,
                                    const std::function<void(const fs::path&)>& make) {
  try {
    // What a folder lies in is somebody else's to make: a login's, a test's.
    if (!fs::exists(folder.parent_path())) return folder.parent_path().native() + " is gone";
    wire::prepare_runtime_dir(folder);
    const fs::path path = wire::lock_path(folder, instance_);
    if (!lock_->is_at(path)) {
      InstanceLock lock{path};
      if (!lock.held()) {
        return fmt::format("process {} has the lock {}", lock.holder(), path.native());
      }
      *lock_ = std::move(lock);
    }
    make(folder);
    folder_ = folder;
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace commensal::node
