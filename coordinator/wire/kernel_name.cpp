// SPDX-License-Identifier: Apache-2.0
#include "coordinator/wire/kernel_name.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>

namespace commensal::wire {
namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{500};

struct Address {
  sockaddr_un text{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&text); }
};

Address abstract_address(const std::string& name) {
  Address address;
  address.text.sun_family = AF_UNIX;
  std::memcpy(address.text.sun_path + 1, name.data(),
              std::min(name.size(), sizeof address.text.sun_path - 1));
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd stream_socket() {
  UniqueFd fd{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!fd) throw std::system_error(errno, std::generic_category(), "cannot make a socket");
  return fd;
}

struct Holder {
  UniqueFd line;
  ucred who{};
};

/// Connects to who has a name; nothing if nobody has.
std::optional<Holder> reach(const std::string& name) {
  const Address address = abstract_address(name);
  Holder holder{stream_socket(), {}};
  socklen_t size = sizeof holder.who;
  if (connect(holder.line.get(), address.generic(), address.size) != 0 ||
      getsockopt(holder.line.get(), SOL_SOCKET, SO_PEERCRED, &holder.who, &size) != 0) {
    return std::nullopt;
  }
  return holder;
}

/// Reads to the end; nothing if that does not come in time.
std::optional<std::string> read_all(int fd) {
  const auto deadline = Steady::now() + kPatience;
  std::string text;
  for (;;) {
    std::array<char, 512> part{};
    const ssize_t count = read(fd, part.data(), part.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(part.data(), static_cast<std::size_t>(count));
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return std::nullopt;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Steady::now());
    pollfd item{fd, POLLIN, 0};
    if (left.count() <= 0 ||
        (poll(&item, 1, static_cast<int>(left.count())) < 0 && errno != EINTR)) {
      return std::nullopt;
    }
  }
}

fs::path plain(const fs::path& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

/// FNV-1a: programs of different builds agree on it.
std::string number_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return digits.data();
}

bool is_account_folder(const fs::path& folder) {
  const std::vector<fs::path> all = account_folders();
  return std::any_of(all.begin(), all.end(),
                     [&](const fs::path& one) { return plain(one) == plain(folder); });
}

}  // namespace

std::vector<fs::path> account_folders() {
  const std::string user = std::to_string(geteuid());
  std::vector<fs::path> folders;
  if (const char* dir = std::getenv("XDG_RUNTIME_DIR"); dir != nullptr && *dir != '\0') {
    folders.push_back(fs::path{dir} / "commensal");
  }
  folders.push_back("/run/user/" + user + "/commensal");
  folders.push_back("/tmp/commensal-" + user);
  return folders;
}

fs::path usable_folder(const fs::path& folder) {
  std::error_code gone;
  if (fs::exists(plain(folder).parent_path(), gone) || !is_account_folder(folder)) return folder;
  return account_folders().back();
}

std::string kernel_name(const fs::path& folder, std::string_view instance) {
  std::string name = "commensald-" + std::to_string(geteuid()) + "-";
  name += instance;
  if (!is_account_folder(folder)) name += "-" + number_of(plain(folder).native());
  return name;
}

fs::path where_listens(const fs::path& folder, std::string_view instance) {
  if (!is_account_folder(folder)) return folder;
  try {
    const auto holder = reach(kernel_name(folder, instance));
    if (!holder || holder->who.uid != geteuid()) return folder;
    const auto told = read_all(holder->line.get());
    return told && !told->empty() ? fs::path{*told} : folder;
  } catch (const std::system_error&) {
    return folder;  // no descriptor is free: then nothing can be connected to either
  }
}

KernelName::KernelName(const std::string& name) {
  const Address address = abstract_address(name);
  UniqueFd fd = stream_socket();
  if (bind(fd.get(), address.generic(), address.size) == 0 && listen(fd.get(), 128) == 0) {
    listener_ = std::move(fd);
    return;
  }
  if (errno != EADDRINUSE) {
    throw std::system_error(errno, std::generic_category(), "cannot take the name " + name);
  }
  if (const auto holder = reach(name)) {
    holder_ = holder->who.pid;
    user_ = holder->who.uid;
  } else {
    user_ = static_cast<uid_t>(-1);  // bound, and nobody listens: it is nothing of ours
  }
}

bool KernelName::is_ours() const noexcept { return !held() && user_ == geteuid(); }

bool KernelName::tell(const fs::path& folder) {
  for (;;) {
    const UniqueFd line{accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!line) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return errno == EAGAIN;
    }
    ucred who{};
    socklen_t size = sizeof who;
    const bool known = getsockopt(line.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
    if (!known || who.uid != geteuid()) continue;
    const std::string& text = folder.native();  // who has gone need not hear it
    (void)!send(line.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

}  // namespace commensal::wire
