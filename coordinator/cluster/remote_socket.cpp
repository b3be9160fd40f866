// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/remote_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <zmq.hpp>

#include "coordinator/cluster/message_bound.h"
#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/messages.h"

namespace commensal::cluster {
namespace {

using keys::Key;

constexpr const char* kZap = "inproc://zeromq.zap.01";  // ZeroMQ RFC 27
constexpr const char* kDomain = "commensal";
constexpr const char* kMonitor = "inproc://commensal.connections";
constexpr int kUnread = 16;  // messages of one peer that wait; each has 1 MiB at most
// Between two messages of a peer: twice what it can have here in whole ones.
constexpr std::uint64_t kMostOfAMessage = 2 * (kUnread * std::uint64_t{wire::kMaxFrameBytes});
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
  Sockets() = default;
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  // While nobody listens to events any more, those that are told would be waited for.
  ~Sockets() { (void)zmq_socket_monitor(router.handle(), nullptr, 0); }

  zmq::context_t context{1};
  zmq::socket_t newcomers{context, zmq::socket_type::rep};
  zmq::socket_t router{context, zmq::socket_type::router};
  zmq::socket_t monitor{context, zmq::socket_type::pair};
  std::optional<TcpConnections> connections;  // once it listens
  std::optional<MessageBound> bound;

  /// Takes what ZeroMQ tells of connections that begin and end.
  void follow_connections() {
    for (std::vector<std::string> event = receive_all(monitor); !event.empty();
         event = receive_all(monitor)) {
      std::uint16_t what = 0;
      std::int32_t connection = 0;
      if (event.front().size() < sizeof what + sizeof connection) continue;
      std::memcpy(&what, event.front().data(), sizeof what);
      std::memcpy(&connection, event.front().data() + sizeof what, sizeof connection);
      if (what == ZMQ_EVENT_ACCEPTED) {
        bound->opened(connection);
      } else {
        bound->closed(connection);
      }
    }
  }
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
  // Before the first connection, too. Without a bound on events that wait: they hold nobody up.
  sockets_->monitor.set(zmq::sockopt::linger, 0);
  sockets_->monitor.set(zmq::sockopt::rcvhwm, 0);
  if (zmq_socket_monitor(router.handle(), kMonitor,
                         ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED) != 0) {
    throw zmq::error_t();
  }
  sockets_->monitor.connect(kMonitor);
  try {
    router.bind(address);
  } catch (const zmq::error_t& error) {
    throw std::runtime_error(fmt::format("cannot listen on {} ({})", address, error.what()));
  }
  address_ = router.get(zmq::sockopt::last_endpoint);
  sockets_->connections.emplace(
      static_cast<std::uint16_t>(std::stoul(address_.substr(address_.rfind(':') + 1))));
  sockets_->bound.emplace(*sockets_->connections, kMostOfAMessage);
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
    if (std::exchange(first, false)) {
      message.sender = sender_of(part);
      sockets_->bound->message_came(part.get(ZMQ_SRCFD));
    }
    bytes += part.size();
    // More than one frame is an error anyway: so many parts are not kept.
    if (message.frames.size() < 2 && bytes <= 2 * wire::kMaxFrameBytes) {
      message.frames.push_back(part.to_string());
    }
  }
  return true;
}

std::size_t RemoteSocket::bound_messages(std::size_t at_most) {
  sockets_->follow_connections();
  return sockets_->bound->look(at_most);
}

std::size_t RemoteSocket::connections() {
  sockets_->follow_connections();
  return sockets_->bound->connections();
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
