// SPDX-License-Identifier: Apache-2.0
// The folder in which a user's, a node's or a coordinator's keys are.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/keys/key_pair.h"

namespace commensal::keys {

/// Names of the pairs that programs use unless they are told otherwise.
inline constexpr std::string_view kCoordinatorKey = "coordinator";
inline constexpr std::string_view kClientKey = "client";
inline constexpr std::string_view kNodeKey = "node";

/// Returns the key folder of the environment: COMMENSAL_KEYS_DIR, else
/// $XDG_CONFIG_HOME/commensal/keys, else ~/.config/commensal/keys. Touches no file.
/// @throws KeyProblem without a home.
[[nodiscard]] std::filesystem::path default_key_folder();

/// Checks a name of a key: 1 to 64 of letters, digits, '.', '_', '-', not beginning with '.' or
/// '-'. @throws KeyProblem naming the value.
void check_key_name(std::string_view name);

/// A folder (mode 0700) with, of each pair, NAME.key (0600: name, public and secret key, JSON) and
/// NAME.pub (the public key alone, to be handed on). Checked at each use: what others could read or
/// change is not used. Thread safety: any member may be called from any thread; processes that make
/// the same pair at once get one pair, or "in use".
class KeyFolder {
 public:
  /// Opens nothing yet.
  explicit KeyFolder(std::filesystem::path path) : path_(std::move(path)) {}

  /// Makes a pair, and the folder if it is missing. Returns the public key.
  /// @throws KeyProblem, also if the name is in use.
  Key create(const std::string& name) const;

  /// Reads a pair. @throws KeyProblem; if there is none, it says how to make one.
  [[nodiscard]] KeyPair load(const std::string& name) const;

  /// Reads the coordinator's pair, and makes it if there is none. @throws KeyProblem.
  [[nodiscard]] KeyPair coordinator_pair() const;

  /// Reads a public key that was put here, e.g. the coordinator's as coordinator.pub.
  /// @throws KeyProblem; if there is none, it says where it comes from.
  [[nodiscard]] Key load_public(const std::string& name) const;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::filesystem::path key_file(const std::string& name) const;
  [[nodiscard]] std::filesystem::path public_file(const std::string& name) const;

  /// Makes the folder if it is missing, and checks that it is this user's alone. @throws
  /// KeyProblem.
  void prepare() const;

 private:
  std::filesystem::path path_;
};

/// Held while a file of the folder is changed; waits for others that change one.
class FolderLock {
 public:
  /// @throws KeyProblem.
  explicit FolderLock(const KeyFolder& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

}  // namespace commensal::keys
