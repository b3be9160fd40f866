// SPDX-License-Identifier: Apache-2.0
// Parts of a job's output, for those who cannot open its file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace commensal::cluster {

/// A place in a file that may be rotated while it is read: FILE becomes FILE.1, that one FILE.2.
struct OutputPlace {
  std::string file;  ///< its inode; empty: the newest file
  std::uint64_t offset = 0;
};

struct OutputPart {
  std::string bytes;
  OutputPlace next;   ///< where to go on
  bool more = false;  ///< there is more already
};

/// Reads at most `most` bytes from a place on. A place in a file that is gone becomes the beginning
/// of the oldest one that is left. Without a file the part is empty, and the place as it was.
/// @throws std::runtime_error if a file is there and cannot be read.
[[nodiscard]] OutputPart read_output(const std::filesystem::path& path, const OutputPlace& from,
                                     std::size_t most);

}  // namespace commensal::cluster
