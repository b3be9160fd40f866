// SPDX-License-Identifier: Apache-2.0
// /proc/PID/stat, /proc/PID/environ and pidfds.
#include "coordinator/engines/local/process.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "coordinator/node/kernel_files.h"

namespace commensal::cluster::local {
namespace {

namespace fs = std::filesystem;
using wire::UniqueFd;

struct Stat {
  char state = '?';
  pid_t parent = 0;
  std::uint64_t start_ticks = 0;
};

std::optional<Stat> stat_of(pid_t pid) {
  const auto text = node::read_file("/proc/" + std::to_string(pid) + "/stat");
  if (!text) return std::nullopt;
  const std::size_t name_end = text->rfind(')');  // the name may hold spaces and brackets
  if (name_end == std::string::npos) return std::nullopt;
  const auto fields = node::words(text->substr(name_end + 1));  // the first is field 3
  if (fields.size() < 20) return std::nullopt;
  const auto parent = node::to_number(fields[1]);
  const auto ticks = node::to_number(fields[19]);
  if (!parent || !ticks) return std::nullopt;
  return Stat{fields[0][0], static_cast<pid_t>(*parent), static_cast<std::uint64_t>(*ticks)};
}

bool has_ended(const Stat& stat) { return stat.state == 'Z' || stat.state == 'X'; }

std::string boot() {
  std::string text = node::read_file("/proc/sys/kernel/random/boot_id").value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<pid_t> processes() {
  std::vector<pid_t> all;
  std::error_code problem;
  for (fs::directory_iterator entry{"/proc", problem}, end; !problem && entry != end;
       entry.increment(problem)) {
    const auto pid = node::to_number(entry->path().filename().native());
    if (pid) all.push_back(static_cast<pid_t>(*pid));
  }
  return all;
}

UniqueFd open_number(pid_t pid) {
  return UniqueFd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
}

bool is_marked(pid_t pid, const std::string& entry) {
  const auto text = node::read_file("/proc/" + std::to_string(pid) + "/environ");
  if (!text) return false;
  const std::string zero(1, '\0');
  return (zero + *text).find(zero + entry + zero) != std::string::npos;
}

}  // namespace

ProcessIdentity own_identity() {
  const auto stat = stat_of(::getpid());
  return {::getpid(), stat ? stat->start_ticks : 0, boot()};
}

std::string to_string(const ProcessIdentity& identity) {
  return identity.boot + ':' + std::to_string(identity.pid) + ':' +
         std::to_string(identity.start_ticks);
}

UniqueFd open_process(const ProcessIdentity& identity) {
  if (identity.pid <= 0 || identity.boot != boot()) return UniqueFd{};
  UniqueFd pidfd = open_number(identity.pid);
  // Looked at after it was opened: what is seen now is what the descriptor stands for.
  const auto stat = stat_of(identity.pid);
  if (!pidfd || !stat || stat->start_ticks != identity.start_ticks || has_ended(*stat)) {
    return UniqueFd{};
  }
  return pidfd;
}

bool send_signal(int pidfd, int signal) noexcept {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const pid_t pid : processes()) {
    const auto stat = stat_of(pid);
    if (stat && stat->parent == parent && !has_ended(*stat)) children.push_back(pid);
  }
  return children;
}

int kill_marked(const std::string& entry) {
  int killed = 0;
  for (const pid_t pid : processes()) {
    if (pid == ::getpid() || !is_marked(pid, entry)) continue;
    const UniqueFd pidfd = open_number(pid);
    if (pidfd && is_marked(pid, entry) && send_signal(pidfd.get(), SIGKILL)) ++killed;
  }
  return killed;
}

}  // namespace commensal::cluster::local
