// SPDX-License-Identifier: Apache-2.0
// One request over ZeroMQ.
#include "coordinator/wire/control_client.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <zmq.hpp>

#include "coordinator/wire/handover.h"
#include "coordinator/wire/paths.h"

namespace commensal::wire {
// ZeroMQ connects in the background for ever; a plain connect says at once that nobody is there.
void check_listener(const std::filesystem::path& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& name = socket_path.native();
  if (name.size() > kMaxSocketPath) {
    throw CoordinatorUnreachable("socket path is longer than 107 bytes: " + name);
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  const UniqueFd probe{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!probe) {
    throw CoordinatorUnreachable("cannot make a socket: " + std::generic_category().message(errno));
  }
  // EAGAIN: its queue is full, so somebody listens.
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EAGAIN) {
    throw CoordinatorUnreachable("no coordinator listens on " + name + " (" +
                                 std::generic_category().message(errno) + ")");
  }
}

namespace {

using Steady = std::chrono::steady_clock;

bool wait_readable(zmq::socket_t& socket, Steady::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Steady::now());
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    try {
      return zmq::poll(&item, 1, std::max(left, std::chrono::milliseconds{0})) > 0;
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;  // a signal: wait on
    }
  }
}

}  // namespace

ControlClient::ControlClient(std::filesystem::path socket_path, std::chrono::milliseconds timeout)
    : socket_path_(std::move(socket_path)), timeout_(timeout) {}

std::string ControlClient::request_frame(std::string_view frame) const {
  check_listener(socket_path_);
  try {
    zmq::context_t context{1};
    zmq::socket_t socket{context, zmq::socket_type::dealer};
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndtimeo, static_cast<int>(timeout_.count()));
    socket.connect(ipc_endpoint(socket_path_));
    const auto deadline = Steady::now() + timeout_;
    if (socket.send(zmq::buffer(frame), zmq::send_flags::none) && wait_readable(socket, deadline)) {
      zmq::message_t reply;
      if (socket.recv(reply, zmq::recv_flags::dontwait)) return reply.to_string();
    }
  } catch (const zmq::error_t& error) {
    throw CoordinatorUnreachable("cannot ask the coordinator on " + socket_path_.native() + ": " +
                                 error.what());
  }
  throw CoordinatorUnreachable("the coordinator on " + socket_path_.native() +
                               " did not answer within " + std::to_string(timeout_.count()) +
                               " ms");
}

Message ControlClient::request(const Message& message) const {
  return decode(request_frame(encode(message)));
}

}  // namespace commensal::wire
