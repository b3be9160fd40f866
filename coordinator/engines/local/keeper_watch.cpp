// SPDX-License-Identifier: Apache-2.0
// inotify, pidfds and an eventfd in one epoll.
#include "coordinator/engines/local/keeper_watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "coordinator/engines/local/system_failure.h"

namespace commensal::cluster::local {
namespace {

void add_to(int events, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) != 0) fail("cannot watch a descriptor");
}

}  // namespace

KeeperWatch::KeeperWatch()
    : events_(::epoll_create1(EPOLL_CLOEXEC)),
      folders_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      marks_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!events_ || !folders_ || !marks_) fail("cannot make descriptors for events");
  add_to(events_.get(), folders_.get());
  add_to(events_.get(), marks_.get());
}

void KeeperWatch::add(const AttemptFolder& folder) {
  mark(folder.attempt());
  if (watches_.contains(folder.attempt())) return;
  const int watch = ::inotify_add_watch(folders_.get(), folder.path().c_str(),
                                        IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
  if (watch < 0) fail("cannot watch " + folder.path().native());
  watches_[folder.attempt()] = watch;
  by_watch_[watch] = folder.attempt();
}

void KeeperWatch::add_keeper(const Attempt& attempt, wire::UniqueFd pidfd, bool child) {
  add_to(events_.get(), pidfd.get());
  const int key = pidfd.get();
  keepers_.insert_or_assign(key, Keeper{attempt, std::move(pidfd), child});
}

bool KeeperWatch::has_keeper(const Attempt& attempt) const {
  return std::any_of(keepers_.begin(), keepers_.end(),
                     [&](const auto& entry) { return entry.second.attempt == attempt; });
}

void KeeperWatch::remove(const Attempt& attempt) {
  marked_.erase(attempt);
  const auto found = watches_.find(attempt);
  if (found == watches_.end()) return;
  // Fails where the folder is gone, and the kernel's watch with it.
  (void)::inotify_rm_watch(folders_.get(), found->second);
  by_watch_.erase(found->second);
  watches_.erase(found);
}

void KeeperWatch::mark(const Attempt& attempt) {
  marked_.insert(attempt);
  // Full only after 2^64 - 1 marks that nobody looked at.
  (void)::eventfd_write(marks_.get(), 1);
}

std::set<Attempt> KeeperWatch::changed() {
  std::array<epoll_event, 64> ready{};
  while (true) {
    const int count = ::epoll_wait(events_.get(), ready.data(), ready.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot look for events");
    if (count == 0) break;
    for (int i = 0; i < count; ++i) {
      const int fd = ready[static_cast<std::size_t>(i)].data.fd;
      eventfd_t ignored = 0;
      if (fd == folders_.get()) {
        read_folders();
      } else if (fd == marks_.get()) {
        (void)::eventfd_read(fd, &ignored);
      } else {
        keeper_ended(fd);
      }
    }
  }
  return std::exchange(marked_, {});
}

void KeeperWatch::read_folders() {
  alignas(inotify_event) std::array<char, 16384> piece;
  while (true) {
    const ssize_t count = ::read(folders_.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) fail("cannot read what changed in folders");
    if (count <= 0) return;
    for (std::size_t at = 0; at < static_cast<std::size_t>(count);) {
      inotify_event event;
      std::memcpy(&event, piece.data() + at, sizeof event);
      at += sizeof event + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0) {  // some were not kept: any may have changed
        for (const auto& [attempt, watch] : watches_) marked_.insert(attempt);
      } else if (const auto found = by_watch_.find(event.wd); found != by_watch_.end()) {
        marked_.insert(found->second);
      }
    }
  }
}

void KeeperWatch::keeper_ended(int pidfd) {
  const auto found = keepers_.find(pidfd);
  if (found == keepers_.end()) return;
  if (found->second.child) {
    siginfo_t info{};
    // Fails where somebody else of this process has waited for it, or ignores SIGCHLD.
    (void)::waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG);
  }
  marked_.insert(found->second.attempt);
  keepers_.erase(found);  // closes the descriptor, and epoll forgets it
}

}  // namespace commensal::cluster::local
