// SPDX-License-Identifier: Apache-2.0
// Whether a log (WAL) that a crash has left behind was cut by it, or is damaged.
#pragma once

#include <cstdint>
#include <filesystem>

namespace commensal::cluster {

// As SQLite's file format defines it.
inline constexpr std::uint64_t kLogHeader = 32;
inline constexpr std::uint64_t kFrameHeader = 24;

/// Looks at a log as SQLite's file format defines it; the one who wrote it must have synced each
/// commit before the next one (`synchronous=FULL`).
///
/// SQLite takes a log up to the first frame whose checksum is wrong, and forgets the rest without a
/// word. After a crash that is right: what follows is one commit that was never acknowledged. If
/// what follows holds the ends of two commits, the first of them had been synced: damage. A damaged
/// frame of the very last commit looks like a crash and is taken for one.
/// @return true if commits would be forgotten. False, too, if there is no such file.
[[nodiscard]] bool log_is_damaged(const std::filesystem::path& log);

}  // namespace commensal::cluster
