// SPDX-License-Identifier: Apache-2.0
#include "coordinator/keys/allowed_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "coordinator/keys/private_file.h"
#include "coordinator/wire/json_text.h"

namespace commensal::keys {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::array kRoles{Role::kUser, Role::kOperator, Role::kNode};

void check(const AllowedKey& key) {
  check_key_name(key.name);
  if (key.role == Role::kUser && key.tenants.empty()) {
    throw KeyProblem(
        fmt::format("a user's key names the tenants that it acts for: '{}' has none", key.name));
  }
  if (key.role != Role::kUser && !key.tenants.empty()) {
    throw KeyProblem(fmt::format("only a user's key has tenants: '{}' is a key of role {}",
                                 key.name, to_string(key.role)));
  }
  for (const std::string& tenant : key.tenants) {
    if (tenant.empty()) throw KeyProblem("a tenant has a name: ''");
  }
}

json to_json(const AllowedKey& key) {
  return {{"name", key.name},
          {"public", key.key.hex()},
          {"role", to_string(key.role)},
          {"tenants", key.tenants},
          {"created_ms", key.created_ms},
          {"revoked_ms", key.revoked_ms ? json(*key.revoked_ms) : json(nullptr)}};
}

AllowedKey from_json(const json& object) {
  AllowedKey key{.name = object.at("name").get<std::string>(),
                 .key = Key::from_hex(object.at("public").get<std::string>()),
                 .role = parse_role(object.at("role").get<std::string>()),
                 .tenants = object.at("tenants").get<std::vector<std::string>>(),
                 .created_ms = object.at("created_ms").get<std::int64_t>(),
                 .revoked_ms = std::nullopt};
  const json& revoked = object.at("revoked_ms");
  if (!revoked.is_null()) key.revoked_ms = revoked.get<std::int64_t>();
  check(key);
  return key;
}

AllowedKeys parse(const std::string& text, const std::filesystem::path& file) {
  const json object = wire::try_parse_json(text, wire::kOwnFile).value_or(nullptr);
  if (!object.is_object() || !object.contains("v")) {
    throw KeyProblem(
        fmt::format("the list of keys is damaged: {} is not the JSON that 'commensal "
                    "keys' writes",
                    file.native()));
  }
  if (object["v"] != kVersion) {
    throw KeyProblem(
        fmt::format("the list of keys is of another version: {} has {}, this program "
                    "reads {}",
                    file.native(), object["v"].dump(), kVersion));
  }
  try {
    AllowedKeys keys;
    std::set<Key> seen;
    for (const json& entry : object.at("keys")) {
      keys.push_back(from_json(entry));
      if (!seen.insert(keys.back().key).second) {
        throw KeyProblem(fmt::format("the key of '{}' is there twice", keys.back().name));
      }
    }
    return keys;
  } catch (const std::exception& problem) {
    throw KeyProblem(
        fmt::format("the list of keys is damaged: {} ({})", file.native(), problem.what()));
  }
}

}  // namespace

std::string_view to_string(Role role) noexcept {
  switch (role) {
    case Role::kUser: return "user";
    case Role::kOperator: return "operator";
    case Role::kNode: return "node";
  }
  return "user";
}

Role parse_role(std::string_view word) {
  for (const Role role : kRoles) {
    if (to_string(role) == word) return role;
  }
  throw KeyProblem(fmt::format("unknown role (user, operator, node): '{}'", word));
}

AllowedKeys with_allowed(AllowedKeys keys, AllowedKey key) {
  check(key);
  for (const AllowedKey& other : keys) {
    if (other.key == key.key && !other.valid()) {
      throw KeyProblem(fmt::format("this key was revoked as '{}': make a new one", other.name));
    }
    if (other.key == key.key) {
      throw KeyProblem(fmt::format("this key is allowed already, as '{}'", other.name));
    }
    if (other.name == key.name && other.valid()) {
      throw KeyProblem(fmt::format("the name is in use: '{}' (revoke that key first)", key.name));
    }
  }
  keys.push_back(std::move(key));
  return keys;
}

AllowedKeys with_revoked(AllowedKeys keys, std::string_view name, std::int64_t now_ms) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const AllowedKey& key) {
    return key.name == name && key.valid();
  });
  if (found == keys.end()) {
    throw KeyProblem(fmt::format("no key of this name is allowed: '{}'", name));
  }
  found->revoked_ms = now_ms;
  return keys;
}

AllowedKeys AllowedStore::read() const {
  if (std::filesystem::exists(std::filesystem::symlink_status(folder_.path()))) folder_.prepare();
  const auto text = read_private_file(file(), "list of keys", OthersMay::kNothing);
  return text ? parse(*text, file()) : AllowedKeys{};
}

void AllowedStore::change(const std::function<AllowedKeys(AllowedKeys)>& how) const {
  folder_.prepare();
  const FolderLock lock{folder_};
  json keys = json::array();
  for (const AllowedKey& key : how(read())) keys.push_back(to_json(key));
  const json object{{"v", kVersion}, {"keys", std::move(keys)}};
  std::string text;
  try {
    text = object.dump(1) + "\n";
  } catch (const json::type_error&) {
    throw KeyProblem("a tenant's name is not text (UTF-8)");
  }
  write_private_file(file(), "list of keys", text);
}

}  // namespace commensal::keys
