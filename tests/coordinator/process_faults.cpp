// SPDX-License-Identifier: Apache-2.0
// Stands in for functions of the C library in whatever program it is loaded into.
#include "tests/coordinator/process_faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

using commensal::process_faults::Control;

Control* g_control = nullptr;
std::array<char, PATH_MAX> g_folder{};

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

/// Before any code of the program.
__attribute__((constructor)) void begin() {
  const char* control = std::getenv(commensal::process_faults::kControlVariable);
  const char* folder = std::getenv(commensal::process_faults::kFolderVariable);
  if (control == nullptr || folder == nullptr) return;
  std::snprintf(g_folder.data(), g_folder.size(), "%s", folder);
  const int fd = next<int (*)(const char*, int, ...)>("open")(control, O_RDWR | O_CLOEXEC);
  void* const mapped = ::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || mapped == MAP_FAILED) ::abort();  // a test that is not disturbed proves nothing
  ::close(fd);
  g_control = static_cast<Control*>(mapped);
  for (const char* name : {"LD_PRELOAD", commensal::process_faults::kControlVariable,
                           commensal::process_faults::kFolderVariable}) {
    ::unsetenv(name);
  }
}

bool watched(std::string_view path) { return path.starts_with(g_folder.data()); }

bool watched(int fd) {
  std::array<char, 32> link{};
  std::array<char, PATH_MAX> path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t size = ::readlink(link.data(), path.data(), path.size());
  return size > 0 && watched(std::string_view{path.data(), static_cast<std::size_t>(size)});
}

/// @param half  does half of a write.
/// @return whether to go on.
template <typename Half>
bool point(bool needs_room, Half half) {
  const std::uint64_t number = g_control->points.fetch_add(1) + 1;
  if (number == g_control->die_at) {
    if (g_control->torn) half();
    ::kill(::getpid(), SIGKILL);
    while (true) ::pause();
  }
  if (!needs_room || !g_control->full) return true;
  errno = ENOSPC;
  return false;
}
bool point(bool needs_room) {
  return point(needs_room, [] {});
}

constexpr bool kNeedsRoom = true;

/// Whether a change of what `where` names (a path or a descriptor) goes on.
template <typename Where>
bool may_change(Where where, bool needs_room = false) {
  return g_control == nullptr || !watched(where) || point(needs_room);
}

bool is_there(const char* path) { return ::access(path, F_OK) == 0; }

template <typename Open>
int open_file(Open real, const char* path, int flags, mode_t mode) {
  const bool made = (flags & O_CREAT) != 0 && !is_there(path);
  if (made && !may_change(path, kNeedsRoom)) return -1;
  return real(path, flags, mode);
}

mode_t mode_in(int flags, std::va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

// What is declared in headers with attributes of its own is named here as the C library has it.
extern "C" {

int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_file(next<int (*)(const char*, int, ...)>("open"), path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_file(next<int (*)(const char*, int, ...)>("open64"), path, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  const auto half = [&] { (void)real(fd, bytes, size / 2); };
  if (g_control != nullptr && watched(fd) && !point(kNeedsRoom, half)) return -1;
  return real(fd, bytes, size);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  const auto first = [&] { (void)real(fd, parts, 1); };
  if (g_control != nullptr && watched(fd) && !point(kNeedsRoom, first)) return -1;
  return real(fd, parts, count);
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  const auto half = [&] { (void)real(fd, bytes, size / 2, offset); };
  if (g_control != nullptr && watched(fd) && !point(kNeedsRoom, half)) return -1;
  return real(fd, bytes, size, offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  return pwrite(fd, bytes, size, offset);
}

int fsync(int fd) { return may_change(fd) ? next<int (*)(int)>("fsync")(fd) : -1; }
int fdatasync(int fd) { return may_change(fd) ? next<int (*)(int)>("fdatasync")(fd) : -1; }
int ftruncate(int fd, off_t size) noexcept {
  return may_change(fd) ? next<int (*)(int, off_t)>("ftruncate")(fd, size) : -1;
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }

int rename(const char* from, const char* to) noexcept {
  return may_change(to) ? next<int (*)(const char*, const char*)>("rename")(from, to) : -1;
}
int link(const char* from, const char* to) noexcept {
  return may_change(to, kNeedsRoom) ? next<int (*)(const char*, const char*)>("link")(from, to)
                                    : -1;
}
int unlink(const char* path) noexcept {
  return may_change(path) ? next<int (*)(const char*)>("unlink")(path) : -1;
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  // Of a path within a folder that is open: what counts is the folder.
  const bool goes_on = path[0] == '/' ? may_change(path) : may_change(folder);
  return goes_on ? next<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags) : -1;
}
int remove(const char* path) noexcept {
  return may_change(path) ? next<int (*)(const char*)>("remove")(path) : -1;
}
int rmdir(const char* path) noexcept {
  return may_change(path) ? next<int (*)(const char*)>("rmdir")(path) : -1;
}
int mkdir(const char* path, mode_t mode) noexcept {
  const bool goes_on = is_there(path) || may_change(path, kNeedsRoom);
  return goes_on ? next<int (*)(const char*, mode_t)>("mkdir")(path, mode) : -1;
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* files,
                const posix_spawnattr_t* attributes, char* const words[], char* const variables[]) {
  using Spawn = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*,
                        const posix_spawnattr_t*, char* const[], char* const[]);
  if (g_control != nullptr) (void)point(false);
  return next<Spawn>("posix_spawn")(pid, path, files, attributes, words, variables);
}
int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* files,
                 const posix_spawnattr_t* attributes, char* const words[],
                 char* const variables[]) {
  using Spawn = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*,
                        const posix_spawnattr_t*, char* const[], char* const[]);
  if (g_control != nullptr) (void)point(false);
  return next<Spawn>("posix_spawnp")(pid, file, files, attributes, words, variables);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static const auto real = next<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int rc = real(clock, time);
  if (rc == 0 && clock == CLOCK_REALTIME && g_control != nullptr) {
    time->tv_sec += g_control->clock_ms / 1000;
  }
  return rc;
}

}  // extern "C"
