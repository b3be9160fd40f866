// SPDX-License-Identifier: Apache-2.0
#include "coordinator/keys/remote_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <zmq.hpp>

namespace commensal::keys {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

constexpr std::string_view kScheme = "tcp://";
constexpr int kPorts = 65535;
constexpr const char* kEvents = "inproc://events";
// The first failure may be that of a coordinator that is just being started.
constexpr auto kAgain = 100ms;

/// How far a connection has come, by the events of its socket.
class Connection {
 public:
  explicit Connection(zmq::context_t& context, zmq::socket_t& socket)
      : events_(context, zmq::socket_type::pair) {
    constexpr int kWanted = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                            ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                            ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    if (zmq_socket_monitor(socket.handle(), kEvents, kWanted) != 0) throw zmq::error_t{};
    events_.set(zmq::sockopt::linger, 0);
    events_.connect(kEvents);
  }

  [[nodiscard]] void* handle() { return events_.handle(); }

  void take() {
    zmq::message_t part;
    while (events_.recv(part, zmq::recv_flags::dontwait)) {
      std::uint16_t event = 0;
      if (part.size() >= sizeof event) std::memcpy(&event, part.data(), sizeof event);
      while (part.more() && events_.recv(part, zmq::recv_flags::none)) continue;
      note(event);
    }
  }

  [[nodiscard]] bool refused() const noexcept { return refused_; }
  /// It was reached, and left before both keys were proven.
  [[nodiscard]] bool wrong_key() const noexcept { return failed_; }
  [[nodiscard]] bool agreed() const noexcept { return agreed_; }
  [[nodiscard]] bool reached() const noexcept { return reached_; }

 private:
  void note(std::uint16_t event) {
    switch (event) {
      case ZMQ_EVENT_CONNECTED: reached_ = true; break;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: agreed_ = true; break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: refused_ = true; break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL: failed_ = true; break;
      case ZMQ_EVENT_DISCONNECTED: failed_ = failed_ || !agreed_; break;
      default: break;
    }
  }

  zmq::socket_t events_;
  bool reached_ = false;
  bool agreed_ = false;
  bool refused_ = false;
  bool failed_ = false;
};

}  // namespace

void check_address(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  bool good = address.starts_with(kScheme) && colon != std::string_view::npos &&
              colon > kScheme.size() && address.find('/', kScheme.size()) == std::string_view::npos;
  if (good) {
    const std::string_view digits = address.substr(colon + 1);
    int port = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    good =
        error == std::errc{} && end == digits.data() + digits.size() && port >= 0 && port <= kPorts;
  }
  if (!good) {
    throw KeyProblem(fmt::format("not an address of the form tcp://HOST:PORT: '{}'", address));
  }
}

void use_keys(zmq::socket_t& socket, const KeyPair& own, const Key& server) {
  const auto as_buffer = [](const Key& key) {
    return zmq::const_buffer{key.bytes.data(), key.bytes.size()};
  };
  socket.set(zmq::sockopt::curve_serverkey, as_buffer(server));
  socket.set(zmq::sockopt::curve_publickey, as_buffer(own.public_key));
  socket.set(zmq::sockopt::curve_secretkey, as_buffer(own.secret));
}

std::string RemoteClient::request_frame(std::string_view frame) const {
  check_address(address_);
  try {
    zmq::context_t context{1};
    zmq::socket_t socket{context, zmq::socket_type::dealer};
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::ipv6, true);
    socket.set(zmq::sockopt::reconnect_ivl, static_cast<int>(kAgain / 1ms));
    use_keys(socket, own_, server_);
    Connection connection{context, socket};
    socket.connect(address_);
    const auto deadline = Steady::now() + timeout_;
    // Queued until the connection is agreed on.
    (void)socket.send(zmq::buffer(frame), zmq::send_flags::dontwait);
    std::array<zmq::pollitem_t, 2> items{
        {{socket.handle(), 0, ZMQ_POLLIN, 0}, {connection.handle(), 0, ZMQ_POLLIN, 0}}};
    for (auto now = Steady::now(); now < deadline; now = Steady::now()) {
      try {
        zmq::poll(items, std::chrono::ceil<std::chrono::milliseconds>(deadline - now));
      } catch (const zmq::error_t& error) {
        if (error.num() != EINTR) throw;  // a signal: wait on
      }
      zmq::message_t reply;
      if (socket.recv(reply, zmq::recv_flags::dontwait)) return reply.to_string();
      connection.take();
      if (connection.refused()) {
        throw KeyRefused(fmt::format(
            "the coordinator at {} does not allow this key ({}); an operator allows it there: "
            "commensal keys allow",
            address_, own_.public_key.hex()));
      }
      if (connection.wrong_key()) {
        throw wire::CoordinatorUnreachable(
            fmt::format("what listens at {} is not the coordinator of the public key {}", address_,
                        server_.hex()));
      }
    }
    if (!connection.reached()) {
      throw wire::CoordinatorUnreachable(fmt::format(
          "no coordinator listens at {} (tried for {} ms)", address_, timeout_.count()));
    }
    if (!connection.agreed()) {
      throw wire::CoordinatorUnreachable(
          fmt::format("what listens at {} says nothing that a coordinator says (waited {} ms)",
                      address_, timeout_.count()));
    }
  } catch (const zmq::error_t& error) {
    throw wire::CoordinatorUnreachable(
        fmt::format("cannot ask the coordinator at {}: {}", address_, error.what()));
  }
  throw wire::CoordinatorUnreachable(
      fmt::format("the coordinator at {} did not answer within {} ms", address_, timeout_.count()));
}

}  // namespace commensal::keys
