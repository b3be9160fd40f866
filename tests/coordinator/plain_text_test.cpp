// SPDX-License-Identifier: Apache-2.0
// What may stand in a name that others read on a terminal.
#include "coordinator/cluster/plain_text.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace commensal::cluster::plain_text_test {
namespace {

/// What is said against a name; empty: nothing.
std::string problem(const std::string& name) {
  try {
    check_plain_name("a name", name);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::string text_problem(const std::string& text, std::size_t most) {
  try {
    check_plain_text("a reason", text, most);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(PlainTextTest, LettersOfAnyLanguageArePlain) {
  for (const char* name :
       {"train", "a b", " x ", "<b>&amp;", "na\u00efve", "\u8a13\u7df4", "\u00a0"}) {
    EXPECT_EQ(problem(name), "") << name;
  }
}

TEST(PlainTextTest, ControlCharactersAreNamedWithTheirPlace) {
  EXPECT_EQ(problem("a\x1b[31mb"),
            "a name holds no control characters, but there is one (code 27) at byte 1");
  EXPECT_EQ(problem("a\n"),
            "a name holds no control characters, but there is one (code 10) at byte 1");
  EXPECT_EQ(problem("\x7f"),
            "a name holds no control characters, but there is one (code 127) at byte 0");
  EXPECT_EQ(problem(std::string("ab\0c", 4)),
            "a name holds no control characters, but there is one (code 0) at byte 2");
  // U+009B begins a sequence on terminals, too.
  EXPECT_EQ(problem("ab\xc2\x9b"
                    "31m"),
            "a name holds no control characters, but there is one (code 155) at byte 2");
  EXPECT_EQ(problem("ab\xc2"), "") << "whether it is UTF-8 is looked at elsewhere";
}

TEST(PlainTextTest, NothingAndBlanksAreNoNames) {
  EXPECT_EQ(problem(""), "a name is not empty");
  EXPECT_EQ(problem("  "), "a name is not blank: \"  \"");
  EXPECT_EQ(text_problem("", 10), "") << "a reason may be left out";
}

TEST(PlainTextTest, ItsLengthIsBounded) {
  EXPECT_EQ(problem(std::string(kMostName, 'x')), "");
  EXPECT_EQ(problem(std::string(10'000, 'x')), "a name has at most 255 bytes, not 10000");
  EXPECT_EQ(text_problem("abc", 3), "");
  EXPECT_EQ(text_problem("abcd", 3), "a reason has at most 3 bytes, not 4");
}

}  // namespace
}  // namespace commensal::cluster::plain_text_test
