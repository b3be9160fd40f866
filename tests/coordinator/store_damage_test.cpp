// SPDX-License-Identifier: Apache-2.0
// Damaged files: refused and kept aside, or right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "coordinator/cluster/store.h"
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/store_script.h"

namespace commensal::cluster::store_damage_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Why = StoreFailed::Why;

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kBatches = 30;

const bool kInstalled = (fault_vfs::install(), true);

class StoreDamage : public ::testing::Test {
 protected:
  /// A file with that many batches, closed; `log_` as it was before that.
  void make(std::uint32_t batches = kBatches) {
    Store store{file_};
    for (std::uint32_t number = 0; number < batches; ++number) {
      apply_batch(31, number, model_, &store);
      store.commit();
      log_ = bytes_of(log_file_);
    }
  }
  void put_back(const std::string& bytes) {
    for (const auto& entry : fs::directory_iterator(folder_.path())) fs::remove(entry.path());
    write_bytes(file_, bytes);
  }
  std::vector<fs::path> kept_aside() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().starts_with("cluster.db.damaged-")) {
        found.push_back(entry.path());
      }
    }
    std::ranges::sort(found);
    return found;
  }

  /// Opens the file; `refused_` counts. Either it is refused, and lies aside as it was, or right.
  void refused_or_right(const std::string& bytes) {
    try {
      Store store{file_};
      ASSERT_EQ(contents(store), model_.contents());
    } catch (const StoreFailed& error) {
      ++refused_;
      ASSERT_EQ(error.why(), Why::kDamaged) << error.what();
      const std::vector<fs::path> aside = kept_aside();
      ASSERT_EQ(aside.size(), 1U);
      ASSERT_THAT(error.what(), HasSubstr(aside[0].string()));
      ASSERT_TRUE(bytes_of(aside[0]) == bytes);
      ASSERT_FALSE(fs::exists(file_));
    }
  }

  TemporaryFolder folder_;
  fs::path file_ = folder_.path() / "cluster.db";
  fs::path log_file_ = folder_.path() / "cluster.db-wal";
  Model model_;
  std::vector<Contents> after_;
  std::string before_log_;
  std::string log_;
  int refused_ = 0;
};

/// One of several ways in which a page goes wrong.
void damage_page(std::string& bytes, std::size_t page, std::mt19937& random) {
  const auto below = [&](std::size_t limit) { return random() % limit; };
  const std::size_t begin = page * kPage;
  switch (below(5)) {
    case 0: bytes[begin + below(kPage)] ^= static_cast<char>(1U << below(8)); break;
    case 1: bytes[begin + below(kPage)] = static_cast<char>(below(256)); break;
    case 2:
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin + 512 * below(8)), 512, 0);
      break;
    case 3:
      std::generate_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), kPage,
                      [&] { return static_cast<char>(below(256)); });
      break;
    default:
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(kPage * below(bytes.size() / kPage)),
                  kPage, bytes.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

TEST_F(StoreDamage, AnyDamagedPageIsRefusedOrRight) {
  make();
  const std::string good = bytes_of(file_);
  const std::size_t pages = good.size() / kPage;
  ASSERT_GT(pages, 15U);
  int changed = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random{seed};
    std::string bytes = good;
    damage_page(bytes, seed % pages, random);
    changed += bytes == good ? 0 : 1;
    put_back(bytes);
    refused_or_right(bytes);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(refused_, changed * 9 / 10) << "pages that hold nothing are few";
}

TEST_F(StoreDamage, TheHeaderCounts) {
  make(3);
  const std::string good = bytes_of(file_);
  for (std::size_t bit = 0; bit < 800; bit += 3) {
    SCOPED_TRACE("bit " + std::to_string(bit));
    std::string bytes = good;
    bytes[bit / 8] ^= static_cast<char>(1U << bit % 8);
    put_back(bytes);
    refused_or_right(bytes);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(refused_, 267);
}

TEST_F(StoreDamage, AFileThatWasCutIsRefused) {
  make();
  const std::string good = bytes_of(file_);
  // One byte is what SQLite takes for an empty file.
  for (std::size_t size = 2; size < good.size(); size += size < kPage ? 97 : 1031) {
    SCOPED_TRACE("size " + std::to_string(size));
    const std::string bytes = good.substr(0, size);
    put_back(bytes);
    refused_or_right(bytes);
    if (HasFatalFailure()) return;
    EXPECT_FALSE(fs::exists(file_)) << "refused";
  }
}

class StoreLogDamage : public StoreDamage {
 protected:
  /// A file and its log as a crash leaves them: `log_ends_` has the log's size after each commit.
  void SetUp() override {
    after_.emplace_back();
    Store store{file_};
    for (std::uint32_t number = 0; number < kBatches; ++number) {
      apply_batch(31, number, model_, &store);
      store.commit();
      after_.push_back(model_.contents());
      log_ends_.push_back(fs::file_size(log_file_));
    }
    before_log_ = bytes_of(file_);
    log_ = bytes_of(log_file_);
    ASSERT_GT(log_.size(), 100'000U);
  }
  /// Number of batches in a store with that log; absent if it is refused.
  std::optional<std::size_t> batches_with(const std::string& log) {
    put_back(before_log_);
    write_bytes(log_file_, log);
    try {
      Store store{file_};
      const auto found = std::ranges::find(after_, contents(store));
      EXPECT_NE(found, after_.end()) << "batches are whole";
      return static_cast<std::size_t>(found - after_.begin());
    } catch (const StoreFailed& error) {
      EXPECT_EQ(error.why(), Why::kDamaged) << error.what();
      EXPECT_EQ(kept_aside().size(), 2U);
      EXPECT_TRUE(bytes_of(kept_aside().back()) == log);
      return std::nullopt;
    }
  }

  std::vector<std::uintmax_t> log_ends_;
};

TEST_F(StoreLogDamage, IsRefusedUnlessItCouldBeACrashInTheLastCommit) {
  const std::uintmax_t last_begins = log_ends_[kBatches - 2];
  int last = 0;
  for (unsigned seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random{seed};
    std::string log = log_;
    // Some of them in the last commit, which is a small part.
    const std::size_t begin = seed % 3 == 0 ? last_begins : 0;
    const std::size_t at = begin + random() % (log.size() - begin);
    log[at] ^= static_cast<char>(1U << random() % 8);
    const auto found = batches_with(log);
    if (at >= last_begins) {
      ++last;
      EXPECT_EQ(found, kBatches - 1);
    } else if (found) {
      EXPECT_EQ(*found, kBatches) << "a byte that means nothing";
    } else {
      ++refused_;
    }
  }
  EXPECT_GT(last, 35);
  EXPECT_GT(refused_, 60);
}

TEST_F(StoreLogDamage, ALogThatWasCutIsACrash) {
  std::size_t batches = 0;
  for (std::size_t size = 0; size < log_.size(); size += 3001) {
    while (batches < kBatches && log_ends_[batches] <= size) ++batches;
    const auto found = batches_with(log_.substr(0, size));
    ASSERT_TRUE(found);
    EXPECT_EQ(after_[*found], after_[batches]) << "size " << size;
  }
}

TEST_F(StoreDamage, SaysWhereItWentAndWhatToDo) {
  make(3);
  std::string bytes = bytes_of(file_);
  bytes[kPage + 100] ^= 1;
  put_back(bytes);
  write_bytes(log_file_, "a log");
  std::string text;
  try {
    const Store store{file_};
  } catch (const StoreFailed& error) {
    text = error.what();
  }
  const std::vector<fs::path> aside = kept_aside();
  ASSERT_EQ(aside.size(), 2U);
  EXPECT_EQ(aside[1], aside[0].string() + "-wal");
  EXPECT_THAT(text, HasSubstr(file_.string() + " is damaged"));
  EXPECT_THAT(text, HasSubstr("kept aside as " + aside[0].string() + ":"));
  EXPECT_THAT(text, HasSubstr("copy a backup to " + file_.string()));
  EXPECT_EQ(std::ranges::count(text, '\n'), 0);
  EXPECT_TRUE(bytes_of(aside[0]) == bytes);
  EXPECT_EQ(bytes_of(aside[1]), "a log");
}

TEST_F(StoreDamage, TheNextStartBeginsAnewAndEachDamagedFileIsKept) {
  for (std::size_t i = 1; i <= 3; ++i) {
    write_bytes(file_, "this is no database, but it is longer than a hundred bytes: " +
                           std::string(100, 'x'));
    EXPECT_THROW(Store{file_}, StoreFailed);
    EXPECT_EQ(kept_aside().size(), i);
    EXPECT_FALSE(fs::exists(file_));
  }
  Store store{file_};
  EXPECT_EQ(contents(store), Contents{});
}

TEST_F(StoreDamage, ACoordinatorDoesNotBeginWithNothingBesideADamagedFile) {
  const fs::path folder = file_.parent_path();
  EXPECT_NO_THROW(check_nothing_was_kept_aside(file_));
  EXPECT_NO_THROW(check_nothing_was_kept_aside(folder / "absent" / "cluster.db"));
  write_bytes(folder / "other.db.damaged-20260101T000000Z", "another's");
  EXPECT_NO_THROW(check_nothing_was_kept_aside(file_));
  make(3);
  std::string bytes = bytes_of(file_);
  bytes[kPage + 100] ^= 1;
  put_back(bytes);
  EXPECT_NO_THROW(check_nothing_was_kept_aside(file_));
  EXPECT_THROW(Store{file_}, StoreFailed);
  const std::vector<fs::path> aside = kept_aside();
  ASSERT_FALSE(aside.empty());
  std::string text;
  try {
    check_nothing_was_kept_aside(file_);
  } catch (const StoreFailed& error) {
    text = error.what();
    EXPECT_EQ(error.why(), StoreFailed::Why::kDamaged);
  }
  EXPECT_THAT(text, HasSubstr(file_.string() + " was damaged and kept aside as "));
  EXPECT_THAT(text, HasSubstr("copy a backup to " + file_.string()));
  write_bytes(file_, "a copy");
  EXPECT_NO_THROW(check_nothing_was_kept_aside(file_));
  fs::remove(file_);
  for (const fs::path& one : aside) fs::remove(one);
  EXPECT_NO_THROW(check_nothing_was_kept_aside(file_));
}

TEST_F(StoreDamage, ALogWithoutItsFileIsNotThrownAway) {
  make(3);
  for (const bool empty : {false, true}) {
    for (const auto& entry : fs::directory_iterator(folder_.path())) fs::remove(entry.path());
    write_bytes(log_file_, log_);
    if (empty) write_bytes(file_, "");
    EXPECT_THROW(Store{file_}, StoreFailed);
    const std::vector<fs::path> aside = kept_aside();
    ASSERT_EQ(aside.size(), empty ? 2U : 1U);
    EXPECT_TRUE(bytes_of(aside.back()) == log_);
  }
}

TEST_F(StoreDamage, AnEmptyFileIsANewOne) {
  write_bytes(file_, "");
  Store store{file_};
  EXPECT_EQ(contents(store), Contents{});
}

TEST_F(StoreDamage, DamageThatComesWhileItIsOpenIsToldWhenItIsRead) {
  std::optional<Store> store{std::in_place, file_, 100};
  for (int i = 0; i < 12'000; ++i) (void)store->add(made_up_spec(96), "", {});
  store->commit();
  std::string bytes = bytes_of(file_);
  ASSERT_GT(bytes.size(), 3U << 20U) << "more than SQLite keeps in memory";
  for (std::size_t page = 1; page < bytes.size() / kPage; ++page) bytes[page * kPage + 999] ^= 1;
  write_bytes(file_, bytes);
  try {
    (void)store->load();
    ADD_FAILURE() << "read damaged pages";
  } catch (const StoreFailed& error) {
    EXPECT_EQ(error.why(), Why::kDamaged);
    EXPECT_THAT(error.what(), HasSubstr("start it again, which puts the file aside"));
  }
}

}  // namespace
}  // namespace commensal::cluster::store_damage_test
