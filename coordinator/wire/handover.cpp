// SPDX-License-Identifier: Apache-2.0
// Passing descriptors over AF_UNIX, sealed memfds and pidfds.
#include "coordinator/wire/handover.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "coordinator/wire/json_fields.h"
#include "coordinator/wire/json_text.h"
#include "coordinator/wire/message_fields.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/pages.h"
#include "coordinator/wire/paths.h"

namespace commensal::wire {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxDatagram = 8192;
constexpr std::size_t kMaxFds = 4;

// How many descriptors travel with each; the position is the value of HandoverKind.
constexpr std::array<std::size_t, 5> kFds{2, 1, 2, 0, 0};

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() > kMaxSocketPath) {
    fail("hand-over socket path must have 1 to 107 bytes, has " + std::to_string(path.size()) +
             ": " + path,
         ENAMETOOLONG);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

UniqueFd seqpacket_socket() {
  UniqueFd fd{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!fd) fail("cannot make a hand-over socket");
  return fd;
}

std::vector<UniqueFd> received_fds(msghdr& header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

struct HandoverVersion {
  std::int64_t v = 0;
};
void fields(SameAs<HandoverVersion> auto& header, auto& field) { field("v", header.v); }

Handover parse_handover(std::string_view text) {
  const json object = try_parse_json(text).value_or(nullptr);
  try {
    HandoverVersion header;
    read_fields(object, "frame", header);
    if (header.v != kProtocolVersion) {
      throw BadMessage("version", "hand-over field 'v' is " + std::to_string(header.v) +
                                      ", this side speaks version " +
                                      std::to_string(kProtocolVersion));
    }
    Handover message;
    read_fields(object, "frame", message);
    return message;
  } catch (const BadField& problem) {
    throw BadMessage("malformed", std::string{"hand-over "} + problem.what());
  }
}

}  // namespace

void UniqueFd::reset(int fd) noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

void send_handover(int socket, const Handover& message) {
  json object = write_fields(message);
  object["v"] = kProtocolVersion;
  object["text"] = message.text.substr(0, kMaxDatagram / 2);
  std::string text = object.dump(-1, ' ', false, json::error_handler_t::replace);
  if (message.fds.size() > kMaxFds) {
    fail("a hand-over carries at most 4 descriptors, not " + std::to_string(message.fds.size()),
         EINVAL);
  }
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!message.fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(message.fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(message.fds.size() * sizeof(int));
    std::vector<int> fds;
    fds.reserve(message.fds.size());
    for (const UniqueFd& fd : message.fds) fds.push_back(fd.get());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) fail("cannot send a hand-over");
}

std::optional<Handover> receive_handover(int socket) {
  std::array<char, kMaxDatagram> buffer;
  // Room for more descriptors than allowed, so that a sender of too many is told so.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * kMaxFds * sizeof(int))> control{};
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == ECONNRESET) return std::nullopt;
  if (size < 0) fail("cannot receive a hand-over");
  std::vector<UniqueFd> fds = received_fds(header);  // owned from here on: never leaked
  if (size == 0) return std::nullopt;
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    throw BadMessage("oversized",
                     "hand-over is larger than " + std::to_string(kMaxDatagram) + " bytes");
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    throw BadMessage("malformed", "hand-over carries too many descriptors");
  }
  Handover message = parse_handover({buffer.data(), static_cast<std::size_t>(size)});
  const std::size_t wanted = kFds[static_cast<std::size_t>(message.kind)];
  if (fds.size() != wanted) {
    throw BadMessage("malformed", "hand-over '" + std::string{name_of(message.kind)} +
                                      "' carries " + std::to_string(wanted) + " descriptors, not " +
                                      std::to_string(fds.size()));
  }
  message.fds = std::move(fds);
  return message;
}

UniqueFd make_page_memfd(const char* name) {
  UniqueFd fd{memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd) fail("cannot make a memfd for a page");
  if (ftruncate(fd.get(), static_cast<off_t>(kPageSize)) != 0) fail("cannot size a page");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) fail("cannot seal a page");
  return fd;
}

void seal_against_writing(int fd) {
#ifdef F_SEAL_FUTURE_WRITE
  // EINVAL: a kernel before 5.1, where readers get a read-only descriptor and no more.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL) {
    fail("cannot seal a page against writing");
  }
#else
  (void)fd;
#endif
}

UniqueFd reopen_read_only(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd reader{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!reader) fail("cannot open a page read-only through " + path);
  return reader;
}

MappedPage::MappedPage(int fd, std::size_t size, bool writable) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) fail("page is not a sealed memfd");
  if ((seals & F_SEAL_SHRINK) == 0) fail("page is not sealed against shrinking", EPERM);
  struct stat info {};
  if (fstat(fd, &info) != 0) fail("cannot look at a page");
  if (size == 0 || info.st_size < 0 || static_cast<std::size_t>(info.st_size) < size) {
    fail("page is too small: " + std::to_string(info.st_size) + " < " + std::to_string(size) +
             " bytes",
         EINVAL);
  }
  void* address =
      mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail("cannot map a page");
  address_ = address;
  size_ = size;
}

MappedPage::MappedPage(MappedPage&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedPage& MappedPage::operator=(MappedPage&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

MappedPage::~MappedPage() {
  if (address_ != nullptr) munmap(address_, size_);
}

UniqueFd connect_handover(const std::string& path) {
  const sockaddr_un address = address_of(path);
  UniqueFd fd = seqpacket_socket();
  if (connect(fd.get(), generic(address), sizeof address) != 0) {
    fail("cannot connect to the hand-over socket " + path);
  }
  return fd;
}

UniqueFd listen_handover(const std::string& path) {
  const sockaddr_un address = address_of(path);
  {
    UniqueFd probe = seqpacket_socket();
    if (connect(probe.get(), generic(address), sizeof address) == 0) {
      fail("somebody listens on the hand-over socket " + path + " already", EADDRINUSE);
    }
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    fail("cannot remove the stale hand-over socket " + path);
  }
  UniqueFd fd = seqpacket_socket();
  if (bind(fd.get(), generic(address), sizeof address) != 0) {
    fail("cannot bind the hand-over socket " + path);
  }
  if (chmod(path.c_str(), 0600) != 0) fail("cannot set the rights of " + path);
  if (listen(fd.get(), 128) != 0) fail("cannot listen on " + path);
  return fd;
}

UniqueFd open_pidfd(std::int64_t pid) {
  if (pid <= 0 || pid > INT32_MAX) fail("not a process id: " + std::to_string(pid), EINVAL);
  UniqueFd fd{static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U))};
  if (!fd) fail("cannot open a pidfd for " + std::to_string(pid));
  return fd;
}

}  // namespace commensal::wire
