// SPDX-License-Identifier: Apache-2.0
// Keys by which coordinators, nodes and clients on other machines know each other: CURVE's, made
// and used by ZeroMQ alone.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace commensal::keys {

/// Raised for a key, a key folder or a list of keys that cannot be used; `what` is one sentence
/// with the value (never a secret). Nothing has changed.
class KeyProblem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// 32 bytes of a key. Written as 64 hexadecimal digits, which a shell leaves as they are.
struct Key {
  std::array<std::uint8_t, 32> bytes{};
  auto operator<=>(const Key&) const = default;

  [[nodiscard]] std::string hex() const;
  /// Reads 64 hexadecimal digits. @throws KeyProblem, which does not repeat what it read.
  [[nodiscard]] static Key from_hex(std::string_view digits);
};

struct KeyPair {
  Key public_key;
  Key secret;
};

/// Makes a new pair. @throws KeyProblem if this libzmq has no CURVE.
[[nodiscard]] KeyPair make_key_pair();

/// Returns the public key that belongs to a secret one. @throws KeyProblem.
[[nodiscard]] Key public_key_of(const Key& secret);

/// Reads a public key as people hand it over: 64 hexadecimal digits, perhaps with white space
/// around them. @throws KeyProblem naming the value.
[[nodiscard]] Key parse_public_key(std::string_view text);

}  // namespace commensal::keys
