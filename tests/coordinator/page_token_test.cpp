// SPDX-License-Identifier: Apache-2.0
// The page's token: made once, for its owner alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

#include "coordinator/page/token.h"

namespace commensal::page::page_token_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PageTokenTest : public ::testing::Test {
 protected:
  PageTokenTest() {
    folder_ = std::filesystem::temp_directory_path() /
              ("commensal-token-" + std::to_string(getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    file_ = folder_ / "page-token";
  }
  ~PageTokenTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& text, mode_t mode = 0600) const {
    std::ofstream{file_} << text;
    ASSERT_EQ(::chmod(file_.c_str(), mode), 0);
  }
  [[nodiscard]] std::string refusal() const {
    try {
      (void)token_in(file_);
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }

  std::filesystem::path folder_;
  std::filesystem::path file_;
};

TEST_F(PageTokenTest, IsMadeOnceAndKept) {
  const std::string token = token_in(file_);
  EXPECT_EQ(token.size(), 64U);
  EXPECT_EQ(token_in(file_), token);
  struct stat facts {};
  ASSERT_EQ(::stat(file_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator{folder_}, {}), 1) << "nothing beside";
}

TEST_F(PageTokenTest, IsAnotherOneEachTime) {
  std::set<std::string> tokens;
  for (int i = 0; i < 20; ++i) {
    tokens.insert(token_in(file_));
    std::filesystem::remove(file_);
  }
  EXPECT_EQ(tokens.size(), 20U);
}

TEST_F(PageTokenTest, AFileThatOthersMayOpenIsRefused) {
  for (const mode_t mode : {0640U, 0604U, 0660U}) {
    write(std::string(64, 'a') + "\n", mode);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(file_.native()), HasSubstr("others may open it"),
                                 HasSubstr("remove the file")));
  }
}

TEST_F(PageTokenTest, WhatIsNoTokenIsRefusedAndLeft) {
  for (const std::string& text :
       {std::string{}, std::string(63, 'a'), std::string(64, 'g'), std::string(64, 'A'),
        std::string(65, 'a'), std::string(1000, 'a'), std::string(63, 'a') + " "}) {
    write(text);
    EXPECT_THAT(refusal(), HasSubstr("does not hold 64 hexadecimal digits")) << text;
    EXPECT_EQ(std::filesystem::file_size(file_), text.size());
  }
  write(std::string(64, 'a'));  // made by hand, without an end of line
  EXPECT_EQ(token_in(file_), std::string(64, 'a'));
}

TEST_F(PageTokenTest, ALinkOrAFolderIsRefused) {
  std::filesystem::create_symlink("/etc/hostname", file_);
  EXPECT_THAT(refusal(), HasSubstr(file_.native()));
  std::filesystem::remove(file_);
  std::filesystem::create_directory(file_);
  EXPECT_NE(refusal(), "");
}

TEST_F(PageTokenTest, AFolderThatIsNotThereIsNamed) {
  file_ = folder_ / "nowhere" / "page-token";
  EXPECT_THAT(refusal(), AllOf(HasSubstr(file_.native()), HasSubstr("No such file")));
}

TEST(PageSecretTest, AreEqualOrNot) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_TRUE(same_secret("", ""));
  for (const char* other : {"abx", "xbc", "ab", "abcd", ""}) {
    EXPECT_FALSE(same_secret("abc", other)) << other;
  }
}

}  // namespace
}  // namespace commensal::page::page_token_test
