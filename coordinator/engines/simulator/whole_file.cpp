// SPDX-License-Identifier: Apache-2.0
// A part beside the file, and its new name.
#include "coordinator/engines/simulator/whole_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace commensal::simulator {

void write_whole(const std::string& file, const std::function<void(std::ostream& out)>& write) {
  const std::string part = fmt::format("{}.part{}", file, getpid());
  errno = 0;
  std::ofstream out(part, std::ios::binary);
  if (out) write(out);
  out.close();
  if (!out) {
    const int error = errno;
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw std::system_error(error, std::generic_category(), file);
  }
  std::filesystem::rename(part, file);
}

}  // namespace commensal::simulator
