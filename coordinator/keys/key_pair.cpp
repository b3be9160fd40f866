// SPDX-License-Identifier: Apache-2.0
// CURVE keys, by libzmq.
#include "coordinator/keys/key_pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zmq.h>

#include <cerrno>
#include <charconv>

namespace commensal::keys {
namespace {

constexpr std::size_t kZ85 = 41;  // characters of a key as libzmq writes it, with the final zero
constexpr std::size_t kShown = 80;
constexpr std::string_view kWhite = " \t\r\n";

using Z85 = std::array<char, kZ85>;

Key decoded(const Z85& text) {
  Key key;
  if (zmq_z85_decode(key.bytes.data(), text.data()) == nullptr) {
    throw KeyProblem("libzmq has made a key that it cannot read");
  }
  return key;
}

}  // namespace

std::string Key::hex() const { return fmt::format("{:02x}", fmt::join(bytes, "")); }

Key Key::from_hex(std::string_view digits) {
  Key key;
  if (digits.size() != 2 * key.bytes.size()) {
    throw KeyProblem(fmt::format("a key has {} hexadecimal digits, not {}", 2 * key.bytes.size(),
                                 digits.size()));
  }
  for (std::size_t i = 0; i < key.bytes.size(); ++i) {
    const std::string_view pair = digits.substr(2 * i, 2);
    const auto [end, error] =
        std::from_chars(pair.data(), pair.data() + pair.size(), key.bytes.at(i), 16);
    if (error != std::errc{} || end != pair.data() + pair.size()) {
      throw KeyProblem("a key has hexadecimal digits only");
    }
  }
  return key;
}

KeyPair make_key_pair() {
  Z85 public_text{};
  Z85 secret_text{};
  if (zmq_curve_keypair(public_text.data(), secret_text.data()) != 0) {
    throw KeyProblem(fmt::format("libzmq cannot make keys: {}", zmq_strerror(errno)));
  }
  return {decoded(public_text), decoded(secret_text)};
}

Key public_key_of(const Key& secret) {
  Z85 secret_text{};
  Z85 public_text{};
  if (zmq_z85_encode(secret_text.data(), secret.bytes.data(), secret.bytes.size()) == nullptr ||
      zmq_curve_public(public_text.data(), secret_text.data()) != 0) {
    throw KeyProblem(fmt::format("libzmq cannot use a key: {}", zmq_strerror(errno)));
  }
  return decoded(public_text);
}

Key parse_public_key(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kWhite);
  const std::size_t last = text.find_last_not_of(kWhite);
  const std::string_view digits =
      first == std::string_view::npos ? "" : text.substr(first, last - first + 1);
  try {
    return Key::from_hex(digits);
  } catch (const KeyProblem&) {
    throw KeyProblem(fmt::format("not a public key (64 hexadecimal digits): '{}'{}",
                                 digits.substr(0, kShown), digits.size() > kShown ? "..." : ""));
  }
}

}  // namespace commensal::keys
