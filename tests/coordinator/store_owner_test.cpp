// SPDX-License-Identifier: Apache-2.0
// Which stores may decide about attempts, and which start is refused before it makes a file.
#include "coordinator/cluster/store_owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace commensal::cluster::store_owner_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<Attempt> kTwo{{JobId{"7"}, 1}, {JobId{"8"}, 2}};

TEST(StoreOwnerTest, AttemptsBelongToTheStoreWhoseStampLiesBesideThem) {
  EXPECT_TRUE(owns_attempts({"a", "a", kTwo, 0})) << "an older copy, from before they began";
  EXPECT_FALSE(owns_attempts({"a", "b", kTwo, 2})) << "their numbers are the same by chance";
}

TEST(StoreOwnerTest, WithoutAStampTheStoreMustKnowOneOfThem) {
  for (const StoreOwner& stamps :
       {StoreOwner{"", "", kTwo, 0}, StoreOwner{"a", "", kTwo, 0}, StoreOwner{"", "b", kTwo, 0}}) {
    StoreOwner owner = stamps;
    EXPECT_FALSE(owns_attempts(owner));
    owner.known = 1;
    EXPECT_TRUE(owns_attempts(owner));
  }
}

TEST(StoreOwnerTest, WithoutAttemptsAnyStoreMayBegin) {
  EXPECT_TRUE(owns_attempts({"", "", {}, 0}));
  EXPECT_TRUE(owns_attempts({"", "b", {}, 0}));
  EXPECT_TRUE(owns_attempts({"a", "b", {}, 0}));
}

TEST(StoreOwnerTest, ARefusalSaysWhichAttemptsAndWhatToDo) {
  const StoreFailed refusal = foreign_store("/state/cluster.db", {"a", "b", kTwo, 0});
  EXPECT_EQ(refusal.why(), StoreFailed::Why::kForeign);
  EXPECT_THAT(refusal.what(), AllOf(HasSubstr("/state/cluster.db is not that of the 2 attempts"),
                                    HasSubstr("job 7, attempt 1"), HasSubstr("--begin-anew")));
  EXPECT_THAT(foreign_store("f", {"", "b", kTwo, 0}).what(), HasSubstr("knows none of the 2"));
}

class LostStoreTest : public ::testing::Test {
 protected:
  LostStoreTest() {
    std::string name = (fs::temp_directory_path() / "commensal-lost-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp");
    }
    folder_ = name;
    fs::create_directories(attempts_ = folder_ / "local/jobs");
  }
  ~LostStoreTest() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string refusal() const {
    try {
      check_not_lost(file(), attempts_);
      return "";
    } catch (const StoreFailed& error) {
      return error.what();
    }
  }
  [[nodiscard]] fs::path file() const { return folder_ / "cluster.db"; }

  fs::path folder_;
  fs::path attempts_;
};

TEST_F(LostStoreTest, NoFileIsMadeInThePlaceOfALostOneWhileThereAreAttempts) {
  EXPECT_EQ(refusal(), "") << "a first start";
  fs::create_directories(attempts_ / "7/1");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("is missing"), HasSubstr(attempts_.native())));
  std::ofstream{file()}.close();
  EXPECT_THAT(refusal(), HasSubstr("is empty"));
  std::ofstream{file()} << "something";
  EXPECT_EQ(refusal(), "");
}

TEST_F(LostStoreTest, AFileThatHasLostItsContentToItsLogIsPutAsideByWhoOpensIt) {
  fs::create_directories(attempts_ / "7/1");
  std::ofstream{file()}.close();
  std::ofstream{file().native() + "-wal"} << "jobs";
  EXPECT_EQ(refusal(), "");
}

TEST_F(LostStoreTest, AnEngineThatHasNeverRunHasNoAttempts) {
  fs::remove(attempts_);
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace commensal::cluster::store_owner_test
