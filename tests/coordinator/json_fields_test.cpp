// SPDX-License-Identifier: Apache-2.0
// Types with fields to and from JSON: what is written is read, and what is wrong is named.
#include "coordinator/wire/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace commensal::wire::json_fields_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

enum class Colour { kRed, kGreen };
constexpr EnumNames<Colour, 2> names_of(Colour) noexcept {
  return {{{Colour::kRed, "red"}, {Colour::kGreen, "green"}}};
}

struct Part {
  int number = 0;
  std::optional<double> share;
};
void fields(SameAs<Part> auto& part, auto& field) {
  field("number", part.number, Between{1, 9});
  field("share", part.share, AboveUpTo{0.0, 0.5});
}

struct Whole {
  std::string name;
  Colour colour = Colour::kRed;
  bool on = false;
  Bytes size;
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::vector<Part> parts;
  std::map<std::string, std::string> texts;
  std::chrono::seconds time{};
  int spare = 7;
};
void fields(SameAs<Whole> auto& whole, auto& field) {
  field("name", whole.name, TextSize{1, 8});
  field("colour", whole.colour);
  field("on", whole.on);
  field("size_bytes", whole.size);
  field("least", whole.least);
  field("most", whole.most, NotBelow{whole.least, "least"});
  field("parts", whole.parts, ListSize{1, 2});
  field("texts", whole.texts);
  field("time_ms", whole.time);
  field("spare", whole.spare, MayBeAbsent{});
  field.check([&](const std::string& path) -> std::string {
    return whole.name == "twin" && whole.parts.size() != 2 ? path + "parts are two" : "";
  });
}

Whole good() {
  Whole whole;
  whole.name = "n";
  whole.colour = Colour::kGreen;
  whole.on = true;
  whole.size = Bytes{UINT64_MAX};
  whole.least = -5;
  whole.most = -5;
  whole.parts = {{1, std::nullopt}, {9, 0.5}};
  whole.texts = {{"a", "b"}, {"", "c"}};
  whole.time = std::chrono::seconds{3};
  whole.spare = 8;
  return whole;
}

std::string problem_with(const json& object, JsonForm form = kMessage) {
  try {
    Whole whole;
    read_fields(object, "it", whole, form);
  } catch (const BadField& problem) {
    return problem.what();
  }
  return "none";
}

/// What is wrong with a good object of which a value was replaced.
std::string problem_of(const char* pointer, const json& value, JsonForm form = kMessage) {
  json object = write_fields(good(), form);
  object[json::json_pointer(pointer)] = value;
  return problem_with(object, form);
}

TEST(JsonFields, WhatIsWrittenIsReadInEachForm) {
  for (const JsonForm form : {kMessage, kStrict, kExact}) {
    const json written = write_fields(good(), form);
    Whole read;
    read_fields(json::parse(written.dump()), "it", read, form);
    EXPECT_EQ(write_fields(read, form), written);
    EXPECT_EQ(read.size, Bytes{UINT64_MAX});
    EXPECT_EQ(read.texts, good().texts);
    EXPECT_EQ(read.parts.size(), 2U);
  }
  EXPECT_FALSE(write_fields(good())["parts"][0].contains("share")) << "absent, not null";
  EXPECT_EQ(write_fields(good())["colour"], "green");
}

TEST(JsonFields, AFieldIsMissingUnlessItMayBe) {
  const json whole = write_fields(good());
  for (const auto& [name, value] : whole.items()) {
    json object = write_fields(good());
    object.erase(name);
    EXPECT_EQ(problem_with(object), name == "spare" ? "none" : "field '" + name + "' is missing");
    object[name] = nullptr;
    EXPECT_EQ(problem_with(object), name == "spare" ? "none" : "field '" + name + "' is missing");
  }
  EXPECT_EQ(problem_of("/parts/1/share", nullptr), "none");
  EXPECT_EQ(problem_of("/parts/1/number", nullptr), "field 'parts[1].number' is missing");
}

TEST(JsonFields, AWrongTypeIsNamedWithPathAndValue) {
  EXPECT_EQ(problem_with(3), "it must be an object: 3");
  EXPECT_EQ(problem_of("/name", 3), "field 'name' must be a text: 3");
  EXPECT_EQ(problem_of("/colour", "blue"), "field 'colour' must be \"red\" or \"green\": \"blue\"");
  EXPECT_EQ(problem_of("/colour", 0), "field 'colour' must be \"red\" or \"green\": 0");
  EXPECT_EQ(problem_of("/on", 1), "field 'on' must be true or false: 1");
  EXPECT_EQ(problem_of("/size_bytes", -1),
            "field 'size_bytes' must be a whole number from 0 to 18446744073709551615: -1");
  EXPECT_EQ(problem_of("/spare", 1.5),
            "field 'spare' must be a whole number from -2147483648 to 2147483647: 1.5");
  EXPECT_EQ(problem_of("/parts", json::object()), "field 'parts' must be a list: {}");
  EXPECT_EQ(problem_of("/parts/0", 7), "field 'parts[0]' must be an object: 7");
  EXPECT_EQ(problem_of("/parts/0/share", "x"), "field 'parts[0].share' must be a number: \"x\"");
  EXPECT_EQ(problem_of("/texts/a", 2), "field 'texts.a' must be a text: 2");
  EXPECT_EQ(problem_of("/time_ms", 1500),
            "field 'time_ms' must be whole seconds in milliseconds: 1500");
  EXPECT_LT(problem_of("/spare", std::string(10'000, 'x')).size(), 200U) << "cut";
}

TEST(JsonFields, EachRuleIsKept) {
  EXPECT_EQ(problem_of("/name", ""), "field 'name' must be a text of 1 to 8 bytes: \"\"");
  EXPECT_EQ(problem_of("/name", "123456789"),
            "field 'name' must be a text of 1 to 8 bytes: \"123456789\"");
  EXPECT_EQ(problem_of("/most", -6), "field 'most' must be at least least: -6");
  EXPECT_EQ(problem_of("/parts", json::array()), "field 'parts' must be a list of 1 to 2: []");
  EXPECT_EQ(problem_of("/parts/0/number", 0), "field 'parts[0].number' must be from 1 to 9: 0");
  EXPECT_EQ(problem_of("/parts/0/number", 10), "field 'parts[0].number' must be from 1 to 9: 10");
  EXPECT_EQ(problem_of("/parts/0/share", 0.0),
            "field 'parts[0].share' must be above 0 and at most 0.5: 0.0");
  EXPECT_EQ(problem_of("/parts/0/share", 0.75),
            "field 'parts[0].share' must be above 0 and at most 0.5: 0.75");
  json twin = write_fields(good());
  twin["name"] = "twin";
  twin["parts"].erase(1);
  EXPECT_EQ(problem_with(twin), "parts are two");
}

TEST(JsonFields, OtherFieldsAreRefusedWhereTheFormSaysSo) {
  EXPECT_EQ(problem_of("/colour2", 1), "none");
  EXPECT_EQ(problem_of("/colour2", 1, kStrict), "field 'colour2' is not known: 1");
  EXPECT_EQ(problem_of("/parts/1/x", {}, kStrict), "field 'parts[1].x' is not known: null");
}

TEST(JsonFields, TextsThatAreNotUtf8AreRefusedOrKeptByteByByte) {
  Whole odd = good();
  odd.name = "n\xff";
  odd.texts = {{"\xfe", "\x80"}, {"a", "ä"}};
  EXPECT_THROW((void)write_fields(odd, kStrict), BadField);
  Whole read;
  read_fields(json::parse(write_fields(odd, kExact).dump()), "it", read, kExact);
  EXPECT_EQ(read.name, odd.name);
  EXPECT_EQ(read.texts, odd.texts);
  EXPECT_EQ(problem_of("/name", {300}, kExact),
            "field 'name' must be a whole number from 0 to 255: 300");
  EXPECT_EQ(problem_of("/texts", {{"a"}}, kExact),
            "field 'texts' must be a list of pairs: [\"a\"]");
  EXPECT_EQ(problem_of("/name", {65}), "field 'name' must be a text: [65]")
      << "of peers it is none";
}

TEST(JsonFields, AnEnumsNamesAreItsOwn) {
  EXPECT_EQ(value_of<Colour>("green"), Colour::kGreen);
  EXPECT_EQ(value_of<Colour>("Green"), std::nullopt);
  EXPECT_EQ(name_of(static_cast<Colour>(9)), "unknown");
}

}  // namespace
}  // namespace commensal::wire::json_fields_test
