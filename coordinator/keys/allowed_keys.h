// SPDX-License-Identifier: Apache-2.0
// Which keys may do what: the coordinator's list.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/keys/key_folder.h"
#include "coordinator/keys/key_pair.h"

namespace commensal::keys {

enum class Role : std::uint8_t {
  kUser,      ///< acts for its tenants
  kOperator,  ///< does everything but report as a node
  kNode       ///< reports as the node that its name says, and does nothing else
};
/// Returns the word for it: "user", "operator", "node".
[[nodiscard]] std::string_view to_string(Role role) noexcept;
/// @throws KeyProblem naming the value.
[[nodiscard]] Role parse_role(std::string_view word);

struct AllowedKey {
  std::string name;
  Key key;  ///< the public one
  Role role{};
  std::vector<std::string> tenants;  ///< of a user, one at least; of others none
  std::int64_t created_ms = 0;       ///< since 1970
  std::optional<std::int64_t> revoked_ms;
  bool operator==(const AllowedKey&) const = default;

  [[nodiscard]] bool valid() const noexcept { return !revoked_ms; }
};

/// In the order in which they came; revoked ones stay, so that none is allowed again by mistake.
using AllowedKeys = std::vector<AllowedKey>;

/// Return the list with a change. A name stands for one key that is not revoked; a key is in the
/// list once. @throws KeyProblem: name or key in use, a key that was revoked, a user without a
/// tenant, a tenant without a name, tenants of another role; no such name.
[[nodiscard]] AllowedKeys with_allowed(AllowedKeys keys, AllowedKey key);
[[nodiscard]] AllowedKeys with_revoked(AllowedKeys keys, std::string_view name,
                                       std::int64_t now_ms);

/// The list as a file, allowed.json in a key folder: `{"v": 1, "keys": [...]}`. The only code that
/// reads or writes it. Thread safety: none; processes that change it at once wait for each other.
class AllowedStore {
 public:
  explicit AllowedStore(KeyFolder folder) : folder_(std::move(folder)) {}

  /// Returns the list; empty if there is none yet.
  /// @throws KeyProblem if the file or the folder cannot be used.
  [[nodiscard]] AllowedKeys read() const;
  /// Changes it atomically and durably. @throws KeyProblem; then it is as it was.
  void change(const std::function<AllowedKeys(AllowedKeys)>& how) const;

  [[nodiscard]] std::filesystem::path file() const { return folder_.path() / "allowed.json"; }
  [[nodiscard]] const KeyFolder& folder() const noexcept { return folder_; }

 private:
  KeyFolder folder_;
};

}  // namespace commensal::keys
