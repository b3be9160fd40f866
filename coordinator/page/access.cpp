// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/access.h"

#include <algorithm>

#include "coordinator/page/address.h"
#include "coordinator/page/token.h"

namespace commensal::page {
namespace {

bool is_json(const std::string& content_type) {
  const std::string type = lower(content_type);
  const std::size_t end = type.find_first_of("; \t");
  return type.substr(0, end) == "application/json";
}

}  // namespace

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return text;
}

std::vector<std::string> names_of(std::string_view host, std::uint16_t port,
                                  const std::vector<std::string>& more) {
  const Address address{std::string{host}, port};
  std::vector<std::string> names{lower(to_string(address))};
  if (is_loopback(address)) {
    for (const char* name : {"127.0.0.1", "localhost", "::1"}) {
      names.push_back(to_string(Address{name, port}));
    }
  }
  for (const std::string& name : more) names.push_back(lower(name));
  return names;
}

Verdict judge(Need need, const Caller& caller, const AccessRules& rules) {
  const auto known = [&](const std::string& host) {
    return std::find(rules.hosts.begin(), rules.hosts.end(), lower(host)) != rules.hosts.end();
  };
  if (caller.hosts.size() != 1) return {400, "a request has one header Host"};
  if (!known(caller.hosts.front())) {
    return {403, "this page is not known by the name in the header Host (--http-host adds one)"};
  }
  if (caller.origin) {
    const std::size_t scheme = caller.origin->find("://");
    if (scheme == std::string::npos || !known(caller.origin->substr(scheme + 3))) {
      return {403, "the request comes from a page of another origin"};
    }
  }
  if (need == Need::kNothing) return {};
  if (caller.fetch_site && *caller.fetch_site != "same-origin" && *caller.fetch_site != "none") {
    return {403, "the request comes from a page of another site"};
  }
  if (need == Need::kWrite) {
    if (!caller.content_type || !is_json(*caller.content_type) || caller.encoded) {
      return {415, "a change is asked for with a body of the type application/json, not encoded"};
    }
  }
  const bool has_token = same_secret(caller.token, rules.token);
  if (need == Need::kWrite && !has_token) {
    return {401, caller.token.empty() ? "a change needs the page's token (commensal page)"
                                      : "this is not the page's token (commensal page)"};
  }
  if (!has_token && !(caller.same_user && caller.token.empty())) {
    return {401, caller.token.empty()
                     ? "other users need the page's token to see the state (commensal page)"
                     : "this is not the page's token (commensal page)"};
  }
  return {};
}

}  // namespace commensal::page
