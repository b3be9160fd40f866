// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/remote_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <zmq.hpp>

#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/messages.h"

namespace commensal::cluster {
namespace {

using keys::Key;

constexpr const char* kZap = "inproc://zeromq.zap.01";  // ZeroMQ RFC 27
constexpr const char* kDomain = "commensal";
constexpr int kUnread = 16;  // messages of one peer that wait; each has 1 MiB at most
constexpr int kUnsent = 64;
constexpr int kHandshakeMs = 5000;
constexpr int kProbeMs = 10'000;  // a peer that is silent for three of them is gone
constexpr int kNewcomersAtOnce = 256;

// A request of ZAP, after the envelope.
enum ZapFrame : std::uint8_t {
  kVersion,
  kRequest,
  kZapDomain,
  kPeerAddress,
  kIdentity,
  kMechanism,
  kCredentials,
  kFrames
};

std::vector<std::string> receive_all(zmq::socket_t& socket) {
  std::vector<std::string> frames;
  zmq::message_t part;
  if (!socket.recv(part, zmq::recv_flags::dontwait)) return frames;
  frames.push_back(part.to_string());
  while (part.more() && socket.recv(part, zmq::recv_flags::none)) {
    frames.push_back(part.to_string());
  }
  return frames;
}

bool copy_key(std::string_view bytes, Key& key) {
  if (bytes.size() != key.bytes.size()) return false;
  std::copy(bytes.begin(), bytes.end(), key.bytes.begin());
  return true;
}

/// The key that its connection has proven: the user id that was given to it.
Key sender_of(const zmq::message_t& part) {
  const char* user = zmq_msg_gets(const_cast<zmq_msg_t*>(part.handle()), "User-Id");
  return user == nullptr ? Key{} : Key::from_hex(user);  // nobody has the key of zeros
}

}  // namespace

struct RemoteSocket::Sockets {
  zmq::context_t context{1};
  zmq::socket_t newcomers{context, zmq::socket_type::rep};
  zmq::socket_t router{context, zmq::socket_type::router};
};

RemoteSocket::RemoteSocket(const std::string& address, const keys::KeyPair& own, Admits admits)
    : sockets_(std::make_unique<Sockets>()), admits_(std::move(admits)) {
  keys::check_address(address);
  sockets_->newcomers.set(zmq::sockopt::linger, 0);
  sockets_->newcomers.bind(kZap);  // before the first connection
  zmq::socket_t& router = sockets_->router;
  router.set(zmq::sockopt::curve_server, true);
  router.set(zmq::sockopt::curve_secretkey,
             zmq::const_buffer{own.secret.bytes.data(), own.secret.bytes.size()});
  router.set(zmq::sockopt::zap_domain, kDomain);
  router.set(zmq::sockopt::linger, 200);
  router.set(zmq::sockopt::router_mandatory, true);
  router.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(wire::kMaxFrameBytes));
  router.set(zmq::sockopt::rcvhwm, kUnread);
  router.set(zmq::sockopt::sndhwm, kUnsent);
  router.set(zmq::sockopt::sndtimeo, 0);
  router.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
  router.set(zmq::sockopt::heartbeat_ivl, kProbeMs);
  router.set(zmq::sockopt::heartbeat_timeout, 3 * kProbeMs);
  router.set(zmq::sockopt::backlog, 1024);
  router.set(zmq::sockopt::ipv6, address.find('[') != std::string::npos);
  try {
    router.bind(address);
  } catch (const zmq::error_t& error) {
    throw std::runtime_error(fmt::format("cannot listen on {} ({})", address, error.what()));
  }
  address_ = router.get(zmq::sockopt::last_endpoint);
}

RemoteSocket::~RemoteSocket() = default;

std::array<void*, 2> RemoteSocket::handles() {
  return {sockets_->router.handle(), sockets_->newcomers.handle()};
}

void RemoteSocket::admit_newcomers() {
  for (int i = 0; i < kNewcomersAtOnce; ++i) {
    const std::vector<std::string> request = receive_all(sockets_->newcomers);
    if (request.empty()) return;
    Key key;
    const bool understood = request.size() == kFrames && request[kVersion] == "1.0" &&
                            request[kZapDomain] == kDomain && request[kMechanism] == "CURVE" &&
                            copy_key(request[kCredentials], key);
    const bool admitted = understood && admits_(key);
    const std::array<std::string, 6> answer{"1.0",
                                            request.size() > kRequest ? request[kRequest] : "",
                                            admitted ? "200" : "400",
                                            admitted ? "OK" : "this key is not allowed",
                                            admitted ? key.hex() : "",
                                            ""};
    for (std::size_t part = 0; part < answer.size(); ++part) {
      (void)sockets_->newcomers.send(zmq::buffer(answer.at(part)), part + 1 < answer.size()
                                                                       ? zmq::send_flags::sndmore
                                                                       : zmq::send_flags::none);
    }
  }
}

bool RemoteSocket::receive(Received& message) {
  zmq::message_t part;
  message.frames.clear();
  if (!sockets_->router.recv(part, zmq::recv_flags::dontwait)) return false;
  message.peer = part.to_string();
  std::size_t bytes = 0;
  bool first = true;
  while (part.more() && sockets_->router.recv(part, zmq::recv_flags::none)) {
    if (std::exchange(first, false)) message.sender = sender_of(part);
    bytes += part.size();
    // More than one frame is an error anyway: so many parts are not kept.
    if (message.frames.size() < 2 && bytes <= 2 * wire::kMaxFrameBytes) {
      message.frames.push_back(part.to_string());
    }
  }
  return true;
}

bool RemoteSocket::send(const std::string& peer, const std::string& frame) {
  try {
    return sockets_->router.send(zmq::buffer(peer),
                                 zmq::send_flags::sndmore | zmq::send_flags::dontwait) &&
           sockets_->router.send(zmq::buffer(frame), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH || error.num() == EAGAIN) return false;
    throw;
  }
}

}  // namespace commensal::cluster
