// SPDX-License-Identifier: Apache-2.0
// Errors of the system, with what was tried.
#pragma once

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace commensal::cluster::local {

/// @throws std::system_error always.
[[noreturn]] inline void fail(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

/// @throws std::system_error always: "cannot WHAT PATH".
[[noreturn]] inline void fail(const char* what, const std::filesystem::path& path,
                              int error = errno) {
  fail(std::string{"cannot "} + what + ' ' + path.native(), error);
}

/// @throws std::system_error unless `error` is 0.
inline void check(int error, const std::string& what) {
  if (error != 0) fail(what, error);
}

}  // namespace commensal::cluster::local
