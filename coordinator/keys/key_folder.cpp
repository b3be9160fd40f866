// SPDX-License-Identifier: Apache-2.0
#include "coordinator/keys/key_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "coordinator/keys/private_file.h"
#include "coordinator/wire/json_text.h"
#include "coordinator/wire/paths.h"

namespace commensal::keys {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestName = 64;

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets them
  return value == nullptr ? "" : value;
}

KeyPair pair_from(const std::string& text, const std::filesystem::path& file) {
  const json object = wire::try_parse_json(text).value_or(nullptr);
  try {
    const KeyPair pair{Key::from_hex(object.at("public").get<std::string>()),
                       Key::from_hex(object.at("secret").get<std::string>())};
    if (public_key_of(pair.secret) == pair.public_key) return pair;
  } catch (const json::exception&) {
    throw KeyProblem(fmt::format("not a key: {}", file.native()));
  } catch (const KeyProblem& problem) {
    throw KeyProblem(fmt::format("not a key: {} ({})", file.native(), problem.what()));
  }
  throw KeyProblem(
      fmt::format("not a key: {} (its public and its secret key are no pair)", file.native()));
}

}  // namespace

std::filesystem::path default_key_folder() {
  if (std::string own = variable("COMMENSAL_KEYS_DIR"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CONFIG_HOME"); !xdg.empty()) {
    return std::filesystem::path{xdg} / "commensal" / "keys";
  }
  const std::string home = variable("HOME");
  if (home.empty()) throw KeyProblem("no folder for keys: set COMMENSAL_KEYS_DIR or HOME");
  return std::filesystem::path{home} / ".config" / "commensal" / "keys";
}

void check_key_name(std::string_view name) {
  const bool letters = std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
  if (!letters || name.empty() || name.size() > kLongestName || name.front() == '.' ||
      name.front() == '-') {
    throw KeyProblem(
        fmt::format("a key's name is 1 to 64 letters, digits, '.', '_' or '-' and does not begin "
                    "with '.' or '-': '{}'",
                    name));
  }
}

void KeyFolder::prepare() const {
  try {
    wire::prepare_private_dir(path_, "key folder");
  } catch (const wire::BadPath& problem) {
    throw KeyProblem(problem.what());
  }
}

std::filesystem::path KeyFolder::key_file(const std::string& name) const {
  check_key_name(name);
  return path_ / (name + ".key");
}

std::filesystem::path KeyFolder::public_file(const std::string& name) const {
  check_key_name(name);
  return path_ / (name + ".pub");
}

Key KeyFolder::create(const std::string& name) const {
  const std::filesystem::path file = key_file(name);
  prepare();
  const FolderLock lock{*this};
  if (std::filesystem::exists(std::filesystem::symlink_status(file))) {
    throw KeyProblem(fmt::format("the name is in use: {} is there already", file.native()));
  }
  const KeyPair pair = make_key_pair();
  const json object{
      {"name", name}, {"public", pair.public_key.hex()}, {"secret", pair.secret.hex()}};
  write_private_file(public_file(name), "public key", pair.public_key.hex() + "\n");
  write_private_file(file, "key", object.dump() + "\n");
  return pair.public_key;
}

KeyPair KeyFolder::load(const std::string& name) const {
  const std::filesystem::path file = key_file(name);
  if (std::filesystem::exists(std::filesystem::symlink_status(path_))) prepare();
  const auto text = read_private_file(file, "key", OthersMay::kNothing);
  if (!text) {
    throw KeyProblem(fmt::format("no key '{}': {} is missing; 'commensal keys create {}' makes it",
                                 name, file.native(), name));
  }
  return pair_from(*text, file);
}

KeyPair KeyFolder::coordinator_pair() const {
  const std::string name{kCoordinatorKey};
  prepare();
  if (!std::filesystem::exists(std::filesystem::symlink_status(key_file(name)))) {
    (void)create(name);
  }
  return load(name);
}

Key KeyFolder::load_public(const std::string& name) const {
  const std::filesystem::path file = public_file(name);
  if (std::filesystem::exists(std::filesystem::symlink_status(path_))) prepare();
  const auto text = read_private_file(file, "public key", OthersMay::kRead);
  if (!text) {
    throw KeyProblem(fmt::format(
        "no public key of '{}': {} is missing; copy it from the machine where that key was made",
        name, file.native()));
  }
  try {
    return parse_public_key(*text);
  } catch (const KeyProblem& problem) {
    throw KeyProblem(fmt::format("{} in {}", problem.what(), file.native()));
  }
}

FolderLock::FolderLock(const KeyFolder& folder)
    : fd_(open((folder.path() / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
               S_IRUSR | S_IWUSR)) {
  if (fd_ < 0) {
    throw KeyProblem(fmt::format("cannot change the key folder {} ({})", folder.path().native(),
                                 std::generic_category().message(errno)));
  }
  while (flock(fd_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const int error = errno;
    close(fd_);
    throw KeyProblem(fmt::format("cannot lock the key folder {} ({})", folder.path().native(),
                                 std::generic_category().message(error)));
  }
}

FolderLock::~FolderLock() { close(fd_); }

}  // namespace commensal::keys
