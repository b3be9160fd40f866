// SPDX-License-Identifier: Apache-2.0
// Sets of CPUs: the kernel's lists in, the kernel's lists out.
#include "coordinator/wire/core_set.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace commensal::wire::core_set_test {
namespace {

CoreSet set(std::string_view list) {
  const auto parsed = CoreSet::parse(list);
  EXPECT_TRUE(parsed) << list;
  return parsed.value_or(CoreSet{});
}

TEST(CoreSet, ReadsAndWritesTheKernelsLists) {
  for (const char* list : {"", "0", "0-3", "0-3,8", "1,3,5", "63-64", "0-255", "255", "7,62-130"}) {
    EXPECT_EQ(set(list).to_string(), list);
  }
  EXPECT_EQ(set("3,1-2,2\n").to_string(), "1-3");
  EXPECT_EQ(set("0-3,8").cpus(), (std::vector<std::size_t>{0, 1, 2, 3, 8}));
}

TEST(CoreSet, WhatIsNoListIsNotRead) {
  for (const char* list : {"x", "1-", "-1", "3-1", "1,,2", "1,", ",1", "256", "0-256", "1 2",
                           "99999999999999999999", "0x3"}) {
    EXPECT_FALSE(CoreSet::parse(list)) << list;
  }
}

TEST(CoreSet, CountsAndCombines) {
  EXPECT_TRUE(CoreSet{}.empty());
  EXPECT_EQ(set("0-255").count(), 256U);
  EXPECT_EQ(set("0-3") & set("2-5"), set("2-3"));
  EXPECT_EQ((set("0-1") | set("100")).to_string(), "0-1,100");
  EXPECT_TRUE(set("64").has(64));
  EXPECT_FALSE(set("64").has(0));
  EXPECT_FALSE(set("0-255").has(256));
}

TEST(CoreSet, GoesThroughTheWordsOfThePage) {
  const CoreSet before = set("0,65,130,255");
  EXPECT_EQ(CoreSet{before.words()}, before);
}

TEST(CoreSet, ACpuThatDoesNotFitIsNamed) {
  CoreSet some;
  try {
    some.add(256);
    FAIL() << "was taken";
  } catch (const std::out_of_range& problem) {
    EXPECT_NE(std::string{problem.what()}.find("256"), std::string::npos);
  }
  EXPECT_TRUE(some.empty());
}

}  // namespace
}  // namespace commensal::wire::core_set_test
