// SPDX-License-Identifier: Apache-2.0
// Knows whether forked children live that may still see memory as it was when they were forked.
#include "allocator/host/child_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace commensal {
namespace {

bool all_ended(int read_end) noexcept {
  pollfd watched{read_end, POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLHUP) != 0;
}

}  // namespace

ChildWatch::~ChildWatch() {
  for (const Generation& generation : generations_) {
    if (generation.read_end >= 0) ::close(generation.read_end);
    if (generation.write_end >= 0) ::close(generation.write_end);
  }
}

void ChildWatch::prepare() noexcept {
  ++forks_;
  if (!generations_.empty() && generations_.back().write_end >= 0) {
    generations_.back().last = forks_;
    return;
  }
  int ends[2] = {-1, -1};
  // Without a pipe the generation counts as alive for ever: slower, never wrong.
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) ends[0] = ends[1] = -1;
  try {
    generations_.push_back(Generation{forks_, forks_, ends[0], ends[1]});
  } catch (const std::bad_alloc&) {
    if (ends[0] >= 0) ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
    // The newest generation speaks for this fork as well, and can no longer be seen to end.
    if (!generations_.empty()) {
      generations_.back().last = forks_;
      ::close(generations_.back().read_end);
      generations_.back().read_end = -1;
    }
  }
}

void ChildWatch::forget_in_child() noexcept {
  // The write ends stay open: they tell the parent, and the parent's parent, that we live.
  for (const Generation& generation : generations_) {
    if (generation.read_end >= 0) ::close(generation.read_end);
  }
  generations_.clear();
  forks_ = 0;
}

bool ChildWatch::child_saw(ForkCount made, ForkCount gone) noexcept {
  std::erase_if(generations_, [&](Generation& generation) {
    if (generation.first > gone || generation.last <= made) return false;
    if (generation.write_end >= 0) {
      ::close(generation.write_end);  // no further fork joins, so that the end can be seen
      generation.write_end = -1;
    }
    if (generation.read_end < 0 || !all_ended(generation.read_end)) return false;
    ::close(generation.read_end);
    return true;
  });
  return std::any_of(generations_.begin(), generations_.end(), [&](const Generation& generation) {
    return generation.first <= gone && generation.last > made;
  });
}

}  // namespace commensal
