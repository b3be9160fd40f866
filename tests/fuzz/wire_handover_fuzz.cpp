// SPDX-License-Identifier: Apache-2.0
// Any datagram, with any number of descriptors, on the hand-over socket: it is understood or
// refused by BadMessage, and no descriptor is left open.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "coordinator/wire/handover.h"
#include "coordinator/wire/messages.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;

constexpr std::size_t kMostDescriptors = 6;

/// The lowest free descriptor: it rises when one was left open.
int lowest_free() {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  fuzz::require(fd >= 0, "a descriptor can be opened");
  ::close(fd);
  return fd;
}

void send_raw(int socket, const std::uint8_t* data, std::size_t size, std::size_t descriptors) {
  iovec part{const_cast<std::uint8_t*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  const std::vector<int> fds(descriptors, STDIN_FILENO);
  if (descriptors > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), descriptors * sizeof(int));
  }
  // A datagram that the socket's buffer cannot hold is not delivered at all.
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int free_before = lowest_free();
  {
    std::array<int, 2> ends{};
    fuzz::require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0,
                  "a socket pair");
    const wire::UniqueFd sender{ends[0]};
    const wire::UniqueFd receiver{ends[1]};
    send_raw(sender.get(), data + 1, size - 1, data[0] % (kMostDescriptors + 1));
    ::shutdown(sender.get(), SHUT_WR);
    try {
      (void)wire::receive_handover(receiver.get());
    } catch (const wire::BadMessage& problem) {
      fuzz::require(problem.what()[0] != '\0', "a refusal has a text");
    }
  }
  fuzz::require(lowest_free() == free_before, "every descriptor that came is closed");
  return 0;
}
