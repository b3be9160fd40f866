// SPDX-License-Identifier: Apache-2.0
// Runtime folder and socket names.
#include "coordinator/wire/paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace commensal::wire {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

std::filesystem::path instance_file(const std::filesystem::path& dir, std::string_view instance,
                                    std::string_view extension) {
  check_instance_name(instance);
  std::string name{instance};
  name += extension;
  return dir / name;
}

std::filesystem::path checked_socket(std::filesystem::path path) {
  const std::size_t length = path.native().size();
  if (length > kMaxSocketPath) {
    throw BadPath("socket path is too long for AF_UNIX (choose a shorter runtime folder): " +
                  std::to_string(length) + " > " + std::to_string(kMaxSocketPath) +
                  " bytes: " + path.native());
  }
  return path;
}

}  // namespace

std::filesystem::path default_runtime_dir() {
  if (const char* dir = std::getenv("COMMENSAL_RUNTIME_DIR"); dir != nullptr && *dir != '\0') {
    return dir;
  }
  if (const char* dir = std::getenv("XDG_RUNTIME_DIR"); dir != nullptr && *dir != '\0') {
    return std::filesystem::path{dir} / "commensal";
  }
  return "/tmp/commensal-" + std::to_string(geteuid());
}

void prepare_runtime_dir(const std::filesystem::path& dir) {
  prepare_private_dir(dir, "runtime folder");
}

void prepare_private_dir(const std::filesystem::path& dir, std::string_view what) {
  const std::string name{what};
  if (dir.empty()) throw BadPath(name + " has an empty name");
  std::error_code parents;
  if (dir.has_parent_path()) std::filesystem::create_directories(dir.parent_path(), parents);
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    throw BadPath("cannot make the " + name + " " + dir.native() + ": " + error_text(errno));
  }
  struct stat info {};
  if (lstat(dir.c_str(), &info) != 0) {
    throw BadPath("cannot look at the " + name + " " + dir.native() + ": " + error_text(errno));
  }
  if (!S_ISDIR(info.st_mode)) {
    throw BadPath(name + " is not a folder (symbolic links are not followed): " + dir.native());
  }
  if (info.st_uid != geteuid()) {
    throw BadPath(name + " belongs to another user: " + dir.native() + " (uid " +
                  std::to_string(info.st_uid) + ", not " + std::to_string(geteuid()) + ")");
  }
  if ((info.st_mode & 077U) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", info.st_mode & 07777U);
    throw BadPath(name + " is open to other users (chmod 700 it): " + dir.native() + " has mode " +
                  mode);
  }
}

void check_instance_name(std::string_view instance) {
  const bool letters = std::all_of(instance.begin(), instance.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
  if (instance.empty() || instance.size() > 64 || instance.front() == '.' || !letters) {
    throw BadPath(
        "instance name must be 1 to 64 letters, digits, '.', '_' or '-' and not begin with '.': '" +
        std::string{instance} + "'");
  }
}

std::filesystem::path control_socket_path(const std::filesystem::path& dir,
                                          std::string_view instance) {
  return checked_socket(instance_file(dir, instance, ".sock"));
}
std::filesystem::path pages_socket_path(const std::filesystem::path& dir,
                                        std::string_view instance) {
  return checked_socket(instance_file(dir, instance, ".pages"));
}
std::filesystem::path lock_path(const std::filesystem::path& dir, std::string_view instance) {
  return instance_file(dir, instance, ".lock");
}
std::filesystem::path log_path(const std::filesystem::path& dir, std::string_view instance) {
  return instance_file(dir, instance, ".log");
}

std::string ipc_endpoint(const std::filesystem::path& socket) { return "ipc://" + socket.native(); }

}  // namespace commensal::wire
