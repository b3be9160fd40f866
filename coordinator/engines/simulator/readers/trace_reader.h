// SPDX-License-Identifier: Apache-2.0
// Reads traces of others, and our own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/engines/simulator/readers/rows.h"
#include "coordinator/engines/simulator/trace.h"

namespace commensal::simulator {

struct ReadOptions {
  bool skip_bad_rows = false;  ///< count them instead of ending
  std::string profiles;        ///< folder of profiles; empty: look beside the trace (pollux)
};

/// Formats by name.
[[nodiscard]] const std::vector<std::string_view>& all_formats();

/// Returns the format of a file by the columns that its first line names: of those whose columns
/// are all there, the one with most.
/// @throws BadTrace if it is none, or two alike.
[[nodiscard]] std::string guess_format(const std::string& file);

/// Reads a trace.
/// @throws BadTrace, naming file, line, column and value; for an empty trace; for two jobs of one
/// name. std::invalid_argument for an unknown format.
[[nodiscard]] Trace read_trace(const std::string& file, std::string_view format,
                               const ReadOptions& options);

}  // namespace commensal::simulator
