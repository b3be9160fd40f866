// SPDX-License-Identifier: Apache-2.0
// Finds out whether the kernel may write to this process's memory without one of its threads.
#include "allocator/host/kernel_io.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "allocator/host/own_descriptors.h"
#include "allocator/memory_source.h"

namespace commensal {
namespace {

std::string read_whole(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw SourceError(std::string("open ") + path + ": " + std::strerror(errno));
  std::string text;
  std::array<char, 16384> buffer{};
  ssize_t got = 0;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  const int error = errno;
  ::close(fd);
  if (got < 0) throw SourceError(std::string("read ") + path + ": " + std::strerror(error));
  return text;
}

// A ring can live in memory of the program's own; then only its descriptor shows.
bool has_ring_descriptor() {
  struct CloseFolder {
    void operator()(DIR* folder) const { ::closedir(folder); }
  };
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir("/proc/self/fd"));
  if (!folder) throw SourceError(std::string("open /proc/self/fd: ") + std::strerror(errno));
  while (const dirent* entry = ::readdir(folder.get())) {
    std::array<char, 64> target{};
    const ssize_t length =
        ::readlinkat(::dirfd(folder.get()), entry->d_name, target.data(), target.size());
    if (length <= 0) continue;  // "." and "..", or closed meanwhile
    if (std::string_view(target.data(), static_cast<std::size_t>(length)) ==
        "anon_inode:[io_uring]") {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string asynchronous_kernel_io_in(const std::string& maps) {
  if (maps.find("[io_uring]") != std::string::npos) return "io_uring is in use";
  if (maps.find("[aio]") != std::string::npos) return "kernel asynchronous I/O (libaio) is in use";
  return {};
}

std::string asynchronous_kernel_io() {
  // The files are opened in our own table; /proc/self/fd shows the program's from there too.
  return own_descriptors::run([] {
    std::string found = asynchronous_kernel_io_in(read_whole("/proc/self/maps"));
    if (found.empty() && has_ring_descriptor()) found = "io_uring is in use";
    return found;
  });
}

}  // namespace commensal
