// SPDX-License-Identifier: Apache-2.0
// Knows whether forked children live that may still see memory as it was when they were forked.
#include "allocator/host/child_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>

#include "allocator/host/own_descriptors.h"

namespace commensal {
namespace {

std::size_t page_size() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

ChildWatch::~ChildWatch() {
  for (Generation& generation : generations_) {
    end_joining(generation);
    own_descriptors::close(generation.file);
  }
}

// Without such a file the generation counts as alive for ever: slower, never wrong.
ChildWatch::Generation ChildWatch::begin_generation() noexcept {
  Generation generation;
  try {
    own_descriptors::begin();
  } catch (const std::system_error&) {
    return generation;
  }
  const long file =
      own_descriptors::call(SYS_memfd_create, "commensal-forks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return generation;
  const long shared =
      own_descriptors::call(SYS_mmap, 0L, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared < 0 && shared > -4096) {  // an errno
    (void)own_descriptors::call(SYS_close, file);
    return generation;
  }
  generation.file = static_cast<int>(file);
  generation.shared = reinterpret_cast<void*>(shared);  // NOLINT(performance-no-int-to-ptr)
  return generation;
}

// No further fork joins, so that the end can be seen.
void ChildWatch::end_joining(Generation& generation) noexcept {
  if (generation.shared != nullptr) ::munmap(generation.shared, page_size());
  generation.shared = nullptr;
}

bool ChildWatch::all_ended(const Generation& generation) noexcept {
  return generation.file >= 0 &&
         own_descriptors::call(SYS_fcntl, generation.file, F_ADD_SEALS, F_SEAL_WRITE) == 0;
}

void ChildWatch::prepare() noexcept {
  ++forks_;
  if (!generations_.empty() && generations_.back().shared != nullptr) {
    generations_.back().last = forks_;
    return;
  }
  Generation generation = begin_generation();
  generation.first = generation.last = forks_;
  try {
    generations_.push_back(generation);
  } catch (const std::bad_alloc&) {
    end_joining(generation);
    own_descriptors::close(generation.file);
    // The newest generation speaks for this fork as well, and can no longer be seen to end.
    if (!generations_.empty()) {
      generations_.back().last = forks_;
      own_descriptors::close(generations_.back().file);
      generations_.back().file = -1;
    }
  }
}

void ChildWatch::forget_in_child() noexcept {
  // The mappings stay: they tell the parent, and the parent's parent, that we live.
  generations_.clear();
  forks_ = 0;
}

bool ChildWatch::child_saw(ForkCount made, ForkCount gone) noexcept {
  std::erase_if(generations_, [&](Generation& generation) {
    if (generation.first > gone || generation.last <= made) return false;
    end_joining(generation);
    if (!all_ended(generation)) return false;
    own_descriptors::close(generation.file);
    return true;
  });
  return std::any_of(generations_.begin(), generations_.end(), [&](const Generation& generation) {
    return generation.first <= gone && generation.last > made;
  });
}

}  // namespace commensal
