// SPDX-License-Identifier: Apache-2.0
// Tells which attempts there is news of: notes in their folders, and keepers that ended.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {

/// Watches folders by inotify and keepers by pidfds. Thread safety: none.
class KeeperWatch {
 public:
  /// @throws std::system_error.
  KeeperWatch();

  /// Readable while `changed` has something to tell.
  [[nodiscard]] int descriptor() const noexcept { return events_.get(); }

  /// Watches the folder of an attempt from now on; again: nothing new. Its present state is news,
  /// too. @throws std::system_error.
  void add(const AttemptFolder& folder);
  /// Watches a keeper. @param child  it is this process's child, to be waited for.
  /// @throws std::system_error.
  void add_keeper(const Attempt& attempt, wire::UniqueFd pidfd, bool child);
  /// Whether a keeper of this attempt is watched and has not ended.
  [[nodiscard]] bool has_keeper(const Attempt& attempt) const;
  void remove(const Attempt& attempt);

  /// Makes `changed` tell of an attempt.
  void mark(const Attempt& attempt);
  /// The same, whenever it is called the next time: the descriptor is as it was.
  void mark_for_later(const Attempt& attempt) { marked_.insert(attempt); }
  /// Returns attempts with news since the last call. Does not wait.
  [[nodiscard]] std::set<Attempt> changed();

 private:
  struct Keeper {
    Attempt attempt;
    wire::UniqueFd pidfd;
    bool child = false;
  };
  void read_folders();
  void keeper_ended(int pidfd);

  wire::UniqueFd events_;
  wire::UniqueFd folders_;
  wire::UniqueFd marks_;
  std::map<int, Attempt> by_watch_;
  std::map<Attempt, int> watches_;
  std::map<int, Keeper> keepers_;  // by their pidfds
  std::set<Attempt> marked_;
};

}  // namespace commensal::cluster::local
