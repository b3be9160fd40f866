// SPDX-License-Identifier: Apache-2.0
// Files with the records that jobs are to leave out, one a tenant, which a job is given at its
// start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace commensal::cluster {

/// Variable of a job's environment that names its file.
inline constexpr const char* kInputsVariable = "COMMENSAL_BAD_INPUTS";

/// Writes a tenant's file anew when its list has changed. Thread safety: none.
class InputFiles {
 public:
  /// @param folder  made with the first file; empty: no files are written.
  explicit InputFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Returns the file of a tenant's list, as whole as it ever is: a job that reads it meanwhile has
  /// the old one or the new one. Empty: there is none, because there is no folder or `version` is
  /// 0.
  /// @param content  asked for only if it is written.
  /// @throws std::runtime_error with one sentence: it cannot be written.
  std::filesystem::path file(const std::string& tenant, std::uint64_t version,
                             const std::function<nlohmann::json()>& content);

 private:
  std::filesystem::path folder_;
  std::map<std::string, std::uint64_t> written_;  // versions, by tenant
};

}  // namespace commensal::cluster
