// SPDX-License-Identifier: Apache-2.0
// What the cluster coordinator must not forget, in one SQLite file (WAL).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/cluster/bad_inputs.h"
#include "coordinator/cluster/job.h"
#include "coordinator/cluster/job_life.h"

namespace commensal::cluster {

/// Raised when the file cannot be used; one sentence with its path and what to do.
class StoreFailed : public std::runtime_error {
 public:
  enum class Why : std::uint8_t {
    kNewer,    ///< written by a newer version; left as it is
    kDamaged,  ///< was kept aside under the name in `what`, or could not be
    kLocked,   ///< another coordinator has it
    kFull,     ///< no space left, or the file cannot be written: nothing of the batch is kept
    kForeign,  ///< attempts that the engine keeps are not known to be its own; nothing has changed
    kOther
  };
  StoreFailed(Why why, const std::string& what) : std::runtime_error(what), why_(why) {}
  [[nodiscard]] Why why() const noexcept { return why_; }

 private:
  Why why_;
};

/// Refuses to make an empty file where a damaged one (`NAME.damaged-TIME`) lies and nothing has
/// taken its place yet: nobody would know of the jobs that wait or run.
/// To be asked before a store is opened for a cluster.
/// @throws StoreFailed (kDamaged) that says what to do.
void check_nothing_was_kept_aside(const std::filesystem::path& file);

struct TenantRecord {
  std::string name;
  std::optional<std::int32_t> quota;  ///< devices of guaranteed jobs; absent: no limit
  bool operator==(const TenantRecord&) const = default;
};

struct DrainedNode {
  std::string node;
  std::string reason;
  WallTime since{};
  bool operator==(const DrainedNode&) const = default;
};

/// Everything at a start.
struct StoredState {
  std::vector<JobRecord> jobs;  ///< all that have not ended, in the order of their submission
  std::vector<TenantRecord> tenants;
  std::vector<DrainedNode> drained;
  std::vector<BadInput> bad_inputs;
  std::uint64_t next_job = 1;
};

/// Keeps jobs, their history, tenants, drained nodes and bad inputs.
///
/// Changes are collected and become durable together with `commit` (one synced write, however
/// many): nobody is answered before. A crash at any point leaves all of a batch or nothing. Reads
/// see what has been changed, committed or not.
///
/// Any call may throw StoreFailed. If a change or `commit` does, nothing since the last commit is
/// kept, in the file nor in what is read, and the next change begins anew; the object stays usable.
/// Thread safety: none.
class Store {
 public:
  /// Opens or makes the file; its folder must exist. A damaged file is renamed to
  /// `NAME.damaged-TIME` and the error says so; nothing is made in its place. The file has mode
  /// 0600 and is locked until this object ends; it is written by nothing else (its pages carry
  /// checksums, so another program's changes are taken for damage).
  /// @param log_pages  pages in the log (`NAME-wal`) from which on they are moved into the file, by
  ///                   the commit that comes to it: two more synced writes.
  /// @throws StoreFailed.
  explicit Store(const std::filesystem::path& file, std::size_t log_pages = 4000);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  [[nodiscard]] StoredState load();

  /// Adds a job in the state `submitted`, and its first line of history.
  /// @param request  the submitter's own name of this request, unique per tenant: a request that
  ///                 was added before is not added again. Empty: none.
  /// @param above    numbers up to this one are not given: this file may be an older copy, whose
  ///                 next numbers jobs had that it does not know.
  /// @return the id, a decimal number that no other job of this file ever had: that of before for
  ///         a repeated request.
  /// @throws std::invalid_argument naming a field that is out of range or not UTF-8, or `above` if
  ///         no number is left above it.
  JobId add(const JobSpec& spec, const std::string& request, WallTime now, std::uint64_t above = 0);

  /// Returns the job that was added for this request of a tenant; nothing if none was, or without
  /// a name of a request.
  [[nodiscard]] std::optional<JobId> added(const std::string& tenant, const std::string& request);

  /// Writes a record as it is now and, if its state changed, a line of history, whose number is
  /// given here. What never changes (`spec`, `submitted`) stays as it was added.
  /// @throws std::invalid_argument if there is no such job, or the line is about another one.
  void put(const JobRecord& record, const std::optional<Transition>& transition);

  void put(const TenantRecord& tenant);
  void put(const DrainedNode& node);
  void undrain(const std::string& node);
  void put(const BadInput& input);
  void remove(const InputKey& input);
  /// Keeps a text that belongs to this store and its copies, in the place of the one of this name.
  void put_note(const std::string& name, const std::string& text);

  /// Makes everything since the last commit durable. Without changes it does nothing.
  void commit();

  /// Commits, and copies everything into a new file of `folder`, which is made if it is not there:
  /// `cluster-TIME.db`, a store of its own, mode 0600. Nothing else is done meanwhile.
  /// @return its path. @throws StoreFailed; then there is no file of that name.
  std::filesystem::path back_up(const std::filesystem::path& folder, WallTime now);

  /// Returns the file that it was opened with.
  [[nodiscard]] const std::filesystem::path& file() const noexcept;
  /// Returns the text of `put_note`; empty: there is none.
  [[nodiscard]] std::string note(const std::string& name);
  [[nodiscard]] std::optional<JobRecord> job(const JobId& id);
  /// Jobs that have ended, the newest first.
  [[nodiscard]] std::vector<JobRecord> ended(std::size_t limit, std::size_t offset = 0);
  /// A job's history, oldest first; of long ones the newest `limit`.
  [[nodiscard]] std::vector<Transition> history(const JobId& id, std::size_t limit = 1000);
  /// Lines of all jobs after number `after`, oldest first: the event log.
  [[nodiscard]] std::vector<Transition> events(std::uint64_t after, std::size_t limit);
  /// The newest `limit` lines of all jobs, oldest first.
  [[nodiscard]] std::vector<Transition> newest_events(std::size_t limit);

 private:
  struct Database;
  std::unique_ptr<Database> database_;
};

}  // namespace commensal::cluster
