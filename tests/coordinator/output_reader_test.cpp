// SPDX-License-Identifier: Apache-2.0
// Output read in parts, also while it is rotated.
#include "coordinator/cluster/output_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/coordinator/key_world.h"

namespace commensal::cluster::output_reader_test {
namespace {

namespace fs = std::filesystem;

class OutputReaderTest : public ::testing::Test {
 protected:
  void append(const std::string& text) { std::ofstream{file_, std::ios::app} << text; }
  void rotate() {
    for (int number = 3; number > 0; --number) {
      const fs::path from =
          number == 1 ? file_ : fs::path{file_.native() + "." + std::to_string(number - 1)};
      if (fs::exists(from)) fs::rename(from, file_.native() + "." + std::to_string(number));
    }
  }
  /// All that is there from a place on, which moves.
  std::string read(OutputPlace& place, std::size_t most = 1000) {
    std::string text;
    for (bool more = true; more;) {
      OutputPart part = read_output(file_, place, most);
      EXPECT_LE(part.bytes.size(), most);
      text += part.bytes;
      place = part.next;
      more = part.more;
    }
    return text;
  }

  keys::TestFolder folder_;
  fs::path file_ = folder_.path() / "rank-0";
};

TEST_F(OutputReaderTest, WithoutAFileThereIsNothing) {
  OutputPlace place;
  EXPECT_EQ(read(place), "");
  append("now");
  EXPECT_EQ(read(place), "now");
}

TEST_F(OutputReaderTest, EveryByteComesOnceInParts) {
  append(std::string("one\0two\xff\n", 9));
  OutputPlace place;
  EXPECT_EQ(read(place, 2), std::string("one\0two\xff\n", 9));
  EXPECT_EQ(read(place, 2), "");
  append("three");
  EXPECT_EQ(read(place, 4), "three");
}

TEST_F(OutputReaderTest, WhatIsRotatedAwayIsReadToItsEnd) {
  append("first ");
  OutputPlace place;
  EXPECT_EQ(read(place), "first ");
  append("second ");
  rotate();
  append("third ");
  rotate();
  append("fourth");
  EXPECT_EQ(read(place, 3), "second third fourth");
}

TEST_F(OutputReaderTest, APlaceThatIsGoneBecomesTheOldestThatIsLeft) {
  append("first");
  OutputPlace place;
  EXPECT_EQ(read(place), "first");
  fs::rename(file_, folder_.path() / "aside");  // so that its number is not used again
  append("second ");
  rotate();
  append("third");
  EXPECT_EQ(read(place), "second third");
}

TEST_F(OutputReaderTest, AFileThatWasCutHasNothingMore) {
  append("long text");
  OutputPlace place;
  (void)read(place);
  fs::resize_file(file_, 2);
  EXPECT_EQ(read(place), "");
}

TEST_F(OutputReaderTest, WhatIsNoFileIsNamed) {
  fs::create_directory(file_);
  EXPECT_THROW((void)read_output(file_, {}, 10), std::runtime_error);
  fs::remove(file_);
  fs::create_symlink("/etc/hostname", file_);
  EXPECT_THROW((void)read_output(file_, {}, 10), std::runtime_error);
}

}  // namespace
}  // namespace commensal::cluster::output_reader_test
