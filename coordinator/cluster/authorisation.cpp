// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/authorisation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace commensal::cluster {
namespace {

using keys::AllowedKey;
using keys::Role;

// Of the rest, what is not known included, only operators may ask.
constexpr std::array<std::string_view, 12> kOfOneTenant{
    "submit",     "cancel",      "resume",       "logs",   "read_log",  "explain",
    "first_step", "report_loss", "report_input", "inputs", "add_input", "remove_input"};
constexpr std::array<std::string_view, 3> kOfAll{"queue", "nodes", "tenants"};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Verdict judge_user(const AllowedKey& caller, std::string_view type,
                   const std::optional<std::string>& tenant) {
  if (contains(kOfAll, type)) return {true, "everybody may look at what is theirs"};
  if (!contains(kOfOneTenant, type)) {
    return {false, fmt::format("'{}' is for operators; the key '{}' has the role user", type,
                               caller.name)};
  }
  if (!tenant) return {true, "it is about nobody's job"};
  if (may_see(caller, *tenant)) return {true, fmt::format("acts for tenant {}", *tenant)};
  return {false, fmt::format("the key '{}' acts for {}, not for tenant {}", caller.name,
                             fmt::join(caller.tenants, ", "), *tenant)};
}

}  // namespace

Verdict authorise(const AllowedKey& caller, std::string_view type,
                  const std::optional<std::string>& tenant) {
  const bool heartbeat = type == kHeartbeat;
  switch (caller.role) {
    case Role::kUser: return judge_user(caller, type, tenant);
    case Role::kOperator:
      if (!heartbeat) return {true, "operators may ask everything"};
      return {false,
              fmt::format("only nodes report; the key '{}' has the role operator", caller.name)};
    case Role::kNode:
      if (heartbeat) return {true, "a node reports"};
      return {false, fmt::format("a node only reports; the key '{}' has the role node, "
                                 "'{}' is not for it",
                                 caller.name, type)};
  }
  return {false, "a role that nobody knows"};
}

bool may_see(const AllowedKey& caller, std::string_view tenant) {
  switch (caller.role) {
    case Role::kOperator: return true;
    case Role::kNode: return false;
    case Role::kUser:
      return std::find(caller.tenants.begin(), caller.tenants.end(), tenant) !=
             caller.tenants.end();
  }
  return false;
}

}  // namespace commensal::cluster
