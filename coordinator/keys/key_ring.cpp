// SPDX-License-Identifier: Apache-2.0
#include "coordinator/keys/key_ring.h"

#include <sys/stat.h>

#include <cerrno>

namespace commensal::keys {

KeyRing::Stamp KeyRing::stamp() const {
  struct stat file {};
  struct stat folder {};
  // The inode alone may be used again, and the times may be too coarse.
  const int error = lstat(store_.file().c_str(), &file) == 0 ? 0 : errno;
  (void)lstat(store_.folder().path().c_str(), &folder);  // without it, neither is the file there
  return {error,
          static_cast<std::int64_t>(file.st_dev),
          static_cast<std::int64_t>(file.st_ino),
          file.st_size,
          file.st_ctim.tv_sec,
          file.st_ctim.tv_nsec,
          static_cast<std::int64_t>(folder.st_ino),
          static_cast<std::int64_t>(folder.st_mode),
          static_cast<std::int64_t>(folder.st_uid)};
}

bool KeyRing::refresh() {
  const Stamp now = stamp();  // before it is read: a change in between is seen the next time
  if (read_ && now == seen_) return false;
  read_ = true;
  seen_ = now;
  valid_.clear();
  problem_.clear();
  try {
    for (const AllowedKey& key : store_.read()) {
      if (key.valid()) valid_.emplace(key.key, key);
    }
  } catch (const KeyProblem& problem) {
    problem_ = problem.what();
    valid_.clear();
  }
  return true;
}

const AllowedKey* KeyRing::find(const Key& key) const {
  const auto found = valid_.find(key);
  return found == valid_.end() ? nullptr : &found->second;
}

}  // namespace commensal::keys
