// SPDX-License-Identifier: Apache-2.0
// Which connections are ended for what they have sent since their last message.
#include "coordinator/cluster/message_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "coordinator/wire/handover.h"

namespace commensal::cluster::message_bound_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using wire::UniqueFd;

class FakeConnections final : public Connections {
 public:
  std::optional<std::uint64_t> bytes_read(int connection) override {
    ++asked;
    const auto found = read.find(connection);
    return found == read.end() ? std::nullopt : std::optional{found->second};
  }
  void end(int connection) override { ended.push_back(connection); }

  std::map<int, std::uint64_t> read;
  std::vector<int> ended;
  int asked = 0;
};

class MessageBoundTest : public ::testing::Test {
 protected:
  FakeConnections connections_;
  MessageBound bound_{connections_, 100};
};

TEST_F(MessageBoundTest, AMessageWithoutAnEndIsEnded) {
  bound_.opened(7);
  bound_.opened(8);
  connections_.read = {{7, 100}, {8, 20}};
  EXPECT_EQ(bound_.look(), 0U);
  connections_.read = {{7, 101}, {8, 20}};
  EXPECT_EQ(bound_.look(), 1U);
  EXPECT_THAT(connections_.ended, ElementsAre(7));
  EXPECT_EQ(bound_.look(), 0U) << "once";
  EXPECT_EQ(bound_.connections(), 1U);
}

TEST_F(MessageBoundTest, WholeMessagesAreCountedAnew) {
  bound_.opened(7);
  for (std::uint64_t read = 90; read < 5000; read += 90) {
    connections_.read[7] = read;
    bound_.message_came(7);
    EXPECT_EQ(bound_.look(), 0U) << read;
  }
  // From the first look after the last one.
  const std::uint64_t last = connections_.read[7];
  connections_.read[7] = last + 100;
  EXPECT_EQ(bound_.look(), 0U);
  connections_.read[7] = last + 101;
  EXPECT_EQ(bound_.look(), 1U);
}

TEST_F(MessageBoundTest, AMessageCostsNoQuestion) {
  bound_.opened(7);
  connections_.read[7] = 10;
  for (int i = 0; i < 50; ++i) bound_.message_came(7);
  EXPECT_EQ(connections_.asked, 0);
  (void)bound_.look();
  EXPECT_EQ(connections_.asked, 1);
}

TEST_F(MessageBoundTest, WhatIsClosedIsForgottenAndItsNumberBeginsAnew) {
  bound_.opened(7);
  connections_.read[7] = 90;
  EXPECT_EQ(bound_.look(), 0U);
  bound_.closed(7);
  EXPECT_EQ(bound_.connections(), 0U);
  connections_.read[7] = 1000;
  EXPECT_EQ(bound_.look(), 0U);
  bound_.message_came(7);  // of one that nobody knows
  EXPECT_EQ(bound_.connections(), 0U);
  bound_.opened(7);
  connections_.read[7] = 50;
  EXPECT_EQ(bound_.look(), 0U);
  EXPECT_THAT(connections_.ended, IsEmpty());
}

TEST_F(MessageBoundTest, ANumberThatWasGivenOutAgainUnheardIsCountedAnew) {
  bound_.opened(7);
  connections_.read[7] = 60;
  bound_.message_came(7);
  EXPECT_EQ(bound_.look(), 0U);
  connections_.read[7] = 30;  // another one's
  EXPECT_EQ(bound_.look(), 0U);
  connections_.read[7] = 130;
  EXPECT_EQ(bound_.look(), 0U);
  connections_.read[7] = 131;
  EXPECT_EQ(bound_.look(), 1U);
}

TEST_F(MessageBoundTest, AFewAtATimeInTurn) {
  for (int connection = 1; connection <= 5; ++connection) {
    bound_.opened(connection);
    connections_.read[connection] = 10;
  }
  for (int turn = 0; turn < 5; ++turn) {
    connections_.asked = 0;
    EXPECT_EQ(bound_.look(2), 0U);
    EXPECT_EQ(connections_.asked, 2) << "of turn " << turn;
  }
  // Two rounds are over: the next are 1 and 2.
  for (int connection = 1; connection <= 5; ++connection) connections_.read[connection] = 101;
  EXPECT_EQ(bound_.look(2), 2U);
  EXPECT_THAT(connections_.ended, ElementsAre(1, 2));
  bound_.closed(3);  // a turn goes on where it was
  EXPECT_EQ(bound_.look(1), 1U);
  EXPECT_THAT(connections_.ended, ElementsAre(1, 2, 4));
  EXPECT_EQ(bound_.look(9), 1U) << "each once, however many may be looked at";
  EXPECT_THAT(connections_.ended, ElementsAre(1, 2, 4, 5));
}

TEST_F(MessageBoundTest, EachIsLookedAtOnceARound) {
  for (int connection = 1; connection <= 100; ++connection) {
    bound_.opened(connection);
    connections_.read[connection] = 101;
  }
  for (int turn = 0; turn < 10; ++turn) (void)bound_.look(10);
  EXPECT_EQ(connections_.ended.size(), 100U);
  EXPECT_EQ(bound_.connections(), 0U);
  EXPECT_EQ(bound_.look(10), 0U);
}

TEST_F(MessageBoundTest, WhatTheKernelDoesNotKnowIsForgotten) {
  bound_.opened(7);
  EXPECT_EQ(bound_.look(), 0U);
  EXPECT_EQ(bound_.connections(), 0U);
}

/// Two ends of a TCP connection on this machine.
class TcpPair {
 public:
  TcpPair() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    const UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    EXPECT_EQ(::bind(listener.get(), generic, size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), generic, &size), 0);
    port = ntohs(address.sin_port);
    peer = UniqueFd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    EXPECT_EQ(::connect(peer.get(), generic, size), 0);
    own = UniqueFd{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  }
  void send(std::size_t bytes) const {
    const std::string text(bytes, 'x');
    EXPECT_EQ(::send(peer.get(), text.data(), bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  [[nodiscard]] std::size_t receive(std::size_t bytes) const {
    std::string text(bytes, ' ');
    return static_cast<std::size_t>(::recv(own.get(), text.data(), bytes, MSG_WAITALL));
  }
  std::uint16_t port = 0;
  UniqueFd own;
  UniqueFd peer;
};

TEST(TcpConnectionsTest, CountWhatWasReadAndNotWhatWaits) {
  const TcpPair pair;
  TcpConnections connections{pair.port};
  EXPECT_EQ(connections.bytes_read(pair.own.get()), 0U);
  pair.send(5000);
  EXPECT_EQ(pair.receive(2000), 2000U);
  EXPECT_EQ(connections.bytes_read(pair.own.get()), 2000U);
  EXPECT_EQ(pair.receive(3000), 3000U);
  EXPECT_EQ(connections.bytes_read(pair.own.get()), 5000U);
}

TEST(TcpConnectionsTest, EndOneInBothDirections) {
  const TcpPair pair;
  TcpConnections connections{pair.port};
  connections.end(pair.own.get());
  pollfd wait{pair.peer.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, 30'000), 1);
  char byte = 0;
  EXPECT_EQ(::recv(pair.peer.get(), &byte, 1, 0), 0);
}

TEST(TcpConnectionsTest, TouchNothingElse) {
  const TcpPair pair;
  TcpConnections connections{pair.port};
  const TcpPair other;
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const UniqueFd read{pipe[0]};
  const UniqueFd write{pipe[1]};
  for (const int fd : {other.own.get(), read.get(), -1}) {
    EXPECT_EQ(connections.bytes_read(fd), std::nullopt) << fd;
    connections.end(fd);
  }
  other.send(10);
  EXPECT_EQ(other.receive(10), 10U);
}

}  // namespace
}  // namespace commensal::cluster::message_bound_test
