// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/input_files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace commensal::cluster {

std::filesystem::path InputFiles::file(const std::string& tenant, std::uint64_t version,
                                       const std::function<nlohmann::json()>& content) {
  if (folder_.empty() || version == 0) return {};
  // A tenant's name may be any text; that of a file is not.
  std::filesystem::path file =
      folder_ / fmt::format("{:016x}.json", XXH3_64bits(tenant.data(), tenant.size()));
  const auto known = written_.find(tenant);
  const bool same = known != written_.end() && known->second == version;
  if (same && std::filesystem::exists(file)) return file;
  try {
    std::filesystem::create_directories(folder_);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    const std::filesystem::path part = file.string() + ".part";
    std::ofstream out{part, std::ios::trunc};
    out << content().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.close();
    if (!out) throw std::system_error(errno, std::generic_category(), part.native());
    std::filesystem::rename(part, file);
  } catch (const std::system_error& error) {
    throw std::runtime_error(
        fmt::format("the list of bad inputs was not written: {}", error.what()));
  }
  written_[tenant] = version;
  return file;
}

}  // namespace commensal::cluster
