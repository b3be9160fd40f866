// SPDX-License-Identifier: Apache-2.0
// Notes as JSON files and markers.
#include "coordinator/engines/local/attempt_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "coordinator/cluster/job_number.h"
#include "coordinator/cluster/log_name.h"
#include "coordinator/engines/local/durable_file.h"
#include "coordinator/engines/local/system_failure.h"
#include "coordinator/node/kernel_files.h"
#include "coordinator/wire/json_fields.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster::local {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

struct TakeBackNote {
  milliseconds grace{};
};
void fields(SameAs<TakeBackNote> auto& note, auto& field) { field("grace_ms", note.grace); }

constexpr const char* kRemoved = ".removed-";  // begins names of folders that only wait to go

void make_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) == 0) {
    sync_folder(path.parent_path());
  } else if (errno != EEXIST) {
    fail("make the folder", path);
  }
}

bool is_there(const fs::path& file) {
  struct stat info {};
  if (::lstat(file.c_str(), &info) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail("look at", file);
  return false;
}

/// Reads a note, whatever may be wrong with it.
template <typename Note>
std::optional<Note> note(const fs::path& file) {
  if (!is_there(file)) return std::nullopt;
  const auto text = node::read_file(file);
  if (!text) throw BadNote("cannot read " + file.native());
  try {
    Note note;
    wire::read_fields(wire::parse_json(*text, wire::kOwnFile), "the whole of it", note,
                      wire::kExact);
    return note;
  } catch (const wire::BadJson& problem) {
    throw BadNote("cannot read " + file.native() + ": it " + problem.what());
  } catch (const wire::BadField& problem) {
    throw BadNote("cannot read " + file.native() + ": " + problem.what());
  }
}

template <typename Note>
std::string note_text(const Note& note) {
  return wire::write_fields(note, wire::kExact).dump(1);
}

std::optional<std::uint32_t> attempt_number(const std::string& name) {
  const auto number = node::to_number(name);
  if (!number || *number < 0 || std::to_string(*number) != name) return std::nullopt;
  if (*number > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(*number);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{folder}) {
    if (!entry.is_symlink() && entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void add_attempts(const fs::path& state, const std::string& job, std::vector<Attempt>& all) {
  const fs::path folder = state / "jobs" / job;
  for (const std::string& name : names_in(folder)) {
    const auto number = attempt_number(name);
    if (name.starts_with(kRemoved)) fs::remove_all(folder / name);
    if (!number) continue;
    const AttemptFolder found{state, {JobId{job}, *number}};
    if (found.is_held()) {
      all.push_back(found.attempt());
    } else {
      found.remove();  // `hold` had not returned: nobody was told that it is there
    }
  }
  ::rmdir(folder.c_str());  // where nothing is left
}

}  // namespace

std::vector<std::string> nodes_of(const Placed& placed) {
  std::vector<std::string> nodes;
  for (const DevicePlace& place : placed.devices) {
    if (std::find(nodes.begin(), nodes.end(), place.node) == nodes.end()) {
      nodes.push_back(place.node);
    }
  }
  return nodes;
}

AttemptFolder::AttemptFolder(fs::path state, Attempt attempt)
    : state_(std::move(state)),
      attempt_(std::move(attempt)),
      path_(state_ / "jobs" / attempt_.job.str() / std::to_string(attempt_.number)) {}

fs::path AttemptFolder::log(std::size_t rank) const {
  return state_ / "logs" /
         (attempt_.job.str() + '-' + std::to_string(attempt_.number) + '-' + std::to_string(rank) +
          ".log");
}

void AttemptFolder::make() const {
  make_folder(path_.parent_path());
  make_folder(path_);
}

void AttemptFolder::remove() const {
  const fs::path removed = path_.parent_path() / (kRemoved + path_.filename().native());
  fs::remove_all(removed);
  if (::rename(path_.c_str(), removed.c_str()) != 0) {
    if (errno == ENOENT) return;
    fail("remove", path_);
  }
  sync_folder(path_.parent_path());
  fs::remove_all(removed);
  ::rmdir(path_.parent_path().c_str());  // fails while another attempt of the job is there
}

bool AttemptFolder::is_held() const { return is_there(path_ / "spec.json"); }

std::optional<HeldJob> AttemptFolder::held() const { return note<HeldJob>(path_ / "spec.json"); }
void AttemptFolder::set(const HeldJob& held) const {
  write_whole(path_ / "spec.json", note_text(held));
}

bool AttemptFolder::is_placed() const { return is_there(path_ / "placement.json"); }

std::optional<Placed> AttemptFolder::placed() const {
  return note<Placed>(path_ / "placement.json");
}
void AttemptFolder::set(const Placed& placed) const {
  write_whole(path_ / "placement.json", note_text(placed));
}

bool AttemptFolder::is_released() const { return is_there(path_ / "released"); }
void AttemptFolder::set_released() const { (void)make_marker(path_ / "released"); }
void AttemptFolder::unset_released() const {
  if (::unlink((path_ / "released").c_str()) != 0 && errno != ENOENT) {
    fail("remove", path_ / "released");
  }
}

std::optional<KeeperNote> AttemptFolder::keeper() const {
  return note<KeeperNote>(path_ / "keeper.json");
}
void AttemptFolder::set(const KeeperNote& keeper) const {
  // After a power cut it is of no use: there is no such process.
  write_whole(path_ / "keeper.json", note_text(keeper), Durable::kNo);
}

bool AttemptFolder::has_begun() const { return is_there(path_ / "begun"); }
bool AttemptFolder::set_begun() const { return make_marker(path_ / "begun"); }

std::optional<milliseconds> AttemptFolder::take_back() const {
  const auto found = note<TakeBackNote>(path_ / "take_back.json");
  return found ? std::optional{found->grace} : std::nullopt;
}
void AttemptFolder::set_take_back(milliseconds grace) const {
  write_whole(path_ / "take_back.json", note_text(TakeBackNote{grace}));
}

bool AttemptFolder::has_ended() const { return is_there(path_ / "result.json"); }

std::optional<Outcome> AttemptFolder::outcome() const {
  return note<Outcome>(path_ / "result.json");
}
void AttemptFolder::set(const Outcome& outcome) const {
  write_whole(path_ / "result.json", note_text(outcome));
}

std::vector<Attempt> attempts_in(const fs::path& state) {
  std::vector<Attempt> all;
  for (const std::string& job : names_in(state / "jobs")) {
    if (obstacle_to_folder(JobId{job}).empty()) add_attempts(state, job, all);
  }
  return all;
}

std::uint64_t highest_job_in(const fs::path& state) {
  std::uint64_t highest = 0;
  for (const auto& entry : fs::directory_iterator{state / "jobs"}) {
    highest = std::max(highest, job_number(JobId{entry.path().filename()}));
  }
  for (const auto& entry : fs::directory_iterator{state / "logs"}) {
    if (const auto job = job_of_log(entry.path().filename().native())) {
      highest = std::max(highest, job_number(*job));
    }
  }
  return highest;
}

std::string obstacle_to_folder(const JobId& job) {
  const std::string& name = job.str();
  const bool letters = std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
  if (!name.empty() && name.size() <= 63 && name.front() != '.' && letters) return "";
  return "a job's id must be 1 to 63 letters, digits, '.', '_' or '-' and not begin with '.': '" +
         name + "'";
}

namespace {

// Locks of open files: they can be asked for without being taken, and end with the last process
// that has the file open; ranks do not inherit it.
wire::UniqueFd open_lock(const AttemptFolder& folder) {
  const fs::path file = folder.lock_file();
  wire::UniqueFd fd{::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!fd) fail("open", file);
  return fd;
}

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

std::optional<FolderLock> FolderLock::try_take(const AttemptFolder& folder) {
  wire::UniqueFd fd = open_lock(folder);
  struct flock lock = whole_file();
  if (::fcntl(fd.get(), F_OFD_SETLK, &lock) == 0) return FolderLock{std::move(fd)};
  if (errno != EAGAIN && errno != EACCES) fail("lock", folder.lock_file());
  return std::nullopt;
}

FolderLock FolderLock::take(const AttemptFolder& folder) {
  wire::UniqueFd fd = open_lock(folder);
  struct flock lock = whole_file();
  while (::fcntl(fd.get(), F_OFD_SETLKW, &lock) != 0) {
    if (errno != EINTR) fail("lock", folder.lock_file());
  }
  return FolderLock{std::move(fd)};
}

bool FolderLock::is_taken(const AttemptFolder& folder) {
  const wire::UniqueFd fd = open_lock(folder);
  struct flock lock = whole_file();
  if (::fcntl(fd.get(), F_OFD_GETLK, &lock) != 0) fail("ask for the lock", folder.lock_file());
  return lock.l_type != F_UNLCK;
}

}  // namespace commensal::cluster::local
