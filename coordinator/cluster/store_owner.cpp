// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/store_owner.h"

#include <fmt/format.h>

#include <random>
#include <system_error>

#include "coordinator/cluster/store_failure.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStamp = "stamp";  // name of the store's note

std::string new_stamp() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

StoreOwner read_owner(Store& store, Engine& engine) {
  StoreOwner owner{store.note(kStamp), engine.store_stamp(), engine.attempts(), 0};
  for (const Attempt& attempt : owner.attempts) {
    const auto job = store.job(attempt.job);
    if (job && job->attempt >= attempt.number) ++owner.known;
  }
  return owner;
}

bool owns_attempts(const StoreOwner& owner) {
  if (owner.attempts.empty()) return true;
  if (owner.store_stamp.empty() || owner.engine_stamp.empty()) return owner.known > 0;
  return owner.store_stamp == owner.engine_stamp;
}

void stamp_both(const StoreOwner& owner, Store& store, Engine& engine) {
  std::string stamp = owner.store_stamp;
  if (stamp.empty()) {
    // A copy from before there were stamps is still the store of those that it knows.
    const bool same = owner.known > 0 && !owner.engine_stamp.empty();
    stamp = same ? owner.engine_stamp : new_stamp();
    store.put_note(kStamp, stamp);
    store.commit();
  }
  if (owner.engine_stamp != stamp) engine.set_store_stamp(stamp);
}

StoreFailed foreign_store(const fs::path& file, const std::string& is) {
  return {StoreFailed::Why::kForeign,
          fmt::format(
              "{} {}: it would end jobs that it does not know, and nothing was changed; put "
              "the database of these jobs or a copy of it in its place "
              "(docs/operating.md), or start commensal-coordinator once with --begin-anew, which "
              "ends them",
              file_text(file), is)};
}

StoreFailed foreign_store(const fs::path& file, const StoreOwner& owner) {
  const Attempt& first = owner.attempts.front();
  const bool stamps = !owner.store_stamp.empty() && !owner.engine_stamp.empty();
  return foreign_store(
      file, fmt::format("{} the {} attempts that the engine keeps, job {}, attempt {}, the first",
                        stamps ? "is not that of" : "knows none of", owner.attempts.size(),
                        first.job.str(), first.number));
}

void check_not_lost(const fs::path& file, const fs::path& attempts) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  const bool is_missing = error == std::errc::no_such_file_or_directory;
  if (!is_missing && (error || size > 0)) return;  // who opens it says what is wrong with it
  if (fs::file_size(file.string() + "-wal", error) > 0 && !error) return;  // it is kept aside
  if (fs::directory_iterator jobs{attempts, error}; error || jobs == fs::directory_iterator{}) {
    return;
  }
  throw foreign_store(file, fmt::format("is {}, but {} has attempts of jobs",
                                        is_missing ? "missing" : "empty", attempts.native()));
}

}  // namespace commensal::cluster
