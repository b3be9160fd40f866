// SPDX-License-Identifier: Apache-2.0
// A ROUTER that never blocks.
#include "coordinator/wire/router_socket.h"

#include <cerrno>
#include <cstdint>
#include <zmq.hpp>

namespace commensal::wire {
namespace {

constexpr std::int64_t kLargestFrame = 16LL << 20U;  // larger ones end the connection

}  // namespace

struct RouterSocket::Sockets {
  zmq::context_t context{1};
  zmq::socket_t router{context, zmq::socket_type::router};
};

RouterSocket::RouterSocket(const std::string& endpoint) : sockets_(std::make_unique<Sockets>()) {
  zmq::socket_t& router = sockets_->router;
  router.set(zmq::sockopt::linger, 200);
  router.set(zmq::sockopt::router_mandatory, 1);
  router.set(zmq::sockopt::maxmsgsize, kLargestFrame);
  router.set(zmq::sockopt::sndtimeo, 0);
  router.bind(endpoint);
}

RouterSocket::~RouterSocket() = default;

// The binding of before stays: ZeroMQ removes its file, by its name, some time after it is undone.
void RouterSocket::bind(const std::string& endpoint) { sockets_->router.bind(endpoint); }

void* RouterSocket::handle() { return sockets_->router.handle(); }

bool RouterSocket::receive(std::string& peer, std::vector<std::string>& frames) {
  zmq::message_t part;
  frames.clear();
  if (!sockets_->router.recv(part, zmq::recv_flags::dontwait)) return false;
  peer = part.to_string();
  while (part.more()) {
    if (!sockets_->router.recv(part, zmq::recv_flags::none)) break;
    frames.push_back(part.to_string());
  }
  return true;
}

bool RouterSocket::send(const std::string& peer, const std::string& frame) {
  try {
    return sockets_->router.send(zmq::buffer(peer),
                                 zmq::send_flags::sndmore | zmq::send_flags::dontwait) &&
           sockets_->router.send(zmq::buffer(frame), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH || error.num() == EAGAIN) return false;
    throw;
  }
}

}  // namespace commensal::wire
