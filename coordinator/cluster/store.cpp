// SPDX-License-Identifier: Apache-2.0
// Statements of the store, and the one transaction that they share until it is committed.
#include "coordinator/cluster/store.h"

#include <SQLiteCpp/Backup.h>
#include <SQLiteCpp/Database.h>
#include <SQLiteCpp/Statement.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "coordinator/cluster/job_json.h"
#include "coordinator/cluster/store_batch.h"
#include "coordinator/cluster/store_failure.h"
#include "coordinator/cluster/store_file.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

#define COMMENSAL_JOB_COLUMNS                                                                     \
  "SELECT id, spec, state, reason, attempt, retries, class, placement, cancel_asked, exit_code, " \
  "submitted_ms, changed_ms FROM job "
#define COMMENSAL_TRANSITION_COLUMNS \
  "SELECT number, job, at_ms, before, after, attempt, reason FROM transition "

// Bits of the column cancel_asked: version 1 had the first alone.
constexpr int kCancel = 1;
constexpr int kFinish = 2;
constexpr int kPark = 4;
constexpr int kUnheld = 8;
constexpr int kLowering = 16;

// Ids are the numbers of rows; anything else is no id.
std::optional<std::int64_t> row_of(const JobId& id) noexcept {
  const std::string& text = id.str();
  std::int64_t row = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), row);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || row <= 0 || text.front() == '0') return std::nullopt;
  return row;
}

constexpr std::uint64_t kLastNumber = std::numeric_limits<std::int64_t>::max();

JobId id_of(std::int64_t row) { return JobId{std::to_string(row)}; }

std::int64_t row_limit(std::uint64_t number) noexcept {
  return static_cast<std::int64_t>(std::min(number, kLastNumber));
}

WallTime wall_time(const SQLite::Column& column) {
  return WallTime{std::chrono::milliseconds{column.getInt64()}};
}

/// One use of a kept statement: bound from the first parameter on, ready again at its end.
class Use {
 public:
  explicit Use(SQLite::Statement& statement) : statement_(statement) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    (void)statement_.tryReset();  // repeats an error of `step`, which was thrown there
  }

  Use& operator<<(std::int64_t value) {
    statement_.bind(next_++, value);
    return *this;
  }
  Use& operator<<(std::string_view value) {
    statement_.bind(next_++, std::string{value});
    return *this;
  }
  template <typename T>
  Use& operator<<(const std::optional<T>& value) {
    if (value) return *this << *value;
    statement_.bind(next_++);
    return *this;
  }

  /// @return whether there is a row.
  bool step() { return statement_.executeStep(); }
  SQLite::Column operator[](int column) { return statement_.getColumn(column); }

 private:
  SQLite::Statement& statement_;
  int next_ = 1;
};

/// What cannot be read although its checksums are right: not written by this version.
std::invalid_argument unreadable(const char* column, const std::string& value) {
  return std::invalid_argument(fmt::format("column '{}' cannot be read: '{}'", column, value));
}

template <NamedEnum Enum>
Enum named_in(const SQLite::Column& column) {
  const std::string text = column.getString();
  if (const auto value = value_of<Enum>(text)) return *value;
  throw unreadable(column.getName(), text);
}

json json_in(const SQLite::Column& column) {
  auto value = wire::try_parse_json(column.getString(), wire::kOwnFile);
  if (!value) throw unreadable(column.getName(), column.getString());
  return *std::move(value);
}

int bits_of(const JobRecord& record) {
  return (record.cancel_asked ? kCancel : 0) | (record.finish_asked ? kFinish : 0) |
         (record.park_asked ? kPark : 0) | (record.unheld ? kUnheld : 0) |
         (record.lowering ? kLowering : 0);
}

JobRecord job_in(Use& row) {
  JobRecord record;
  record.id = id_of(row[0].getInt64());
  record.spec = spec_from_json(json_in(row[1]));
  record.state = named_in<JobState>(row[2]);
  record.reason = row[3].getString();
  record.attempt = row[4].getUInt();
  record.retries = row[5].getUInt();
  record.job_class = named_in<JobClass>(row[6]);
  record.placement = placement_from_json(json_in(row[7]));
  record.cancel_asked = (row[8].getInt() & kCancel) != 0;
  record.finish_asked = (row[8].getInt() & kFinish) != 0;
  record.park_asked = (row[8].getInt() & kPark) != 0;
  record.unheld = (row[8].getInt() & kUnheld) != 0;
  record.lowering = (row[8].getInt() & kLowering) != 0;
  if (!row[9].isNull()) record.exit_code = row[9].getInt();
  record.submitted = wall_time(row[10]);
  record.changed = wall_time(row[11]);
  return record;
}

Transition transition_in(Use& row) {
  Transition transition;
  transition.number = static_cast<std::uint64_t>(row[0].getInt64());
  transition.job = id_of(row[1].getInt64());
  transition.at = wall_time(row[2]);
  transition.from = named_in<JobState>(row[3]);
  transition.to = named_in<JobState>(row[4]);
  transition.attempt = row[5].getUInt();
  transition.reason = row[6].getString();
  return transition;
}

BadInput input_in(Use& row) {
  BadInput input;
  input.key = {row[0].getString(), row[1].getString(), row[2].getString()};
  input.reason = row[3].getString();
  input.since = wall_time(row[4]);
  input.listed = row[5].getInt() != 0;
  try {
    for (const json& report : json_in(row[6])) {
      input.reports.push_back(
          {{JobId{report.at("job").get<std::string>()}, report.at("attempt").get<std::uint32_t>()},
           report.at("failing").get<bool>(),
           report.at("counted").get<bool>()});
    }
  } catch (const json::exception&) {
    throw unreadable(row[6].getName(), row[6].getString());
  }
  return input;
}

template <typename Row>
auto rows_of(Use& use, Row row) {
  std::vector<decltype(row(use))> rows;
  while (use.step()) rows.push_back(row(use));
  return rows;
}

}  // namespace

/// The file and its statements, prepared once.
struct Store::Database {
  Database(const std::filesystem::path& path, std::size_t log_pages)
      : file(path), sqlite(open_store_file(path)), batch(*sqlite, log_pages) {}

  /// Runs `change` in the batch; if SQLite refuses, the whole batch is given up.
  template <typename Change>
  auto write(Change change) {
    try {
      batch.begin();
      return change();
    } catch (const SQLite::Exception& error) {
      StoreFailed failed = store_failure(error, file, "writing");
      batch.abandon();
      throw StoreFailed{std::move(failed)};
    }
  }

  template <typename Query>
  auto read(Query query) {
    try {
      return query();
    } catch (const SQLite::Exception& error) {
      throw store_failure(error, file, "reading");
    } catch (const std::invalid_argument& error) {
      throw StoreFailed(StoreFailed::Why::kDamaged,
                        fmt::format("{} holds what cannot be read: {}; bring back a backup, or "
                                    "move the file away and start again",
                                    file_text(file), error.what()));
    }
  }

  void add_transition(std::int64_t job, const Transition& transition);
  [[nodiscard]] std::uint64_t last_number();

  std::filesystem::path file;
  std::unique_ptr<SQLite::Database> sqlite;
  StoreBatch batch;  // outlives the statements: none is in use when it gives up at the end

  SQLite::Statement find_request{*sqlite, "SELECT id FROM job WHERE tenant=? AND request=?"};
  SQLite::Statement add_job{
      *sqlite,
      "INSERT INTO job(id, tenant, request, spec, submitted_ms, changed_ms, state, reason, "
      "attempt, "
      "retries, class, placement, cancel_asked) VALUES(?,?,?,?,?,?,?,?,0,0,?,'[]',0)"};
  // A job that has ended keeps its place among those, unless it ends again.
  SQLite::Statement set_job{
      *sqlite,
      "UPDATE job SET state=?, reason=?, attempt=?, retries=?, class=?, placement=?, "
      "cancel_asked=?, exit_code=?, changed_ms=?, ended=CASE WHEN NOT ? THEN NULL ELSE "
      "coalesce(CASE WHEN ? THEN NULL ELSE ended END, "
      "(SELECT coalesce(max(number), 0) + 1 FROM transition)) END WHERE id=?"};
  SQLite::Statement add_line{*sqlite,
                             "INSERT INTO transition(job, at_ms, before, after, attempt, reason) "
                             "VALUES(?,?,?,?,?,?)"};
  SQLite::Statement set_tenant{*sqlite, "INSERT OR REPLACE INTO tenant(name, quota) VALUES(?,?)"};
  SQLite::Statement set_drained{
      *sqlite, "INSERT OR REPLACE INTO drained(node, reason, since_ms) VALUES(?,?,?)"};
  SQLite::Statement remove_drained{*sqlite, "DELETE FROM drained WHERE node=?"};

  SQLite::Statement set_input{*sqlite,
                              "INSERT OR REPLACE INTO bad_input(tenant, dataset, record, reason, "
                              "since_ms, listed, reports) "
                              "VALUES(?,?,?,?,?,?,?)"};
  SQLite::Statement remove_input{*sqlite,
                                 "DELETE FROM bad_input WHERE tenant=? AND dataset=? AND record=?"};

  SQLite::Statement set_note{*sqlite, "INSERT OR REPLACE INTO note(name, text) VALUES(?,?)"};
  SQLite::Statement one_note{*sqlite, "SELECT text FROM note WHERE name=?"};

  SQLite::Statement one_job{*sqlite, COMMENSAL_JOB_COLUMNS "WHERE id=?"};
  // The index is named so that it is an error, not a scan, if it cannot serve.
  SQLite::Statement open_jobs{
      *sqlite, COMMENSAL_JOB_COLUMNS "INDEXED BY job_ended WHERE ended IS NULL ORDER BY id"};
  SQLite::Statement ended_jobs{
      *sqlite, COMMENSAL_JOB_COLUMNS
      "INDEXED BY job_ended WHERE ended > 0 ORDER BY ended DESC, id DESC LIMIT ? OFFSET ?"};
  SQLite::Statement job_lines{*sqlite, COMMENSAL_TRANSITION_COLUMNS
                              "INDEXED BY transition_job WHERE job=? ORDER BY number DESC LIMIT ?"};
  SQLite::Statement lines_after{
      *sqlite, COMMENSAL_TRANSITION_COLUMNS "WHERE number>? ORDER BY number LIMIT ?"};
  SQLite::Statement newest_lines{*sqlite,
                                 COMMENSAL_TRANSITION_COLUMNS "ORDER BY number DESC LIMIT ?"};
  SQLite::Statement tenants{*sqlite, "SELECT name, quota FROM tenant ORDER BY name"};
  SQLite::Statement drained{*sqlite, "SELECT node, reason, since_ms FROM drained ORDER BY node"};
  SQLite::Statement inputs{*sqlite,
                           "SELECT tenant, dataset, record, reason, since_ms, listed, reports "
                           "FROM bad_input ORDER BY tenant, dataset, record"};
  SQLite::Statement last_job{*sqlite, "SELECT seq FROM sqlite_sequence WHERE name='job'"};
};

Store::Store(const std::filesystem::path& file, std::size_t log_pages) try
    : database_(std::make_unique<Database>(file, log_pages)) {
} catch (const SQLite::Exception& error) {
  throw store_failure(error, file, "opening");
}

Store::~Store() = default;

// --- changes -----------------------------------------------------------------------------------

JobId Store::add(const JobSpec& spec, const std::string& request, WallTime now,
                 std::uint64_t above) {
  Database& db = *database_;
  if (auto known = added(spec.tenant, request)) return *std::move(known);
  const json asked = to_json(spec);
  (void)spec_from_json(asked);  // what is written can be read
  if (above >= kLastNumber) {
    throw std::invalid_argument(
        fmt::format("no number is left for a job: the engine has something of job {}", above));
  }
  return db.write([&] {
    const std::string reason = "submitted";
    // SQLite gives the next one, unless that is taken.
    const auto row_asked = above > db.last_number()
                               ? std::optional{static_cast<std::int64_t>(above) + 1}
                               : std::nullopt;
    Use insert{db.add_job};
    insert << row_asked << spec.tenant << (request.empty() ? std::nullopt : std::optional{request})
           << asked.dump() << in_milliseconds(now) << in_milliseconds(now)
           << to_string(JobState::kSubmitted) << reason << to_string(JobClass::kOpportunistic);
    (void)insert.step();
    const std::int64_t row = db.sqlite->getLastInsertRowid();
    Transition first;
    first.at = now;
    first.reason = reason;
    db.add_transition(row, first);
    return id_of(row);
  });
}

std::optional<JobId> Store::added(const std::string& tenant, const std::string& request) {
  if (request.empty()) return std::nullopt;
  Database& db = *database_;
  return db.read([&]() -> std::optional<JobId> {
    Use find{db.find_request};
    find << tenant << request;
    return find.step() ? std::optional{id_of(find[0].getInt64())} : std::nullopt;
  });
}

std::uint64_t Store::Database::last_number() {
  Use last{last_job};
  return last.step() ? static_cast<std::uint64_t>(last[0].getInt64()) : 0;
}

void Store::Database::add_transition(std::int64_t job, const Transition& transition) {
  Use insert{add_line};
  insert << job << in_milliseconds(transition.at) << to_string(transition.from)
         << to_string(transition.to) << std::int64_t{transition.attempt} << transition.reason;
  (void)insert.step();
}

void Store::put(const JobRecord& record, const std::optional<Transition>& transition) {
  Database& db = *database_;
  const std::optional<std::int64_t> row = row_of(record.id);
  if (!row || (transition && transition->job != record.id)) {
    throw std::invalid_argument(!row ? fmt::format("no such job: '{}'", record.id.str())
                                     : fmt::format("a line of job '{}' with the record of job '{}'",
                                                   transition->job.str(), record.id.str()));
  }
  const json placement = to_json(record.placement);
  (void)placement_from_json(placement);
  const bool known = db.write([&] {
    Use update{db.set_job};
    update << to_string(record.state) << record.reason << std::int64_t{record.attempt}
           << std::int64_t{record.retries} << to_string(record.job_class) << placement.dump()
           << std::int64_t{bits_of(record)} << record.exit_code << in_milliseconds(record.changed)
           << std::int64_t{is_end(record.state)} << std::int64_t{transition.has_value()} << *row;
    (void)update.step();
    const bool found = db.sqlite->getChanges() == 1;
    if (found && transition) db.add_transition(*row, *transition);
    return found;
  });
  if (!known) throw std::invalid_argument(fmt::format("no such job: '{}'", record.id.str()));
}

void Store::put(const TenantRecord& tenant) {
  Database& db = *database_;
  db.write([&] {
    Use set{db.set_tenant};
    set << tenant.name << tenant.quota;
    (void)set.step();
  });
}

void Store::put(const DrainedNode& node) {
  Database& db = *database_;
  db.write([&] {
    Use set{db.set_drained};
    set << node.node << node.reason << in_milliseconds(node.since);
    (void)set.step();
  });
}

void Store::undrain(const std::string& node) {
  Database& db = *database_;
  db.write([&] {
    Use remove{db.remove_drained};
    remove << node;
    (void)remove.step();
  });
}

void Store::put(const BadInput& input) {
  Database& db = *database_;
  json reports = json::array();
  for (const InputReport& report : input.reports) {
    reports.push_back({{"job", report.attempt.job.str()},
                       {"attempt", report.attempt.number},
                       {"failing", report.failing},
                       {"counted", report.counted}});
  }
  db.write([&] {
    Use set{db.set_input};
    set << input.key.tenant << input.key.dataset << input.key.record << input.reason
        << in_milliseconds(input.since) << std::int64_t{input.listed} << reports.dump();
    (void)set.step();
  });
}

void Store::remove(const InputKey& input) {
  Database& db = *database_;
  db.write([&] {
    Use remove{db.remove_input};
    remove << input.tenant << input.dataset << input.record;
    (void)remove.step();
  });
}

void Store::put_note(const std::string& name, const std::string& text) {
  Database& db = *database_;
  db.write([&] {
    Use set{db.set_note};
    set << name << text;
    (void)set.step();
  });
}

void Store::commit() {
  Database& db = *database_;
  try {
    db.batch.commit();
  } catch (const SQLite::Exception& error) {
    StoreFailed failed = store_failure(error, db.file, "writing");
    db.batch.abandon();
    throw StoreFailed{std::move(failed)};
  }
}

namespace {

std::filesystem::path name_of_copy(const std::filesystem::path& folder, WallTime now) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const std::string first = fmt::format("cluster-{:%Y%m%dT%H%M%SZ}",
                                        fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)));
  std::string name = first;
  for (int i = 2; std::filesystem::exists(folder / (name + ".db")); ++i) {
    name = fmt::format("{}-{}", first, i);
  }
  return folder / (name + ".db");
}

}  // namespace

std::filesystem::path Store::back_up(const std::filesystem::path& folder, WallTime now) {
  commit();
  Database& db = *database_;
  std::filesystem::path part;
  try {
    std::filesystem::create_directories(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
    std::filesystem::path file = name_of_copy(folder, now);
    part = file.string() + ".part";
    std::filesystem::remove(part);  // of one that was broken off
    std::unique_ptr<SQLite::Database> copy = open_store_file(part);
    SQLite::Backup{*copy, *db.sqlite}.executeStep(-1);
    copy.reset();  // its log is part of it from here on
    std::filesystem::rename(part, file);
    return file;
  } catch (const SQLite::Exception& error) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    std::filesystem::remove(part.string() + "-wal", ignored);
    throw store_failure(error, part, "writing");
  } catch (const std::filesystem::filesystem_error& error) {
    throw StoreFailed(StoreFailed::Why::kOther, fmt::format("no copy was made: {}", error.what()));
  }
}

// --- reads -------------------------------------------------------------------------------------

StoredState Store::load() {
  Database& db = *database_;
  return db.read([&] {
    StoredState state;
    Use jobs{db.open_jobs};
    state.jobs = rows_of(jobs, job_in);
    Use tenants{db.tenants};
    state.tenants = rows_of(tenants, [](Use& row) {
      TenantRecord tenant{.name = row[0].getString(), .quota = std::nullopt};
      if (!row[1].isNull()) tenant.quota = row[1].getInt();
      return tenant;
    });
    Use drained{db.drained};
    state.drained = rows_of(drained, [](Use& row) {
      return DrainedNode{row[0].getString(), row[1].getString(), wall_time(row[2])};
    });
    Use inputs{db.inputs};
    state.bad_inputs = rows_of(inputs, input_in);
    state.next_job = db.last_number() + 1;
    return state;
  });
}

const std::filesystem::path& Store::file() const noexcept { return database_->file; }

std::string Store::note(const std::string& name) {
  return database_->read([&] {
    Use find{database_->one_note};
    find << name;
    return find.step() ? find[0].getString() : std::string{};
  });
}

std::optional<JobRecord> Store::job(const JobId& id) {
  const std::optional<std::int64_t> row = row_of(id);
  if (!row) return std::nullopt;
  return database_->read([&]() -> std::optional<JobRecord> {
    Use find{database_->one_job};
    find << *row;
    return find.step() ? std::optional{job_in(find)} : std::nullopt;
  });
}

std::vector<JobRecord> Store::ended(std::size_t limit, std::size_t offset) {
  return database_->read([&] {
    Use jobs{database_->ended_jobs};
    jobs << row_limit(limit) << row_limit(offset);
    return rows_of(jobs, job_in);
  });
}

std::vector<Transition> Store::history(const JobId& id, std::size_t limit) {
  const std::optional<std::int64_t> row = row_of(id);
  if (!row) return {};
  auto lines = database_->read([&] {
    Use newest{database_->job_lines};
    newest << *row << row_limit(limit);
    return rows_of(newest, transition_in);
  });
  std::ranges::reverse(lines);
  return lines;
}

std::vector<Transition> Store::events(std::uint64_t after, std::size_t limit) {
  return database_->read([&] {
    Use lines{database_->lines_after};
    lines << row_limit(after) << row_limit(limit);
    return rows_of(lines, transition_in);
  });
}

std::vector<Transition> Store::newest_events(std::size_t limit) {
  return database_->read([&] {
    Use lines{database_->newest_lines};
    lines << row_limit(limit);
    std::vector<Transition> found = rows_of(lines, transition_in);
    std::reverse(found.begin(), found.end());
    return found;
  });
}

}  // namespace commensal::cluster
