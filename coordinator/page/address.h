// SPDX-License-Identifier: Apache-2.0
// Where the page is served: ADDRESS:PORT.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace commensal::page {

struct Address {
  std::string host = "127.0.0.1";  ///< an IP address, or a name of this machine; IPv6 without []
  std::uint16_t port = 0;          ///< 0: any that is free
  bool operator==(const Address&) const = default;
};

/// Reads "ADDRESS:PORT"; an IPv6 address stands in brackets ("[::1]:8080").
/// @throws std::invalid_argument naming the value.
[[nodiscard]] Address parse_address(std::string_view text);

/// Returns "ADDRESS:PORT", as it stands in a URL and in the header Host.
[[nodiscard]] std::string to_string(const Address& address);

/// Whether only this machine can reach it: 127.0.0.0/8, ::1 or "localhost".
[[nodiscard]] bool is_loopback(const Address& address) noexcept;

}  // namespace commensal::page
