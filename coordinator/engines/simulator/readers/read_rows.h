// SPDX-License-Identifier: Apache-2.0
// What the readers of all formats share: row by row to jobs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "coordinator/engines/simulator/readers/rows.h"
#include "coordinator/engines/simulator/readers/trace_reader.h"

namespace commensal::simulator {

/// Reads all rows of a file by `make(rows)`, which returns a job. Columns from number `optional` on
/// may be missing: their text is empty then.
/// @throws BadTrace for a bad row, and for an id that a job further up has (unless they are
/// skipped).
template <unsigned kColumns, typename Make>
Trace read_rows(const std::string& file, const ReadOptions& options,
                const std::array<std::string_view, kColumns>& columns, const Make& make,
                std::size_t optional = kColumns) {
  Trace trace{.source = file, .jobs = {}};
  Rows<kColumns> rows(file, columns, optional);
  std::unordered_set<std::string> names;
  for (bool more = true; more;) {
    try {
      more = rows.next();
      if (!more) break;
      TraceJob job = make(rows);
      if (!names.insert(job.name).second) rows[0].fail("a second job with this id");
      trace.jobs.push_back(std::move(job));
    } catch (const BadTrace&) {
      if (!options.skip_bad_rows) throw;
      ++trace.skipped_rows;
    }
  }
  return trace;
}

}  // namespace commensal::simulator
