// SPDX-License-Identifier: Apache-2.0
// The list of allowed keys as a running coordinator sees it.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "coordinator/keys/allowed_keys.h"

namespace commensal::keys {

/// Follows the list while it is changed by others. Whatever cannot be read allows nobody.
/// Thread safety: none.
class KeyRing {
 public:
  /// Reads nothing yet: nobody is allowed before the first `refresh`.
  explicit KeyRing(AllowedStore store) : store_(std::move(store)) {}

  /// Reads the list again if its file is another one than at the last call, at the cost of one
  /// look at it. @return whether anything has changed.
  bool refresh();

  /// Why nobody is allowed; empty: the list is good.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  /// Returns the entry of a key that is allowed as of the last `refresh`; null: it is not, or not
  /// any more. Valid until the next `refresh`.
  [[nodiscard]] const AllowedKey* find(const Key& key) const;

 private:
  using Stamp = std::array<std::int64_t, 9>;  // of file and folder; changes with them
  [[nodiscard]] Stamp stamp() const;

  AllowedStore store_;
  Stamp seen_{};
  bool read_ = false;
  std::map<Key, AllowedKey> valid_;
  std::string problem_;
};

}  // namespace commensal::keys
