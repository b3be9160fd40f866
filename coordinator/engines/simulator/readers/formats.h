// SPDX-License-Identifier: Apache-2.0
// One function a format that has a file of its own.
#pragma once

#include <string>

#include "coordinator/engines/simulator/readers/trace_reader.h"

namespace commensal::simulator {

[[nodiscard]] Trace read_chronus(const std::string& file, const ReadOptions& options);
[[nodiscard]] Trace read_own(const std::string& file, const ReadOptions& options);
[[nodiscard]] Trace read_pai_minibatch(const std::string& file, const ReadOptions& options);
[[nodiscard]] Trace read_pai_variation(const std::string& file, const ReadOptions& options);
[[nodiscard]] Trace read_philly(const std::string& file, const ReadOptions& options);
[[nodiscard]] Trace read_shockwave(const std::string& file, const ReadOptions& options);

}  // namespace commensal::simulator
