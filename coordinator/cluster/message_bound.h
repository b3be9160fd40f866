// SPDX-License-Identifier: Apache-2.0
// A bound for messages of which no end comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>

namespace commensal::cluster {

/// What the kernel says of connections, and does to them. A fake stands in for it in tests.
class Connections {
 public:
  virtual ~Connections() = default;
  /// Bytes that were taken out of a connection since it began; nothing: it cannot be said.
  [[nodiscard]] virtual std::optional<std::uint64_t> bytes_read(int connection) = 0;
  /// Ends a connection in both directions. Its descriptor is left to whoever opened it.
  virtual void end(int connection) = 0;
};

/// TCP connections of this process, by their descriptors.
class TcpConnections final : public Connections {
 public:
  /// @param port  of the listening side: a descriptor that is no connection of it is not touched.
  explicit TcpConnections(std::uint16_t port) : port_(port) {}
  [[nodiscard]] std::optional<std::uint64_t> bytes_read(int connection) override;
  void end(int connection) override;

 private:
  [[nodiscard]] bool is_ours(int connection) const;
  std::uint16_t port_;
};

/// Ends connections that have sent too much since their last message: ZeroMQ keeps the frames of a
/// message until the last one has come, however many they are, and says nothing until then.
///
/// Connections are known by their descriptors, whose numbers are given out again; who is told late
/// of an end takes another connection for it at worst, and that one begins to be counted anew.
/// Thread safety: none.
class MessageBound {
 public:
  /// @param connections  not owned, must outlive this object.
  /// @param most  bytes between two messages; more than a peer can have under way in whole
  /// messages.
  MessageBound(Connections& connections, std::uint64_t most)
      : connections_(connections), most_(most) {}

  void opened(int connection) { marks_[connection] = 0; }
  void closed(int connection) { marks_.erase(connection); }
  /// A whole message was received. Costs no call of the kernel.
  void message_came(int connection);

  /// Looks at the next so many connections, in turn. @return how many it has ended.
  std::size_t look(std::size_t at_most = std::numeric_limits<std::size_t>::max());

  [[nodiscard]] std::size_t connections() const noexcept { return marks_.size(); }

 private:
  Connections& connections_;
  std::uint64_t most_;
  /// Bytes read at the first look after the last message; nothing: a message has come since.
  std::map<int, std::optional<std::uint64_t>> marks_;
  int last_ = -1;  // looked at; the next look begins behind it
};

}  // namespace commensal::cluster
