// SPDX-License-Identifier: Apache-2.0
// What kind of file system a folder is on: a disk, memory, or another machine's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace commensal {

enum class FolderKind : std::uint8_t { kDisk, kMemory, kNetwork };

struct FolderFacts {
  FolderKind kind = FolderKind::kDisk;
  std::string type;  ///< "ext4", "tmpfs", "nfs4", "fuse.sshfs"; a number where there is no name
};

/// Tells the kind by statfs's magic number and the type in the table of mounts (may be empty, and
/// says more where a server is a program: the magic of all of FUSE is one). What is not known to be
/// memory or a network counts as a disk.
[[nodiscard]] FolderFacts classify_file_system(std::uint64_t magic, std::string_view mount_type);

/// Looks at the file system of an open file or folder.
[[nodiscard]] FolderFacts file_system_of(int fd);
/// The same by name; a folder that cannot be opened counts as a disk without a type.
[[nodiscard]] FolderFacts file_system_of(const std::string& folder);

/// Says what to expect of a spill file in the folder; empty: nothing special.
[[nodiscard]] std::string spill_folder_warning(const std::string& folder, const FolderFacts& facts);

}  // namespace commensal
