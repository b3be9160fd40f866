// SPDX-License-Identifier: Apache-2.0
// What every daemon of this project needs: signals as a descriptor, and a log.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "coordinator/wire/handover.h"

namespace spdlog {
class logger;
}

namespace commensal::node {

/// Blocks SIGTERM and SIGINT and ignores SIGPIPE in this process.
/// @return a signalfd of the two. @throws std::system_error.
[[nodiscard]] wire::UniqueFd block_signals();

/// Makes a log that keeps three files of 4 MiB, and writes to stderr.
/// @param file  empty: none. @param to_stderr  whether lines go there too.
/// @throws spdlog::spdlog_ex, a std::exception, if the file cannot be written.
[[nodiscard]] std::shared_ptr<spdlog::logger> make_log(const std::string& name,
                                                       const std::filesystem::path& file,
                                                       bool to_stderr, const std::string& level);

/// Writes to another file from now on; what is written to stderr stays so. @throws spdlog_ex.
void move_log(spdlog::logger& log, const std::filesystem::path& file);

}  // namespace commensal::node
