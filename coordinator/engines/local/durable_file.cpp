// SPDX-License-Identifier: Apache-2.0
// write, fsync, rename, fsync of the folder.
#include "coordinator/engines/local/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "coordinator/engines/local/system_failure.h"
#include "coordinator/wire/handover.h"

namespace commensal::cluster::local {
namespace {

namespace fs = std::filesystem;
using wire::UniqueFd;

void write_all(int fd, std::string_view text, const fs::path& file) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", file);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void sync_folder(const fs::path& folder) {
  const UniqueFd fd{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd) fail("open the folder", folder);
  if (::fsync(fd.get()) != 0) fail("sync the folder", folder);
}

void write_whole(const fs::path& file, std::string_view text, Durable durable) {
  fs::path fresh = file;
  fresh += ".new";
  {
    const UniqueFd fd{
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)};
    if (!fd) fail("make", fresh);
    write_all(fd.get(), text, fresh);
    if (durable == Durable::kYes && ::fsync(fd.get()) != 0) fail("sync", fresh);
  }
  if (::rename(fresh.c_str(), file.c_str()) != 0) fail("rename to", file);
  if (durable == Durable::kYes) sync_folder(file.parent_path());
}

bool make_marker(const fs::path& file) {
  const UniqueFd fd{::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (!fd && errno == EEXIST) return false;
  if (!fd) fail("make", file);
  sync_folder(file.parent_path());
  return true;
}

}  // namespace commensal::cluster::local
