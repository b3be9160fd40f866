// SPDX-License-Identifier: Apache-2.0
// Control groups that could not be removed when their attempt was over.
#pragma once

#include <filesystem>
#include <vector>

#include "coordinator/node/group_weight.h"

namespace commensal::cluster::local {

/// Removes control groups, later those that the kernel does not give up yet: a process that was
/// killed stays in its group until the kernel is done with it. Which are left is written down, so
/// that whoever opens the same file goes on. Thread safety: none.
class LeftGroups {
 public:
  /// Most that are remembered; of more the oldest are forgotten, and stay.
  static constexpr std::size_t kMost = 1000;

  /// Reads which are left. What is no list of ours counts as none: such groups are empty and do
  /// nothing. @param files  not owned, must outlive this object.
  LeftGroups(node::GroupFiles& files, std::filesystem::path file);

  /// Removes these groups, or remembers them.
  void remove(const std::vector<std::filesystem::path>& groups);
  /// Tries again, at the cost of one call a group.
  void sweep();

  [[nodiscard]] const std::vector<std::filesystem::path>& left() const noexcept { return left_; }

 private:
  void write_down();

  node::GroupFiles& files_;
  std::filesystem::path file_;
  std::vector<std::filesystem::path> left_;
  bool written_ = true;
};

}  // namespace commensal::cluster::local
