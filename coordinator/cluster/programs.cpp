// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/programs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;

void make_absolute(fs::path& path, const fs::path& here) {
  if (!path.empty()) path = (here / path).lexically_normal();
}

void check_program(const char* option, const fs::path& program) {
  if (const std::string obstacle = obstacle_to_running(program); !obstacle.empty()) {
    throw std::invalid_argument(
        fmt::format("{} cannot be started: {}: {}", option, program.native(), obstacle));
  }
}

}  // namespace

std::string obstacle_to_running(const fs::path& program) {
  struct stat found {};
  if (::stat(program.c_str(), &found) != 0) return std::generic_category().message(errno);
  if (!S_ISREG(found.st_mode)) return "it is not a file";
  if (::access(program.c_str(), X_OK) != 0) return std::generic_category().message(errno);
  return "";
}

void resolve_paths(ClusterOptions& options, const fs::path& here, const fs::path& beside) {
  make_absolute(options.runtime_dir, here);
  make_absolute(options.state_dir, here);
  make_absolute(options.keys_dir, here);
  make_absolute(options.log_file, here);
  make_absolute(options.slurm.programs, here);
  if (options.keeper.empty()) {
    options.keeper = beside / "commensal-keeper";
  } else {
    make_absolute(options.keeper, here);
    check_program("--keeper", options.keeper);
  }
  if (options.commensal.find('/') != std::string::npos) {
    fs::path program{options.commensal};
    make_absolute(program, here);
    check_program("--commensal", program);
    options.commensal = program.native();
  }
}

}  // namespace commensal::cluster
