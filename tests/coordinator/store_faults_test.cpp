// SPDX-License-Identifier: Apache-2.0
// The store dies at every write, fails at every write, and is given damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <optional>
#include <random>

#include "coordinator/cluster/store.h"
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/store_script.h"
#include "tests/sanitizers.h"

namespace commensal::cluster::store_faults_test {
namespace {

namespace fs = std::filesystem;
using fault_vfs::Fault;
using ::testing::HasSubstr;
using Why = StoreFailed::Why;

constexpr std::uint32_t kBatches = 9;
constexpr std::size_t kLogPages = 12;  // so that the log is emptied several times

/// With a sanitizer, where a child takes ten times as long, every fourth write stands for all.
constexpr std::uint64_t kEvery = testing::kSanitized ? 4 : 1;

/// The store of every test in this program is on files that can fail.
const bool kInstalled = (fault_vfs::install(), true);

/// What a store holds after each number of batches.
std::vector<Contents> snapshots(std::uint32_t seed, std::uint32_t batches = kBatches) {
  Model model;
  std::vector<Contents> all{model.contents()};
  for (std::uint32_t number = 0; number < batches; ++number) {
    apply_batch(seed, number, model, nullptr);
    all.push_back(model.contents());
  }
  return all;
}

/// Memory that a child shares with its parent: how many batches were acknowledged.
class Acknowledged {
 public:
  Acknowledged()
      : count_(static_cast<std::atomic<std::uint32_t>*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (count_ == MAP_FAILED) throw std::runtime_error("no shared memory");
  }
  Acknowledged(const Acknowledged&) = delete;
  Acknowledged& operator=(const Acknowledged&) = delete;
  ~Acknowledged() { ::munmap(count_, 4096); }
  std::atomic<std::uint32_t>& operator*() const { return *count_; }

 private:
  std::atomic<std::uint32_t>* count_;
};

/// Runs in a child that ends as `body` ends, or earlier; returns its status.
int in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      ::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// All batches, each acknowledged; the store is closed and opened again in the middle.
void play(const fs::path& file, std::uint32_t seed, std::atomic<std::uint32_t>& acknowledged) {
  Model model;
  std::optional<Store> store{std::in_place, file, kLogPages};
  for (std::uint32_t number = 0; number < kBatches; ++number) {
    apply_batch(seed, number, model, &*store);
    store->commit();
    acknowledged = number + 1;
    if (number == kBatches / 2) {
      store.reset();
      store.emplace(file, kLogPages);
    }
  }
}

class StoreCrash : public ::testing::TestWithParam<std::pair<Fault, std::uint32_t>> {};

TEST_P(StoreCrash, KeepsEveryAcknowledgedBatchAndEachWholeAtEveryWrite) {
  const Fault fault = GetParam().first;
  const std::uint32_t seed = GetParam().second;
  const std::vector<Contents> expected = snapshots(seed);
  std::uint64_t died = 0;
  bool whole_but_not_acknowledged = false;
  for (std::uint64_t at = 1;; at += kEvery) {
    SCOPED_TRACE("change " + std::to_string(at));
    const TemporaryFolder folder;
    const fs::path file = folder.path() / "cluster.db";
    const Acknowledged acknowledged;
    const int status = in_child([&] {
      fault_vfs::arm({.fault = fault, .at = at});
      play(file, seed, *acknowledged);
    });
    if (status == 0) break;
    ASSERT_EQ(status, fault_vfs::kExitCode);
    ++died;
    fault_vfs::arm({});
    Store store{file, kLogPages};
    const Contents found = contents(store);
    const std::uint32_t kept = *acknowledged;
    if (found == expected[kept]) continue;
    ASSERT_LT(kept, kBatches);
    ASSERT_EQ(found, expected[kept + 1]) << kept << " batches were acknowledged";
    whole_but_not_acknowledged = true;
  }
  EXPECT_GT(died, 100U / kEvery);
  if (fault == Fault::kDie) {
    EXPECT_TRUE(whole_but_not_acknowledged) << "some deaths are between write and acknowledgement";
  }
}

INSTANTIATE_TEST_SUITE_P(Deaths, StoreCrash,
                         ::testing::Values(std::pair{Fault::kDie, 1U}, std::pair{Fault::kTear, 3U},
                                           std::pair{Fault::kPowerLoss, 4U}),
                         [](const auto& chosen) {
                           const Fault fault = chosen.param.first;
                           return std::string{fault == Fault::kDie    ? "Before"
                                              : fault == Fault::kTear ? "Within"
                                                                      : "PowerLoss"} +
                                  std::to_string(chosen.param.second);
                         });

TEST(StoreCrashes, AfterACrashTheWorkGoesOn) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "cluster.db";
  std::uint32_t done = 0;
  Model model;
  // Again and again a process gets a few writes further, reads what is there, and goes on from it.
  for (std::uint64_t at = 30; done < kBatches; at += 7) {
    const Acknowledged acknowledged;
    *acknowledged = done;
    (void)in_child([&] {
      fault_vfs::arm({.fault = Fault::kDie, .at = at});
      Model copy = model;
      Store store{file, kLogPages};
      for (std::uint32_t number = done; number < kBatches; ++number) {
        apply_batch(9, number, copy, &store);
        store.commit();
        *acknowledged = number + 1;
      }
    });
    fault_vfs::arm({});
    for (; done < *acknowledged; ++done) apply_batch(9, done, model, nullptr);
    Store store{file, kLogPages};
    if (contents(store) != model.contents()) {
      ASSERT_LT(done, kBatches);
      apply_batch(9, done++, model, nullptr);
      ASSERT_EQ(contents(store), model.contents());
    }
  }
}

// --- writes that fail --------------------------------------------------------------------------

struct Failing {
  Fault fault;
  int code;
  bool syncs_only;
};

class StoreFails : public ::testing::TestWithParam<Failing> {
 protected:
  void TearDown() override { fault_vfs::arm({}); }

  /// Plays all batches with the plan armed from the first one on. Each that fails is not in the
  /// model; with `again` the same batch is tried again with the fault gone.
  void play_with_failures(Store& store, std::uint64_t at) {
    const Failing failing = GetParam();
    fault_vfs::arm({failing.fault, at, failing.code, failing.syncs_only});
    for (std::uint32_t number = 0; number < kBatches; ++number) {
      Model next = model_;
      try {
        apply_batch(21, number, next, &store);
        store.commit();
        model_ = next;
        continue;
      } catch (const StoreFailed& error) {
        ++failures_;
        ASSERT_EQ(error.why(), Why::kFull) << error.what();
        ASSERT_THAT(error.what(), HasSubstr("cannot be written"));
      }
      ASSERT_EQ(contents(store), model_.contents()) << "after a failure of batch " << number;
    }
  }

  Model model_;
  std::uint64_t failures_ = 0;
};

TEST_P(StoreFails, NothingOfTheBatchIsKeptAndTheStoreStaysUsable) {
  std::uint64_t failed_runs = 0;
  for (std::uint64_t at = 1;; at += kEvery) {
    SCOPED_TRACE("change " + std::to_string(at));
    const TemporaryFolder folder;
    const fs::path file = folder.path() / "cluster.db";
    std::optional<Store> store{std::in_place, file, kLogPages};
    model_ = Model{};
    play_with_failures(*store, at);
    if (HasFatalFailure()) return;
    if (!fault_vfs::came()) break;
    failed_runs += failures_ > 0 ? 1U : 0U;
    fault_vfs::arm({});
    apply_batch(22, 0, model_, &*store);
    store->commit();
    ASSERT_EQ(contents(*store), model_.contents());
    store.emplace(folder.path() / "other.db");  // closes the first
    store.emplace(file, kLogPages);
    ASSERT_EQ(contents(*store), model_.contents()) << "after a restart";
  }
  EXPECT_GT(failed_runs, (GetParam().syncs_only ? 8U : 40U) / kEvery);
}

TEST_P(StoreFails, WhoIsKilledAfterAFailureFindsNothingOfTheBatch) {
  const std::vector<Contents> expected = snapshots(23);
  for (std::uint64_t at = 1;; at += kEvery) {
    SCOPED_TRACE("change " + std::to_string(at));
    const TemporaryFolder folder;
    const fs::path file = folder.path() / "cluster.db";
    const Acknowledged acknowledged;
    const int status = in_child([&] {
      Store store{file, kLogPages};
      const Failing failing = GetParam();
      fault_vfs::arm({failing.fault, at, failing.code, failing.syncs_only});
      Model model;
      for (std::uint32_t number = 0; number < kBatches; ++number) {
        try {
          apply_batch(23, number, model, &store);
          store.commit();
        } catch (const StoreFailed&) {
          ::_exit(2);
        }
        *acknowledged = number + 1;
      }
      ::_exit(fault_vfs::came() ? 3 : 0);
    });
    if (status == 0) break;
    ASSERT_TRUE(status == 2 || status == 3) << status;
    fault_vfs::arm({});
    Store store{file, kLogPages};
    ASSERT_EQ(contents(store), expected[*acknowledged]);
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, StoreFails,
                         ::testing::Values(Failing{Fault::kFail, SQLITE_FULL, false},
                                           Failing{Fault::kFailOn, SQLITE_FULL, false},
                                           Failing{Fault::kFail, SQLITE_IOERR_WRITE, false},
                                           Failing{Fault::kFail, SQLITE_READONLY, false},
                                           Failing{Fault::kFail, SQLITE_IOERR_FSYNC, true},
                                           Failing{Fault::kFailOn, SQLITE_IOERR_FSYNC, true}),
                         [](const auto& chosen) {
                           const int code = chosen.param.code;
                           return std::string{code == SQLITE_FULL          ? "Full"
                                              : code == SQLITE_IOERR_WRITE ? "Write"
                                              : code == SQLITE_READONLY    ? "ReadOnly"
                                                                           : "Sync"} +
                                  (chosen.param.fault == Fault::kFailOn ? "ForEver" : "Once");
                         });

TEST(StoreOpening, AFailureAtAnyWriteIsToldAndTheNextOneSucceeds) {
  for (const int code : {SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC}) {
    for (std::uint64_t at = 1;; at += kEvery) {
      SCOPED_TRACE("change " + std::to_string(at));
      const TemporaryFolder folder;
      const fs::path file = folder.path() / "cluster.db";
      fault_vfs::arm({.fault = Fault::kFail, .at = at, .code = code});
      try {
        const Store store{file};
      } catch (const StoreFailed& error) {
        ASSERT_EQ(error.why(), Why::kFull) << error.what();
      }
      const bool came = fault_vfs::came();
      fault_vfs::arm({});
      Store store{file};
      ASSERT_EQ(contents(store), Contents{});
      if (!came) break;
    }
  }
}

TEST(StoreOpening, ReadsAFileThatCannotBeWrittenNow) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "cluster.db";
  const Acknowledged acknowledged;
  // Its end leaves a log behind, which the next one would like to empty.
  ASSERT_EQ(in_child([&] {
              fault_vfs::arm({});
              auto* const store = new Store{file};
              Model model;
              apply_batch(5, 0, model, store);
              store->commit();
              ::_exit(0);
            }),
            0);
  fault_vfs::arm({.fault = Fault::kFailOn, .at = 1, .code = SQLITE_FULL});
  Store store{file};
  EXPECT_EQ(contents(store), snapshots(5, 1).back());
  Model model;
  apply_batch(5, 0, model, nullptr);
  apply_batch(5, 1, model, &store);
  EXPECT_THROW(store.commit(), StoreFailed);
  fault_vfs::arm({});
  EXPECT_EQ(contents(store), snapshots(5, 1).back());
}

TEST(StoreOpening, AFullDiskOfTheKernelsIsFull) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "cluster.db";
  EXPECT_EQ(in_child([&] {
              Store store{file};
              (void)store.add(made_up_spec(1), "", {});
              store.commit();
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit small{40'000, 40'000};
              if (::setrlimit(RLIMIT_FSIZE, &small) != 0) ::_exit(2);
              Contents before;
              try {
                for (;;) {
                  before = contents(store);
                  for (int i = 0; i < 5; ++i) (void)store.add(made_up_spec(96), "", {});
                  store.commit();
                }
              } catch (const StoreFailed& error) {
                if (error.why() != Why::kFull || contents(store) != before) ::_exit(3);
              }
              ::_exit(0);
            }),
            0);
}

}  // namespace
}  // namespace commensal::cluster::store_faults_test
