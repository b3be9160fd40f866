// SPDX-License-Identifier: Apache-2.0
// The coordinator's socket for other machines, and the client that asks it, over real TCP.
#include "coordinator/cluster/remote_socket.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/messages.h"
#include "tests/coordinator/holding_proxy.h"
#include "tests/coordinator/key_world.h"

namespace commensal::cluster::remote_socket_test {
namespace {

using namespace std::chrono_literals;
using keys::Key;
using keys::KeyPair;
using keys::make_key_pair;
using keys::problem_of;
using keys::RemoteClient;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kPatience = 30s;

bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

/// Answers each message with "echo " and its frames, in a thread of its own.
class EchoServer {
 public:
  EchoServer() : thread_([this] { run(); }) {}
  ~EchoServer() {
    stop_ = true;
    thread_.join();
  }
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  void allow(const Key& key) {
    const std::lock_guard lock{mutex_};
    allowed_.insert(key);
  }
  void revoke(const Key& key) {
    const std::lock_guard lock{mutex_};
    allowed_.erase(key);
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const Key& public_key() const { return own_.public_key; }
  [[nodiscard]] std::vector<RemoteSocket::Received> received() {
    const std::lock_guard lock{mutex_};
    return received_;
  }
  [[nodiscard]] int asked() const { return asked_; }
  /// How often it has looked for messages without an end, and how many it has found.
  [[nodiscard]] int looks() const { return looks_; }
  [[nodiscard]] int ended() const { return ended_; }

 private:
  void run() {
    while (!stop_) {
      std::vector<zmq::pollitem_t> items;
      for (void* handle : socket_.handles()) items.push_back({handle, 0, ZMQ_POLLIN, 0});
      zmq::poll(items, 10ms);
      socket_.admit_newcomers();
      ended_ += static_cast<int>(socket_.bound_messages(64));
      ++looks_;
      RemoteSocket::Received message;
      while (socket_.receive(message)) {
        std::string answer = "echo";
        for (const std::string& frame : message.frames) answer += " " + frame.substr(0, 100);
        {
          const std::lock_guard lock{mutex_};
          received_.push_back(message);
        }
        (void)socket_.send(message.peer, answer);
      }
    }
  }

  const KeyPair own_ = make_key_pair();
  std::mutex mutex_;
  std::set<Key> allowed_;
  std::vector<RemoteSocket::Received> received_;
  std::atomic<int> asked_{0};
  std::atomic<int> looks_{0};
  std::atomic<int> ended_{0};
  std::atomic<bool> stop_{false};
  RemoteSocket socket_{"tcp://127.0.0.1:0", own_, [this](const Key& key) {
                         ++asked_;
                         const std::lock_guard lock{mutex_};
                         return allowed_.contains(key);
                       }};
  const std::string address_ = socket_.address();
  std::thread thread_;
};

int port_of(const std::string& address) {
  return std::stoi(address.substr(address.rfind(':') + 1));
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

wire::UniqueFd plain_connection(int port) {
  wire::UniqueFd fd{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
      << std::strerror(errno);
  return fd;
}

/// A TCP listener on a free port, without anybody who accepts.
class Listener {
 public:
  Listener() {
    sockaddr_in address = loopback(0);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd_.get(), 8), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::string address() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

 private:
  wire::UniqueFd fd_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port_ = 0;
};

/// A connection of a client that keeps it.
class Connection {
 public:
  Connection(const std::string& address, const KeyPair& own, const Key& server) {
    socket_.set(zmq::sockopt::linger, 0);
    keys::use_keys(socket_, own, server);
    socket_.connect(address);
  }
  void send(const std::string& frame) { (void)socket_.send(zmq::buffer(frame)); }
  std::optional<std::string> receive(std::chrono::milliseconds patience = kPatience) {
    socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(patience.count()));
    zmq::message_t reply;
    if (!socket_.recv(reply)) return std::nullopt;
    return reply.to_string();
  }
  zmq::socket_t& socket() { return socket_; }

 private:
  zmq::context_t context_{1};
  zmq::socket_t socket_{context_, zmq::socket_type::dealer};
};

class RemoteSocketTest : public ::testing::Test {
 protected:
  [[nodiscard]] RemoteClient client(const KeyPair& own,
                                    std::chrono::milliseconds timeout = kPatience) {
    return {server_.address(), own, server_.public_key(), timeout};
  }

  EchoServer server_;
  KeyPair ann_ = make_key_pair();
};

TEST_F(RemoteSocketTest, AnAllowedKeyIsAnsweredAndKnown) {
  server_.allow(ann_.public_key);
  EXPECT_EQ(client(ann_).request_frame("hello"), "echo hello");
  ASSERT_EQ(server_.received().size(), 1U);
  EXPECT_EQ(server_.received()[0].sender, ann_.public_key);
  EXPECT_THAT(server_.received()[0].frames, ElementsAre("hello"));
}

TEST_F(RemoteSocketTest, EachMessageIsItsSenders) {
  const KeyPair bob = make_key_pair();
  server_.allow(ann_.public_key);
  server_.allow(bob.public_key);
  Connection a{server_.address(), ann_, server_.public_key()};
  Connection b{server_.address(), bob, server_.public_key()};
  for (int i = 0; i < 20; ++i) {
    a.send("ann");
    b.send("bob");
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(a.receive(), "echo ann");
    EXPECT_EQ(b.receive(), "echo bob");
  }
  for (const auto& message : server_.received()) {
    EXPECT_EQ(message.sender == ann_.public_key, message.frames[0] == "ann");
  }
}

TEST_F(RemoteSocketTest, AKeyThatIsNotAllowedIsToldSo) {
  EXPECT_THAT(problem_of<keys::KeyRefused>([&] { (void)client(ann_).request_frame("x"); }),
              AllOf(HasSubstr("does not allow this key"), HasSubstr(ann_.public_key.hex()),
                    HasSubstr("commensal keys allow")));
  EXPECT_TRUE(server_.received().empty());
}

TEST_F(RemoteSocketTest, ARevokedKeyDoesNotConnectAgain) {
  server_.allow(ann_.public_key);
  EXPECT_EQ(client(ann_).request_frame("x"), "echo x");
  server_.revoke(ann_.public_key);
  EXPECT_THROW((void)client(ann_).request_frame("y"), keys::KeyRefused);
  EXPECT_EQ(server_.received().size(), 1U);
}

TEST_F(RemoteSocketTest, AnotherServersKeyIsNoticed) {
  server_.allow(ann_.public_key);
  const KeyPair other = make_key_pair();
  const RemoteClient asks{server_.address(), ann_, other.public_key, kPatience};
  EXPECT_THAT(problem_of<wire::CoordinatorUnreachable>([&] { (void)asks.request_frame("secret"); }),
              AllOf(HasSubstr("is not the coordinator of the public key"),
                    HasSubstr(other.public_key.hex())));
  EXPECT_TRUE(server_.received().empty());
  EXPECT_EQ(server_.asked(), 0) << "who has the wrong key of the server proves none of its own";
}

TEST_F(RemoteSocketTest, NobodyListens) {
  std::string address;
  {
    const Listener listener;
    address = listener.address();
  }
  const RemoteClient asks{address, ann_, server_.public_key(), 300ms};
  EXPECT_THAT(problem_of<wire::CoordinatorUnreachable>([&] { (void)asks.request_frame("x"); }),
              AllOf(HasSubstr("no coordinator listens at"), HasSubstr(address)));
}

TEST_F(RemoteSocketTest, SomethingElseListens) {
  const Listener silent;
  const RemoteClient asks{silent.address(), ann_, server_.public_key(), 300ms};
  EXPECT_THAT(
      problem_of<wire::CoordinatorUnreachable>([&] { (void)asks.request_frame("x"); }),
      AllOf(HasSubstr(silent.address()), HasSubstr("says nothing that a coordinator says")));
}

TEST_F(RemoteSocketTest, AnAddressThatCannotBeUsedIsNamed) {
  const auto admits = [](const Key&) { return true; };
  EXPECT_THAT(
      problem_of<std::runtime_error>([&] {
        const RemoteSocket socket{server_.address(), ann_, admits};
      }),
      AllOf(HasSubstr("cannot listen on"), HasSubstr(server_.address()), HasSubstr("in use")));
  EXPECT_THAT(problem_of<std::runtime_error>([&] {
                const RemoteSocket socket{"tcp://192.0.2.1:0", ann_, admits};
              }),
              AllOf(HasSubstr("cannot listen on"), HasSubstr("192.0.2.1")));
  EXPECT_THAT(problem_of<std::runtime_error>([&] {
                const RemoteSocket socket{"tcp://here", ann_, admits};
              }),
              HasSubstr("'tcp://here'"));
}

TEST_F(RemoteSocketTest, WhoDoesNotEncryptIsNotHeard) {
  zmq::context_t context{1};
  zmq::socket_t plain{context, zmq::socket_type::dealer};
  plain.set(zmq::sockopt::linger, 0);
  plain.connect(server_.address());
  (void)plain.send(zmq::str_buffer("hello"));
  server_.allow(ann_.public_key);
  EXPECT_EQ(client(ann_).request_frame("x"), "echo x");
  plain.set(zmq::sockopt::rcvtimeo, 200);
  zmq::message_t reply;
  EXPECT_FALSE(plain.recv(reply));
  EXPECT_EQ(server_.received().size(), 1U);
}

TEST_F(RemoteSocketTest, NoiseEndsItsOwnConnectionAlone) {
  server_.allow(ann_.public_key);
  Connection before{server_.address(), ann_, server_.public_key()};
  before.send("one");
  EXPECT_EQ(before.receive(), "echo one");
  const std::vector<std::string> noise{
      std::string(4096, '\0'), std::string(4096, '\xff'),
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(100, ' '),
      std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE", 17) + std::string(2000, '\x41')};
  for (const std::string& bytes : noise) {
    const wire::UniqueFd fd = plain_connection(port_of(server_.address()));
    (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char byte = 0;
    EXPECT_TRUE(eventually([&] {
      const ssize_t got = recv(fd.get(), &byte, 1, MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    })) << "the server ends it";
  }
  before.send("two");
  EXPECT_EQ(before.receive(), "echo two");
  EXPECT_EQ(client(ann_).request_frame("x"), "echo x");
}

TEST_F(RemoteSocketTest, AnOversizedFrameIsNotReceived) {
  server_.allow(ann_.public_key);
  Connection large{server_.address(), ann_, server_.public_key()};
  large.send(std::string(wire::kMaxFrameBytes - 1024, 'x'));
  EXPECT_EQ(large.receive(), "echo " + std::string(100, 'x'));
  large.send(std::string(wire::kMaxFrameBytes + 1, 'x'));
  EXPECT_EQ(large.receive(300ms), std::nullopt);
  EXPECT_EQ(client(ann_).request_frame("x"), "echo x");
  EXPECT_EQ(server_.received().size(), 2U);
}

TEST_F(RemoteSocketTest, OfManyFramesTwoAreKept) {
  server_.allow(ann_.public_key);
  Connection many{server_.address(), ann_, server_.public_key()};
  for (int i = 0; i < 1000; ++i) {
    (void)many.socket().send(zmq::str_buffer("part"), zmq::send_flags::sndmore);
  }
  many.send("last");
  EXPECT_EQ(many.receive(), "echo part part");
  EXPECT_THAT(server_.received()[0].frames, ElementsAre("part", "part"));
}

/// So many MiB in frames of half of one, as one message.
void send_many(Connection& connection, int mib) {
  const std::string part(512U << 10U, 'x');
  for (int i = 0; i < 2 * mib; ++i) {
    (void)connection.socket().send(zmq::buffer(part), zmq::send_flags::sndmore);
  }
  connection.send("last");
}

TEST_F(RemoteSocketTest, AMessageOfWhichNoEndComesEndsItsConnectionAlone) {
  server_.allow(ann_.public_key);
  Connection beside{server_.address(), ann_, server_.public_key()};
  beside.send("one");
  EXPECT_EQ(beside.receive(), "echo one");
  HoldingProxy proxy{port_of(server_.address()), 1U << 20U};
  Connection endless{proxy.address(), ann_, server_.public_key()};
  send_many(endless, 50);
  // It is counted from the first look on, which may come late on a busy machine.
  ASSERT_TRUE(eventually([&] { return proxy.holds(); }));
  const int looks = server_.looks();
  ASSERT_TRUE(eventually([&] { return server_.looks() > looks + 2; }));
  proxy.release(39U << 20U);
  EXPECT_TRUE(eventually([&] { return proxy.ended(); }));
  EXPECT_TRUE(eventually([&] { return server_.ended() == 1; }));
  beside.send("two");
  EXPECT_EQ(beside.receive(), "echo two");
  EXPECT_EQ(server_.received().size(), 2U) << "nothing of it is received";
}

TEST_F(RemoteSocketTest, ALongMessageWhoseEndTakesItsTimeIsWaitedFor) {
  server_.allow(ann_.public_key);
  HoldingProxy proxy{port_of(server_.address()), 20U << 20U};
  Connection slow{proxy.address(), ann_, server_.public_key()};
  send_many(slow, 25);
  ASSERT_TRUE(eventually([&] { return proxy.holds(); }));
  const int looks = server_.looks();
  ASSERT_TRUE(eventually([&] { return server_.looks() > looks + 5; }));
  EXPECT_FALSE(proxy.ended());
  proxy.release();
  EXPECT_EQ(slow.receive().value_or("nothing").substr(0, 6), "echo x");
  EXPECT_EQ(server_.ended(), 0);
}

/// Hands bytes on between one client and the server, and can send the client's last ones again.
class Proxy {
 public:
  explicit Proxy(int port) : port_(port), thread_([this] { run(); }) {}
  ~Proxy() {
    stop_ = true;
    thread_.join();
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  [[nodiscard]] std::string address() const { return listener_.address(); }
  void replay() { replay_ = true; }
  [[nodiscard]] bool replayed() const { return replayed_; }
  /// The first connection was ended by the server.
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  void run() {
    wire::UniqueFd client;
    while (!stop_ && !client) {
      pollfd newcomer{listener_.fd(), POLLIN, 0};
      if (poll(&newcomer, 1, 10) > 0)
        client = wire::UniqueFd{accept(listener_.fd(), nullptr, nullptr)};
    }
    if (!client) return;
    const wire::UniqueFd server = plain_connection(port_);
    std::string last;
    while (!stop_ && !ended_) {
      std::array<pollfd, 2> ends{{{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}}};
      (void)poll(ends.data(), ends.size(), 10);
      if (ends[0].revents != 0) last = hand_on(client.get(), server.get());
      if (ends[1].revents != 0 && hand_on(server.get(), client.get()).empty()) ended_ = true;
      if (replay_.exchange(false)) {
        (void)::send(server.get(), last.data(), last.size(), MSG_NOSIGNAL);
        replayed_ = true;
      }
    }
    while (!stop_) std::this_thread::sleep_for(5ms);
  }

  static std::string hand_on(int from, int to) {
    std::string bytes(65536, '\0');
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    (void)::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return bytes;
  }

  Listener listener_;
  int port_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> replay_{false};
  std::atomic<bool> replayed_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST_F(RemoteSocketTest, AMessageThatIsSentAgainIsNotReceivedAgain) {
  server_.allow(ann_.public_key);
  Proxy proxy{port_of(server_.address())};
  Connection through{proxy.address(), ann_, server_.public_key()};
  through.send("pay");
  EXPECT_EQ(through.receive(), "echo pay");
  EXPECT_FALSE(proxy.ended());
  proxy.replay();
  EXPECT_TRUE(eventually([&] { return proxy.replayed() && proxy.ended(); }))
      << "a repeated message ends its connection";
  EXPECT_EQ(server_.received().size(), 1U);
}

}  // namespace
}  // namespace commensal::cluster::remote_socket_test
