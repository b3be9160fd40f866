// SPDX-License-Identifier: Apache-2.0
// Who may see and who may change: one pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace commensal::page {

/// What a request asks for.
enum class Need : std::uint8_t {
  kNothing,  ///< the page itself: files that everybody may have
  kRead,     ///< the state, which names jobs, users' words and machines
  kWrite     ///< a change
};

/// What is known of who sends a request.
struct Caller {
  std::vector<std::string> hosts;  ///< each header Host
  std::optional<std::string> origin;
  std::optional<std::string> fetch_site;  ///< Sec-Fetch-Site
  std::optional<std::string> content_type;
  bool encoded = false;    ///< has a Content-Encoding
  std::string token;       ///< empty: none
  bool same_user = false;  ///< a process of this machine, of the coordinator's user or root
};

struct AccessRules {
  std::vector<std::string> hosts;  ///< HOST:PORT that the page is known by, lower case
  std::string token;
};

struct Verdict {
  int status = 200;    ///< of HTTP; 200: may
  std::string reason;  ///< one sentence, without what the caller sent; empty if it may
};

/// Decides. Pure. In order: a page of another name (DNS rebinding), a form or script of another
/// page (CSRF), a body that is not plain JSON, the token.
[[nodiscard]] Verdict judge(Need need, const Caller& caller, const AccessRules& rules);

/// The names that a page has which listens on `address`, and what was added with --http-host.
[[nodiscard]] std::vector<std::string> names_of(std::string_view host, std::uint16_t port,
                                                const std::vector<std::string>& more);

/// The same letters in lower case. Names of hosts are ASCII.
[[nodiscard]] std::string lower(std::string text);

}  // namespace commensal::page
