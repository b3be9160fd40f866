// SPDX-License-Identifier: Apache-2.0
// The store: what is committed is there again, and who may use the file.
#include "coordinator/cluster/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>

#include "coordinator/cluster/checked_pages.h"
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/store_script.h"

namespace commensal::cluster::store_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Why = StoreFailed::Why;

constexpr WallTime kNow{1'790'000'000'000ms};

/// Reads are counted, and nothing waits for a disk.
const bool kInstalled = (fault_vfs::install(), true);

class StoreTest : public ::testing::Test {
 protected:
  Store& store() {
    if (!store_) store_.emplace(file_);
    return *store_;
  }
  Store& reopened() {
    store_.reset();
    return store();
  }

  JobId added(std::uint32_t number = 1, const std::string& request = "") {
    return store().add(made_up_spec(number), request, kNow);
  }

  void move(const JobId& id, JobState to, WallTime at = kNow) {
    JobRecord record = store().job(id).value();
    Transition transition;
    transition.job = id;
    transition.at = at;
    transition.from = record.state;
    transition.to = to;
    transition.attempt = record.attempt;
    transition.reason = "to " + std::string{to_string(to)};
    record.state = to;
    record.reason = transition.reason;
    record.changed = at;
    store().put(record, transition);
  }

  std::vector<std::string> ended_ids(std::size_t limit, std::size_t offset = 0) {
    std::vector<std::string> ids;
    for (const JobRecord& job : store().ended(limit, offset)) ids.push_back(job.id.str());
    return ids;
  }

  /// Runs statements on the file, as another program does or (`vfs`) as another version of this
  /// one.
  static void run_sql(const fs::path& file, const std::string& sql, const char* vfs = nullptr,
                      bool leave_log = false) {
    sqlite3* database = nullptr;
    ASSERT_EQ(
        sqlite3_open_v2(file.c_str(), &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs),
        SQLITE_OK);
    sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, leave_log ? 1 : 0, nullptr);
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK)
        << (error == nullptr ? "" : error);
    EXPECT_EQ(sqlite3_close(database), SQLITE_OK);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      found.push_back(entry.path().filename().string());
    }
    std::ranges::sort(found);
    return found;
  }

  TemporaryFolder folder_;
  fs::path file_ = folder_.path() / "cluster.db";
  std::optional<Store> store_;
};

/// What opening a file fails with.
std::optional<StoreFailed> failure(const fs::path& file) {
  try {
    const Store store{file};
    return std::nullopt;
  } catch (const StoreFailed& error) {
    return error;
  }
}

// --- jobs --------------------------------------------------------------------------------------

TEST_F(StoreTest, ACopyIsAStoreOfItsOwn) {
  const JobId id = added();
  store().put(TenantRecord{"vision", 4});
  const fs::path folder = file_.parent_path() / "copies";
  const fs::path first = store().back_up(folder, kNow);
  EXPECT_EQ(first.filename(), "cluster-20260921T141320Z.db");
  const fs::path second = store().back_up(folder, kNow);
  EXPECT_NE(second, first);
  added(2);  // is in neither
  store().commit();
  store_.reset();
  for (const fs::path& copy : {first, second}) {
    struct stat found {};
    ASSERT_EQ(::stat(copy.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600U);
    EXPECT_FALSE(fs::exists(copy.string() + "-wal")) << "one file is all";
    Store restored{copy};
    const StoredState state = restored.load();
    ASSERT_EQ(state.jobs.size(), 1U) << "also what was not committed yet";
    EXPECT_EQ(state.jobs[0].id, id);
    EXPECT_EQ(state.tenants, (std::vector<TenantRecord>{{"vision", 4}}));
    EXPECT_EQ(restored.history(id).size(), 1U);
  }
}

TEST_F(StoreTest, ACopyThatCannotBeMadeChangesNothing) {
  const JobId id = added();
  const fs::path blocked = file_.parent_path() / "blocked";
  std::ofstream{blocked} << "a file";
  try {
    (void)store().back_up(blocked / "copies", kNow);
    FAIL() << "a folder in a file";
  } catch (const StoreFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr("no copy was made"));
    EXPECT_THAT(error.what(), HasSubstr(blocked.string()));
  }
  EXPECT_TRUE(reopened().job(id).has_value());
}

TEST_F(StoreTest, ANewFileIsEmptyAndPrivate) {
  const StoredState state = store().load();
  EXPECT_TRUE(state.jobs.empty());
  EXPECT_TRUE(state.tenants.empty());
  EXPECT_TRUE(state.drained.empty());
  EXPECT_EQ(state.next_job, 1U);
  added();
  store().commit();
  for (const std::string& name : names()) {
    struct stat found {};
    ASSERT_EQ(::stat((folder_.path() / name).c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777U, 0600U) << name;
  }
}

TEST_F(StoreTest, ClosesAFileThatOthersCouldRead) {
  store();
  store_.reset();
  ASSERT_EQ(::chmod(file_.c_str(), 0644), 0);
  store();
  struct stat found {};
  ASSERT_EQ(::stat(file_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
}

TEST_F(StoreTest, AnAddedJobIsSubmitted) {
  const JobId id = added(20);
  EXPECT_EQ(id, JobId{"1"});
  JobRecord expected;
  expected.id = id;
  expected.spec = made_up_spec(20);
  expected.reason = "submitted";
  expected.submitted = expected.changed = kNow;
  EXPECT_EQ(store().job(id), expected);
  const std::vector<Transition> history = store().history(id);
  ASSERT_EQ(history.size(), 1U);
  EXPECT_EQ(history[0].number, 1U);
  EXPECT_EQ(history[0].at, kNow);
  EXPECT_EQ(history[0].to, JobState::kSubmitted);
  EXPECT_EQ(history[0].reason, "submitted");
}

TEST_F(StoreTest, KeepsEveryFieldOverARestart) {
  const JobId id = added(20);
  JobRecord record = store().job(id).value();
  record.state = JobState::kRunning;
  record.reason = std::string{"a 'quoted' \0 reason; --", 23};
  record.attempt = 4'000'000'000;
  record.retries = 7;
  record.job_class = JobClass::kGuaranteed;
  record.placement = {{"node-ä", 2}, {"node-b", 0}};
  record.cancel_asked = true;
  record.unheld = true;
  record.lowering = true;
  record.exit_code = -1;
  record.changed = kNow + 5ms;
  store().put(record, std::nullopt);
  store().put(TenantRecord{"vision", 16});
  store().put(TenantRecord{"guests", std::nullopt});
  store().put(DrainedNode{"node-b", "fan is loud", kNow});
  store().commit();
  const StoredState state = reopened().load();
  EXPECT_THAT(state.jobs, ::testing::ElementsAre(record));
  EXPECT_EQ(store().job(id), record);
  EXPECT_THAT(state.tenants, ::testing::ElementsAre(TenantRecord{"guests", std::nullopt},
                                                    TenantRecord{"vision", 16}));
  EXPECT_THAT(state.drained, ::testing::ElementsAre(DrainedNode{"node-b", "fan is loud", kNow}));
  EXPECT_EQ(state.next_job, 2U);
}

TEST_F(StoreTest, WhatWasAddedDoesNotChange) {
  const JobId id = added(20);
  JobRecord record = store().job(id).value();
  record.spec.gpus = 99;
  record.submitted = kNow + 1h;
  store().put(record, std::nullopt);
  EXPECT_EQ(store().job(id)->spec, made_up_spec(20));
  EXPECT_EQ(store().job(id)->submitted, kNow);
}

TEST_F(StoreTest, PutReplacesTenantsAndNodes) {
  store().put(TenantRecord{"vision", 16});
  store().put(TenantRecord{"vision", std::nullopt});
  store().put(DrainedNode{"node-a", "first", kNow});
  store().put(DrainedNode{"node-a", "second", kNow + 1s});
  store().put(DrainedNode{"node-b", "gone", kNow});
  store().undrain("node-b");
  store().undrain("never drained");
  store().commit();
  const StoredState state = reopened().load();
  EXPECT_THAT(state.tenants, ::testing::ElementsAre(TenantRecord{"vision", std::nullopt}));
  EXPECT_THAT(state.drained, ::testing::ElementsAre(DrainedNode{"node-a", "second", kNow + 1s}));
}

TEST_F(StoreTest, UncommittedChangesAreSeenButNotKept) {
  added();
  store().commit();
  added();
  EXPECT_EQ(store().load().jobs.size(), 2U);
  EXPECT_EQ(reopened().load().jobs.size(), 1U);
  EXPECT_EQ(added(), JobId{"2"}) << "nobody was told of the first one of that name";
}

TEST_F(StoreTest, CommitWithoutChangesDoesNothing) {
  store().commit();
  added();
  store().commit();
  store().commit();
  EXPECT_EQ(reopened().load().jobs.size(), 1U);
}

TEST_F(StoreTest, NoIdIsUsedTwice) {
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(added().str(), std::to_string(i));
  store().commit();
  move(JobId{"3"}, JobState::kCancelled);
  store().commit();
  EXPECT_EQ(reopened().load().next_job, 4U);
  EXPECT_EQ(added(), JobId{"4"});
}

TEST_F(StoreTest, AnIdIsAboveWhatOthersHaveAndThoseAfterItAreAboveThat) {
  EXPECT_EQ(store().add(made_up_spec(1), "", kNow, 0), JobId{"1"});
  EXPECT_EQ(store().add(made_up_spec(1), "", kNow, 1), JobId{"2"}) << "2 was free";
  EXPECT_EQ(store().add(made_up_spec(1), "r", kNow, 40), JobId{"41"});
  EXPECT_EQ(store().history(JobId{"41"}).size(), 1U);
  EXPECT_EQ(store().add(made_up_spec(1), "", kNow, 40), JobId{"42"});
  EXPECT_EQ(store().add(made_up_spec(1), "", kNow), JobId{"43"});
  EXPECT_EQ(store().add(made_up_spec(1), "r", kNow, 99), JobId{"41"}) << "a repeated request";
  store().commit();
  EXPECT_EQ(reopened().load().next_job, 44U);
  EXPECT_EQ(store().add(made_up_spec(1), "", kNow, 7), JobId{"44"});
  EXPECT_FALSE(store().job(JobId{"40"}).has_value());
}

TEST_F(StoreTest, AnIdOfABatchThatIsGivenUpIsAboveAllTheSame) {
  (void)added();
  store().commit();
  (void)store().add(made_up_spec(1), "", kNow, 40);
  EXPECT_EQ(reopened().load().next_job, 2U) << "nothing was committed";
  EXPECT_EQ(store().add(made_up_spec(1), "", kNow, 40), JobId{"41"});
}

TEST_F(StoreTest, WhereNoIdIsLeftNothingIsAdded) {
  constexpr std::uint64_t kLast = std::numeric_limits<std::int64_t>::max();
  for (const std::uint64_t above : {kLast, kLast + 1, ~std::uint64_t{0}}) {
    try {
      (void)store().add(made_up_spec(1), "", kNow, above);
      FAIL() << above;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(above)));
    }
  }
  EXPECT_EQ(added(), JobId{"1"});
  const JobId last = store().add(made_up_spec(1), "", kNow, kLast - 1);
  EXPECT_EQ(last, JobId{std::to_string(kLast)});
  EXPECT_TRUE(store().job(last).has_value());
  EXPECT_THROW((void)added(), StoreFailed) << "SQLite has none";
}

TEST_F(StoreTest, ARepeatedRequestIsTheFirstJob) {
  const JobId first = added(1, "r");
  EXPECT_EQ(added(2, "r"), first) << "before the commit";
  store().commit();
  EXPECT_EQ(added(4, "r"), first) << "after the commit";
  EXPECT_EQ(reopened().load().jobs.size(), 1U);
  EXPECT_EQ(added(5, "r"), first) << "after a restart";
  move(first, JobState::kFinished);
  EXPECT_EQ(added(1, "r"), first) << "after its end";
  EXPECT_EQ(store().job(first)->spec, made_up_spec(1));
  EXPECT_NE(added(3, "r"), first) << "of another tenant";
  EXPECT_NE(added(1, "R"), first);
  EXPECT_NE(added(1), added(1)) << "without a name each is one of its own";
}

TEST_F(StoreTest, RefusesJobsThatCouldNotBeReadAgain) {
  JobSpec spec = made_up_spec(1);
  spec.gpus = -1;
  EXPECT_THROW((void)store().add(spec, "", kNow), std::invalid_argument);
  spec = made_up_spec(1);
  spec.command = {"\xff"};
  EXPECT_THROW((void)store().add(spec, "", kNow), std::invalid_argument);
  EXPECT_TRUE(store().load().jobs.empty());
  EXPECT_EQ(added(), JobId{"1"});
}

TEST_F(StoreTest, RefusesRecordsOfUnknownJobs) {
  added();
  for (const char* id : {"2", "", "0", "-1", "01", "1x", " 1", "99999999999999999999"}) {
    JobRecord record = store().job(JobId{"1"}).value();
    record.id = JobId{id};
    EXPECT_THROW(store().put(record, std::nullopt), std::invalid_argument) << id;
    EXPECT_FALSE(store().job(JobId{id})) << id;
    EXPECT_TRUE(store().history(JobId{id}).empty()) << id;
  }
  const JobId other = added();
  Transition transition;
  transition.job = other;
  EXPECT_THROW(store().put(store().job(JobId{"1"}).value(), transition), std::invalid_argument);
  store().commit();
  EXPECT_EQ(reopened().events(0, 10).size(), 2U) << "the batch that they came in is kept";
}

// --- the past ----------------------------------------------------------------------------------

TEST_F(StoreTest, LoadGivesWhatHasNotEndedInTheOrderOfSubmission) {
  for (int i = 0; i < 5; ++i) added();
  move(JobId{"4"}, JobState::kRunning);
  move(JobId{"2"}, JobState::kFinished);
  move(JobId{"5"}, JobState::kFailed);
  move(JobId{"5"}, JobState::kQueued);
  std::vector<std::string> ids;
  for (const JobRecord& job : store().load().jobs) ids.push_back(job.id.str());
  EXPECT_THAT(ids, ::testing::ElementsAre("1", "3", "4", "5"));
}

TEST_F(StoreTest, EndedJobsComeNewestFirstWhateverTheClockSays) {
  for (int i = 0; i < 5; ++i) added();
  move(JobId{"3"}, JobState::kFinished, kNow + 3h);
  move(JobId{"1"}, JobState::kLost, kNow + 1h);
  move(JobId{"4"}, JobState::kCancelled, kNow);
  EXPECT_THAT(ended_ids(10), ::testing::ElementsAre("4", "1", "3"));
  EXPECT_THAT(ended_ids(1), ::testing::ElementsAre("4"));
  EXPECT_THAT(ended_ids(2, 1), ::testing::ElementsAre("1", "3"));
  EXPECT_TRUE(ended_ids(10, 3).empty());
  EXPECT_TRUE(ended_ids(0).empty());
  EXPECT_EQ(ended_ids(~std::size_t{0}).size(), 3U);
  move(JobId{"1"}, JobState::kQueued);
  EXPECT_THAT(ended_ids(10), ::testing::ElementsAre("4", "3"));
  move(JobId{"1"}, JobState::kFinished);
  EXPECT_THAT(ended_ids(10), ::testing::ElementsAre("1", "4", "3"));
  store().put(store().job(JobId{"3"}).value(), std::nullopt);
  EXPECT_THAT(ended_ids(10), ::testing::ElementsAre("1", "4", "3")) << "it has not ended again";
}

TEST_F(StoreTest, HistoryIsOldestFirstAndOfLongOnesTheNewest) {
  const JobId id = added();
  added();
  for (const JobState to : {JobState::kQueued, JobState::kStarting, JobState::kRunning}) {
    move(id, to);
    move(JobId{"2"}, to);
  }
  std::vector<std::string_view> states;
  for (const Transition& line : store().history(id)) {
    EXPECT_EQ(line.job, id);
    states.push_back(to_string(line.to));
  }
  EXPECT_THAT(states, ::testing::ElementsAre("submitted", "queued", "starting", "running"));
  const auto newest = store().history(id, 2);
  ASSERT_EQ(newest.size(), 2U);
  EXPECT_EQ(newest[0].from, JobState::kQueued);
  EXPECT_EQ(newest[1].to, JobState::kRunning);
  EXPECT_LT(newest[0].number, newest[1].number);
}

TEST_F(StoreTest, EventsGoOnAfterANumber) {
  added();
  added();
  move(JobId{"1"}, JobState::kQueued);
  store().commit();
  const auto all = reopened().events(0, 10);
  ASSERT_EQ(all.size(), 3U);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].number, i + 1);
  const auto rest = store().events(all[0].number, 1);
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0], all[1]);
  EXPECT_TRUE(store().events(3, 10).empty());
  EXPECT_TRUE(store().events(~std::uint64_t{0}, 10).empty());
}

TEST_F(StoreTest, AgreesWithThePlainModel) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const fs::path file = folder_.path() / std::to_string(seed);
    std::optional<Store> store{std::in_place, file, 20};
    Model model;
    for (std::uint32_t number = 0; number < 150; ++number) {
      apply_batch(seed, number, model, &*store);
      store->commit();
      if (number % 10 == 9) {
        ASSERT_EQ(contents(*store), model.contents()) << "batch " << number;
      }
      if (number % 50 == 49) store.emplace(file, 20);
    }
    EXPECT_EQ(contents(*store), model.contents());
  }
}

TEST_F(StoreTest, ReadsOnlyThePagesThatItNeeds) {
  constexpr int kJobs = 5'000;
  JobSpec spec = made_up_spec(96);
  spec.command.emplace_back(600, 'x');
  for (int i = 1; i <= kJobs; ++i) {
    const JobId id = store().add(spec, "", kNow);
    if (i % 100 != 0) move(id, JobState::kFailed);
  }
  store().commit();
  reopened();
  ASSERT_GT(fs::file_size(file_), 5U << 20U) << "more than twice what SQLite keeps in memory";
  const auto all_jobs = [&] { (void)store().ended(1'000'000); };
  const auto all_lines = [&] { (void)store().events(0, 1'000'000); };
  // After the others have been read, the pages of a query are no longer in memory.
  const auto reads = [&](const auto& others, const auto& query) {
    others();
    fault_vfs::arm({});
    query();
    return fault_vfs::reads();
  };
  EXPECT_GT(reads(all_jobs, all_lines), 100U);
  EXPECT_GT(reads(all_lines, all_jobs), 500U);
  EXPECT_LT(reads(all_jobs, [&] { (void)store().history(JobId{"2345"}); }), 20U);
  EXPECT_LT(reads(all_jobs, [&] { (void)store().events(kJobs / 2, 10); }), 20U);
  all_jobs();
  EXPECT_LT(reads(all_lines, [&] { (void)store().ended(10); }), 60U);
  EXPECT_LT(reads(all_lines, [&] { (void)store().job(JobId{"3456"}); }), 10U);
  EXPECT_LT(reads(all_lines, [&] { (void)store().add(made_up_spec(3), "request", kNow); }), 20U);
  EXPECT_LT(reads(all_jobs, [&] { EXPECT_EQ(store().load().jobs.size(), kJobs / 100 + 1U); }),
            300U);
}

// --- the file ----------------------------------------------------------------------------------

TEST_F(StoreTest, AFileIsUsedByOneStoreInAProcess) {
  store();
  const auto second = failure(file_);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->why(), Why::kLocked);
  EXPECT_THAT(second->what(), HasSubstr(file_.string()));
  added();
  store().commit();
  EXPECT_EQ(reopened().load().jobs.size(), 1U) << "the first one was not disturbed";
}

TEST_F(StoreTest, AFileIsUsedByOneProcess) {
  added();
  store().commit();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto second = failure(file_);
    ::_exit(second && second->why() == Why::kLocked ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(reopened().load().jobs.size(), 1U);
}

TEST_F(StoreTest, LeavesAFileOfANewerVersionAsItIs) {
  added();
  store().commit();
  store_.reset();
  run_sql(file_, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA user_version=7", checked_pages());
  const std::string before = bytes_of(file_);
  const auto refused = failure(file_);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why(), Why::kNewer);
  EXPECT_THAT(refused->what(), HasSubstr(file_.string()));
  EXPECT_THAT(refused->what(), HasSubstr("version 7"));
  EXPECT_EQ(bytes_of(file_), before);
  EXPECT_THAT(names(), ::testing::ElementsAre("cluster.db"));
}

TEST_F(StoreTest, LeavesALogOfANewerVersionAsItIs) {
  added();
  store().commit();
  store_.reset();
  run_sql(file_, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA user_version=7", checked_pages(), true);
  const std::string before = bytes_of(file_);
  const std::string log = bytes_of(file_.string() + "-wal");
  ASSERT_FALSE(log.empty());
  const auto refused = failure(file_);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why(), Why::kNewer);
  EXPECT_EQ(bytes_of(file_), before);
  EXPECT_EQ(bytes_of(file_.string() + "-wal"), log);
}

TEST_F(StoreTest, NotesBelongToTheStoreAndItsCopies) {
  EXPECT_EQ(store().note("stamp"), "");
  store().put_note("stamp", "first");
  store().put_note("stamp", "x y\nz");
  store().put_note("clocks", "0");
  store().commit();
  EXPECT_EQ(reopened().note("stamp"), "x y\nz");
  EXPECT_EQ(store().file(), file_);
  Store copy{store().back_up(folder_.path() / "copies", kNow)};
  EXPECT_EQ(copy.note("stamp"), "x y\nz");
  EXPECT_EQ(copy.note("clocks"), "0");
}

// --- older versions ----------------------------------------------------------------------------

/// A file that an older version of the store has written (tests/data/store).
std::string older_version(const std::string& number) {
  const std::string file = COMMENSAL_TEST_DATA "/store/version-" + number + ".db.gz";
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(file.c_str(), "rb"), gzclose);
  std::string bytes;
  std::array<char, 4096> part{};
  for (int read = 0; in != nullptr && (read = gzread(in.get(), part.data(), part.size())) > 0;) {
    bytes.append(part.data(), static_cast<std::size_t>(read));
  }
  return bytes;
}

TEST_F(StoreTest, ReadsAFileOfVersion1AndGoesOnWithIt) {
  write_bytes(file_, older_version("1"));
  ASSERT_EQ(fs::file_size(file_), 36'864U);
  const BadInput input{{"vision", "d", "r"}, "bad", kNow, true, {{{JobId{"3"}, 1}, false, false}}};
  for (const bool again : {false, true}) {
    Store& read = reopened();
    StoredState state = read.load();
    ASSERT_EQ(state.jobs.size(), 2U);
    EXPECT_EQ(state.jobs[0].state, JobState::kQueued);
    EXPECT_EQ(state.jobs[0].spec.name, "second");
    EXPECT_EQ(state.jobs[1].state, JobState::kRunning);
    EXPECT_TRUE(state.jobs[1].cancel_asked);
    EXPECT_EQ(state.jobs[1].placement, (std::vector<DevicePlace>{{"n1", 0}, {"n1", 1}}));
    EXPECT_EQ(state.tenants, (std::vector<TenantRecord>{{"vision", 16}}));
    ASSERT_EQ(state.drained.size(), 1U);
    EXPECT_EQ(state.drained[0].reason, "a new disk");
    EXPECT_EQ(state.next_job, 4U);
    ASSERT_EQ(read.ended(10).size(), 1U);
    EXPECT_EQ(read.ended(10)[0].exit_code, 0);
    EXPECT_EQ(read.history(JobId{"1"}).size(), 4U);
    EXPECT_EQ(state.bad_inputs, again ? std::vector<BadInput>{input} : std::vector<BadInput>{});
    read.put(input);
    read.commit();
  }
}

TEST_F(StoreTest, ReadsAFileOfVersion2AndGoesOnWithIt) {
  write_bytes(file_, older_version("2"));
  ASSERT_EQ(fs::file_size(file_), 40'960U);
  for (const char* note : {"", "kept"}) {
    Store& read = reopened();
    EXPECT_EQ(read.load().bad_inputs.size(), 1U);
    EXPECT_EQ(read.load().jobs.size(), 2U);
    EXPECT_EQ(read.note("stamp"), note);
    read.put_note("stamp", "kept");
    read.commit();
  }
}

TEST_F(StoreTest, AFileOfAnOlderVersionThatIsDamagedIsKeptAside) {
  std::string bytes = older_version("1");
  ASSERT_GT(bytes.size(), 9000U);
  bytes[8200] = static_cast<char>(bytes[8200] ^ 1);
  write_bytes(file_, bytes);
  const auto refused = failure(file_);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why(), Why::kDamaged);
  ASSERT_EQ(names().size(), 1U);
  EXPECT_THAT(names()[0], HasSubstr("cluster.db.damaged-"));
  EXPECT_EQ(bytes_of(folder_.path() / names()[0]), bytes) << "not brought up to date either";
}

TEST_F(StoreTest, LeavesAnotherProgramsFileAsItIs) {
  run_sql(file_, "CREATE TABLE bookmarks(url TEXT); INSERT INTO bookmarks VALUES('x')");
  ASSERT_EQ(::chmod(file_.c_str(), 0644), 0);
  const std::string before = bytes_of(file_);
  const auto refused = failure(file_);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why(), Why::kOther);
  struct stat found {};
  ASSERT_EQ(::stat(file_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0644U);
  EXPECT_THAT(refused->what(), HasSubstr("another program"));
  EXPECT_THAT(refused->what(), HasSubstr(file_.string()));
  EXPECT_EQ(bytes_of(file_), before);
  EXPECT_THAT(names(), ::testing::ElementsAre("cluster.db"));
}

TEST_F(StoreTest, SaysWhatIsWrongWithThePath) {
  const auto no_folder = failure(folder_.path() / "missing" / "cluster.db");
  ASSERT_TRUE(no_folder);
  EXPECT_EQ(no_folder->why(), Why::kOther);
  EXPECT_THAT(no_folder->what(), HasSubstr("No such file or directory"));
  const auto folder = failure(folder_.path());
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder->why(), Why::kOther);
  EXPECT_THAT(folder->what(), HasSubstr("is not a regular file"));
}

TEST_F(StoreTest, LeavesNothingBesideTheFileAtItsEnd) {
  added();
  store().commit();
  store_.reset();
  EXPECT_THAT(names(), ::testing::ElementsAre("cluster.db"));
}

TEST_F(StoreTest, MovesTheLogIntoTheFileWhenItIsLong) {
  store_.emplace(file_, 50);
  std::uintmax_t most = 0;
  for (int i = 0; i < 300; ++i) {
    added(96);
    store().commit();
    most = std::max(most, fs::file_size(file_.string() + "-wal"));
  }
  EXPECT_LT(most, 70U * 4120U);
  EXPECT_GT(fs::file_size(file_), 10U * 4096U);
  EXPECT_EQ(store().load().jobs.size(), 300U);
}

}  // namespace
}  // namespace commensal::cluster::store_test
