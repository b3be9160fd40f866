// SPDX-License-Identifier: Apache-2.0
// The AF_UNIX socket that hands pages and pidfds from process to process (SCM_RIGHTS), so that it
// also works across containers. One SEQPACKET connection a process, open while it lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/enum_names.h"

namespace commensal::wire {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

/// What a hand-over datagram is about. The descriptors that travel with each kind stand beside it.
/// On the wire it is a JSON object {"v":1,"kind":...,"job_id":...,"pid":...,"rank":...,"text":...}.
enum class HandoverKind : std::uint8_t {
  kHello,       ///< process -> coordinator: [page memfd, own pidfd]
  kDevicePage,  ///< coordinator -> process: [device page memfd (read only)]
  kPeerAdded,   ///< coordinator -> process: a guaranteed job's process: [page memfd, pidfd]
  kPeerGone,    ///< coordinator -> process: forget that peer: []
  kRefused,     ///< coordinator -> process: [], `text` says why
};

constexpr EnumNames<HandoverKind, 5> names_of(HandoverKind) noexcept {
  return {{{HandoverKind::kHello, "hello"},
           {HandoverKind::kDevicePage, "device_page"},
           {HandoverKind::kPeerAdded, "peer_added"},
           {HandoverKind::kPeerGone, "peer_gone"},
           {HandoverKind::kRefused, "refused"}}};
}

struct Handover {
  HandoverKind kind = HandoverKind::kHello;
  std::string job_id;
  std::int64_t pid = 0;
  int rank = 0;
  std::string text;
  std::vector<UniqueFd> fds;
};

/// Sends one datagram. @throws std::system_error.
void send_handover(int socket, const Handover& message);
/// Receives one datagram; nullopt when the peer closed. @throws std::system_error, BadMessage.
/// A non-blocking socket without data throws std::system_error with EAGAIN.
[[nodiscard]] std::optional<Handover> receive_handover(int socket);

/// Makes a page: a memfd of kPageSize, zeroed, sealed against shrinking and growing.
[[nodiscard]] UniqueFd make_page_memfd(const char* name);
/// Seals a page against new writable mappings; its owner maps it writable first and stays the only
/// writer. Without effect on kernels before 5.1. @throws std::system_error.
void seal_against_writing(int fd);
/// Opens a page's file again, read-only. @throws std::system_error.
[[nodiscard]] UniqueFd reopen_read_only(int fd);

/// A mapped page; unmaps in the destructor.
class MappedPage {
 public:
  MappedPage() noexcept = default;
  /// Maps at least `size` bytes. @throws std::system_error if the file is not sealed against
  /// shrinking (a reader could be killed by SIGBUS), too small, or cannot be mapped.
  MappedPage(int fd, std::size_t size, bool writable);
  MappedPage(MappedPage&& other) noexcept;
  MappedPage& operator=(MappedPage&& other) noexcept;
  ~MappedPage();

  template <typename Page>
  [[nodiscard]] Page* as() const noexcept {
    return static_cast<Page*>(address_);
  }
  [[nodiscard]] explicit operator bool() const noexcept { return address_ != nullptr; }

 private:
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

/// Connects to a hand-over socket. @throws std::system_error.
[[nodiscard]] UniqueFd connect_handover(const std::string& path);
/// Binds and listens; replaces a stale socket file. @throws std::system_error.
[[nodiscard]] UniqueFd listen_handover(const std::string& path);
/// Opens a pidfd. @throws std::system_error.
[[nodiscard]] UniqueFd open_pidfd(std::int64_t pid);

}  // namespace commensal::wire
