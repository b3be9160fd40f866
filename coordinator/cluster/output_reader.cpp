// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/output_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/wire/handover.h"

namespace commensal::cluster {
namespace {

constexpr int kMostFiles = 16;

struct Opened {
  wire::UniqueFd fd;
  std::string file;
  std::uint64_t size = 0;
};

std::runtime_error cannot_read(const std::filesystem::path& path) {
  return std::runtime_error(
      fmt::format("cannot read {} ({})", path.native(), std::generic_category().message(errno)));
}

/// The newest first. One that is renamed meanwhile may be missing: the next look finds it.
std::vector<Opened> open_all(const std::filesystem::path& path) {
  std::vector<Opened> files;
  for (int number = 0; number < kMostFiles; ++number) {
    const std::filesystem::path name =
        number == 0 ? path : std::filesystem::path{fmt::format("{}.{}", path.native(), number)};
    wire::UniqueFd fd{open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    if (!fd && errno == ENOENT && number > 0) break;
    if (!fd && errno == ENOENT) continue;
    struct stat info {};
    if (!fd || fstat(fd.get(), &info) != 0) throw cannot_read(name);
    if (!S_ISREG(info.st_mode)) {
      throw std::runtime_error(fmt::format("cannot read {} (it is not a file)", name.native()));
    }
    files.push_back(
        {std::move(fd), std::to_string(info.st_ino), static_cast<std::uint64_t>(info.st_size)});
  }
  return files;
}

}  // namespace

OutputPart read_output(const std::filesystem::path& path, const OutputPlace& from,
                       std::size_t most) {
  const std::vector<Opened> files = open_all(path);
  if (files.empty()) return {"", from, false};
  OutputPlace place = from;
  auto file = files.begin();
  if (!place.file.empty()) {
    file = std::find_if(files.begin(), files.end(),
                        [&](const Opened& opened) { return opened.file == place.file; });
    if (file == files.end()) {
      file = std::prev(files.end());
      place.offset = 0;
    }
  }
  place.file = file->file;
  const std::uint64_t left = file->size > place.offset ? file->size - place.offset : 0;
  OutputPart part;
  part.bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left, most)));
  ssize_t got = 0;
  do {
    got = pread(file->fd.get(), part.bytes.data(), part.bytes.size(),
                static_cast<off_t>(place.offset));
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw cannot_read(path);
  part.bytes.resize(static_cast<std::size_t>(got));
  place.offset += part.bytes.size();
  part.more = place.offset < file->size;
  if (!part.more && file != files.begin()) {  // it was rotated: the next newer one follows
    place = {std::prev(file)->file, 0};
    part.more = true;
  }
  part.next = std::move(place);
  return part;
}

}  // namespace commensal::cluster
