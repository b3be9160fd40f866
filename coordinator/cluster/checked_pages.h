// SPDX-License-Identifier: Apache-2.0
// Files of SQLite whose pages carry a checksum: SQLite itself sees damage only where it breaks the
// structure of a page, and would hand out a changed byte of a text as it is.
#pragma once

namespace commensal::cluster {

/// Size of every page of such a file, and how many bytes at its end are kept for the checksum
/// (SQLITE_FCNTL_RESERVE_BYTES of a new file).
inline constexpr int kPageSize = 4096;
inline constexpr int kReservedBytes = 8;

/// Registers a layer over SQLite's default VFS (the one at the first call) and returns its name.
///
/// Pages of the main file are written with the XXH3 of their content and number in their last eight
/// bytes. A read of a page that does not carry it, of a part of a page, or beyond the end is
/// SQLITE_IOERR_DATA. The log (WAL) has checksums of SQLite's own and passes as it is. Files are
/// used by one process at a time: there is no shared memory, so WAL needs `locking_mode=EXCLUSIVE`.
/// Thread safety: any thread. @throws std::runtime_error if SQLite does not take it.
[[nodiscard]] const char* checked_pages();

}  // namespace commensal::cluster
