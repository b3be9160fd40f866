// SPDX-License-Identifier: Apache-2.0
// Lets the kernel note which pages are written. Built without sanitizers (sources.cmake), with
// system calls past the C library's names: parts run while threads are stopped.
#include "allocator/host/write_watch.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "allocator/host/own_descriptors.h"

namespace commensal {
namespace {

// From Linux's uapi/linux/userfaultfd.h (5.11 and 6.7), which older system headers lack.
constexpr int kUserModeOnly = 1;
constexpr std::uint64_t kWriteProtectUnpopulated = 1U << 13U;
constexpr std::uint64_t kWriteProtectAsync = 1U << 15U;

uffdio_range range(const std::byte* begin, std::size_t size) noexcept {
  uffdio_range stretch{};
  stretch.start = reinterpret_cast<std::uintptr_t>(begin);
  stretch.len = size;
  return stretch;
}

bool call(int fd, unsigned long request, void* argument) noexcept {
  long got = -1;
  do {
    got = own_descriptors::call(SYS_ioctl, fd, request, argument);
  } while (got == -EINTR || got == -EAGAIN);
  return got >= 0;
}

}  // namespace

std::unique_ptr<WriteWatch> WriteWatch::open(const PageMap& pages) {
  if (!pages.uses_scan()) return nullptr;
  const long fd = own_descriptors::call(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly);
  if (fd < 0) return nullptr;
  std::unique_ptr<WriteWatch> watch(new WriteWatch(static_cast<int>(fd), pages));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kWriteProtectAsync | kWriteProtectUnpopulated;
  if (!call(watch->fd_, UFFDIO_API, &api) || !watch->works()) return nullptr;
  return watch;
}

WriteWatch::~WriteWatch() { own_descriptors::close(fd_); }

// Whether a write of ours, one by a system call, and none are told apart.
bool WriteWatch::works() noexcept {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = 4 * page;
  void* got = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return false;
  auto* begin = static_cast<std::byte*>(got);
  auto* bytes = static_cast<volatile std::byte*>(begin);
  for (std::size_t i = 0; i < 3; ++i) bytes[i * page] = std::byte{1};  // the last one: unpopulated
  std::uint8_t flags[4];
  int ends[2] = {-1, -1};
  bool ok = prepare(begin, size) && arm(begin, size) && changed(begin, size, page, flags) &&
            (flags[0] | flags[1] | flags[2] | flags[3]) == 0 &&
            own_descriptors::call(SYS_pipe2, ends, O_CLOEXEC) == 0;
  if (ok) {
    bytes[0] = std::byte{2};
    bytes[3 * page] = std::byte{2};
    ok = own_descriptors::call(SYS_write, ends[1], "x", 1) == 1 &&
         own_descriptors::call(SYS_read, ends[0], begin + page, 1) == 1 &&
         changed(begin, size, page, flags) && flags[0] == 1 && flags[1] == 1 && flags[2] == 0 &&
         flags[3] == 1;
  }
  for (const int end : ends) own_descriptors::close(end);
  ::munmap(got, size);
  return ok;
}

bool WriteWatch::prepare(std::byte* begin, std::size_t size) noexcept {
  uffdio_register arguments{};
  arguments.range = range(begin, size);
  arguments.mode = UFFDIO_REGISTER_MODE_WP;
  return call(fd_, UFFDIO_REGISTER, &arguments);
}

bool WriteWatch::arm(std::byte* begin, std::size_t size) noexcept {
  uffdio_writeprotect arguments{};
  arguments.range = range(begin, size);
  arguments.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  return call(fd_, UFFDIO_WRITEPROTECT, &arguments);
}

bool WriteWatch::changed(const std::byte* begin, std::size_t size, std::size_t piece,
                         std::uint8_t* flags) const noexcept {
  return pages_.mark_unprotected(begin, size, piece, flags);
}

void WriteWatch::forget(std::byte* begin, std::size_t size) noexcept {
  uffdio_range stretch = range(begin, size);
  (void)call(fd_, UFFDIO_UNREGISTER, &stretch);  // a mapping that is not registered: nothing to do
}

void WriteWatch::forget_in_child() noexcept { fd_ = -1; }

}  // namespace commensal
