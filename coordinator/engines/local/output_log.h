// SPDX-License-Identifier: Apache-2.0
// A rank's output in files of bounded size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/wire/handover.h"

namespace commensal::cluster::local {

/// Appends what a rank wrote to FILE. Before a line that does not fit the limit, FILE becomes
/// FILE.1, that FILE.2, and so on; the oldest goes. A line is in one file, unless it is longer than
/// two of them. What cannot be written (the disk is full) is counted and said in its place.
class OutputLog {
 public:
  /// Opens the file and goes on at its end. @throws std::system_error with the path.
  OutputLog(std::filesystem::path file, LogLimits limits);

  /// Appends; part of a line is written at once, too. Never throws for a full disk.
  void append(std::string_view text);

  /// Bytes that could not be written and are not mentioned in the file yet.
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }

 private:
  void open();
  void reopen();
  void rotate();
  void write(std::string_view text);
  [[nodiscard]] std::size_t fitting(std::string_view text) const;

  std::filesystem::path file_;
  LogLimits limits_;
  wire::UniqueFd fd_;
  std::uint64_t size_ = 0;
  bool at_line_start_ = true;
  std::uint64_t lost_ = 0;
  int last_error_ = 0;
};

}  // namespace commensal::cluster::local
