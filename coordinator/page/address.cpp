// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <charconv>
#include <stdexcept>
#include <system_error>

namespace commensal::page {
namespace {

bool is_ipv6(const std::string& host) {
  in6_addr ignored{};
  return inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

Address parse_address(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return std::invalid_argument(
        fmt::format("an address of the page is ADDRESS:PORT, not \"{}\": {}", text, why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) throw refuse("it has no port");
  Address address;
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    throw refuse("a port is a number from 0 to 65535");
  }
  address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
    if (!is_ipv6(address.host)) throw refuse("what is in brackets is no IPv6 address");
  } else if (address.host.empty()) {
    throw refuse("it has no address");
  } else if (address.host.find_first_not_of(
                 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") !=
             std::string::npos) {
    throw refuse("an address has letters, digits, '.' and '-'; an IPv6 address stands in []");
  }
  return address;
}

std::string to_string(const Address& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", address.host, address.port)
                  : fmt::format("{}:{}", address.host, address.port);
}

bool is_loopback(const Address& address) noexcept {
  in_addr four{};
  if (inet_pton(AF_INET, address.host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return address.host == "::1" || address.host == "localhost";
}

}  // namespace commensal::page
