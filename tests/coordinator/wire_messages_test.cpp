// SPDX-License-Identifier: Apache-2.0
// Messages: both directions, and everything that can be wrong with a frame.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "coordinator/wire/messages.h"

namespace commensal::wire::wire_messages_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<Message> one_of_each() {
  Register hello;
  hello.job_id = "j1";
  hello.name = "name with \"quotes\" and \xC3\xBC";
  hello.tenant = "t";
  hello.job_class = JobClass::kGuaranteed;
  hello.terms.memory = {Bytes{1ULL << 40U}, Bytes{(1ULL << 63U) + 5}};
  hello.terms.share = {0.25, 0.75};
  hello.pid = 4711;
  hello.start_ticks = UINT64_MAX;
  hello.role = "rank";
  hello.rank = 3;
  hello.world_size = 4;
  hello.gang = "g";
  hello.epoch = 2;
  hello.terms.law = "gap";
  hello.terms.slo = 0.02;
  hello.devices = {{"GPU-a", 77, 9, 88}, {"GPU-b", 5, 6, 7}, {"MIG-c"}};
  Registered registered;
  registered.job_id = "j1";
  registered.coordinator = "default";
  registered.coordinator_pid = 1;
  registered.capacity_bytes = 2;
  registered.limit_bytes = 3;
  registered.law = "gap";
  registered.reason = "because";
  Stats stats{"j1", 4711, json{{"schema", 1}, {"memory", {{"device_bytes", 5}}}}, true};
  Change change;
  change.job_id = "j1";
  change.revision = 10;
  change.limit_bytes = 0;
  change.terms.share = ShareRange{0.0, 0.5};
  change.paused = false;
  change.terms.law = "open";
  change.terms.slo = 0.5;
  change.terms.idle_class = true;
  change.terms.affinity = false;
  change.terms.sm_share = 0.3;
  change.reason = "r";
  change.device = "GPU-b";
  change.job_class = JobClass::kGuaranteed;
  change.terms.memory = MemoryRange{Bytes{1}, Bytes{2}};
  SetRequest set;
  set.job = "j1";
  set.terms.memory = MemoryRange{Bytes{1}, std::nullopt};
  set.terms.share = ShareRange{0, 1};
  set.paused = true;
  set.terms.law = "antman";
  set.terms.slo = 0.01;
  set.terms.idle_class = false;
  set.terms.affinity = true;
  set.terms.sm_share = 0.4;
  set.job_class = JobClass::kOpportunistic;
  return {hello,
          registered,
          stats,
          change,
          Answer{"j1", 4711, 10, wire::Outcome::kDeferred, 1, 2, 3, "later", "GPU-b",
                 JobClass::kGuaranteed},
          AskMemory{"j1", 4711, 5, 6, "GPU-b"},
          StatusRequest{""},
          StatusReply{json{{"schema", 1}}},
          set,
          SetReply{"j1", 3, wire::Outcome::kApplied, ""},
          Error{"no_memory", "none left", "GPU-b"},
          MapRequest{"j1", 4711, "0a"},
          MapReply{"j1", 4711, "0a", json{{"segments", json::array()}}, ""},
          ExplainRequest{"j1", 30.0, true},
          ExplainReply{json{{"schema", 1}}}};
}

std::string code_of(std::string_view frame) {
  try {
    (void)decode(frame);
  } catch (const BadMessage& problem) {
    return problem.code();
  }
  return "";
}

std::string text_of(std::string_view frame) {
  try {
    (void)decode(frame);
  } catch (const BadMessage& problem) {
    return problem.what();
  }
  return "";
}

TEST(WireMessages, EveryMessageSurvivesTheWay) {
  for (const Message& message : one_of_each()) {
    const std::string frame = encode(message);
    const Message back = decode(frame);
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(json::parse(encode(back)), json::parse(frame));
  }
  EXPECT_EQ(one_of_each().size(), std::variant_size_v<Message>);
}

TEST(WireMessages, KeepsLargeNumbersAndAbsentFields) {
  const auto hello = std::get<Register>(decode(encode(one_of_each()[0])));
  EXPECT_EQ(hello.terms.memory.max, Bytes{(1ULL << 63U) + 5});
  EXPECT_EQ(hello.start_ticks, UINT64_MAX);
  EXPECT_EQ(hello.job_class, JobClass::kGuaranteed);
  Change change;
  change.job_id = "j";
  const auto back = std::get<Change>(decode(encode(change)));
  EXPECT_FALSE(back.limit_bytes || back.paused || !is_empty(back.terms));
}

// An older peer leaves it out, and ignores it.
TEST(WireMessages, AClassThatChangesMayBeAbsentAndMustBeOne) {
  json answer = json::parse(encode(Answer{"j1", 4711, 10, wire::Outcome::kApplied, 0, 0, 0, ""}));
  EXPECT_FALSE(answer.contains("job_class"));
  EXPECT_FALSE(std::get<Answer>(decode(answer.dump())).job_class);
  answer["job_class"] = "guaranteed";
  EXPECT_EQ(std::get<Answer>(decode(answer.dump())).job_class, JobClass::kGuaranteed);
  SetRequest request;
  request.job = "j1";
  json set = json::parse(encode(request));
  EXPECT_FALSE(set.contains("job_class"));
  set["job_class"] = "auto";
  EXPECT_EQ(code_of(set.dump()), "malformed");
  EXPECT_EQ(text_of(set.dump()),
            "field 'job_class' must be \"guaranteed\" or \"opportunistic\": \"auto\"");
}

TEST(WireMessages, KeepsTheDevicesOfAProcess) {
  const auto hello = std::get<Register>(decode(encode(one_of_each()[0])));
  ASSERT_EQ(hello.devices.size(), 3U);
  EXPECT_EQ(hello.devices[0].device, "GPU-a");
  EXPECT_EQ(hello.devices[1].device, "GPU-b");
  EXPECT_EQ(hello.devices[1].held_bytes, 5U);
  EXPECT_EQ(hello.devices[1].revision, 6U);
  EXPECT_EQ(hello.devices[1].limit_bytes, 7U);
  EXPECT_FALSE(hello.devices[2].limit_bytes);
  Register one;
  one.job_id = "j";
  one.pid = 1;
  const auto again = std::get<Register>(decode(encode(one)));
  ASSERT_EQ(again.devices.size(), 1U);
  EXPECT_EQ(again.devices[0].device, "host");
}

TEST(WireMessages, RefusesDevicesThatCannotBe) {
  const auto text_of_field = [](const json& devices) {
    json frame = json::parse(encode(one_of_each()[0]));
    frame["devices"] = devices;
    return text_of(frame.dump());
  };
  const auto text_with = [&](const std::vector<json>& list) { return text_of_field(json(list)); };
  const auto named = [](const std::string& id) {
    return json{{"device", id}, {"held_bytes", 0}, {"revision", 0}};
  };
  EXPECT_EQ(text_with({named("host"), named("GPU-b")}), "");
  EXPECT_EQ(text_with({named(""), named("GPU-b")}), "") << "the first is not known yet";
  EXPECT_EQ(text_with({}), "field 'devices' must be a list of 1 to 16: []");
  EXPECT_EQ(text_of_field(nullptr), "field 'devices' is missing");
  EXPECT_EQ(text_with({named("GPU-b"), named("GPU-b")}),
            "field 'devices' names a device twice: \"GPU-b\"");
  EXPECT_EQ(text_with({named("GPU-a"), named("host")}),
            "field 'devices' must name GPUs beside the first device: \"host\"");
  EXPECT_EQ(text_with({named("GPU-a"), named("")}),
            "field 'devices' must name GPUs beside the first device: \"\"");
  EXPECT_EQ(text_of_field("GPU-b"), "field 'devices' must be a list: \"GPU-b\"");
  EXPECT_EQ(text_with({3}), "field 'devices[0]' must be an object: 3");
  EXPECT_EQ(text_with({named("GPU-b"), json{{"device", "GPU-c"}}}),
            "field 'devices[1].held_bytes' is missing");
  json late = named("GPU-b");
  late["revision"] = UINT64_MAX;
  EXPECT_EQ(
      text_with({late}),
      "field 'devices[0].revision' must be from 0 to 4611686018427387904: 18446744073709551615");
  json many = json::array();
  for (int i = 0; i < 17; ++i) many.push_back(named("GPU-" + std::to_string(i)));
  EXPECT_THAT(text_of_field(many), HasSubstr("field 'devices' must be a list of 1 to 16: [{"));
}

TEST(WireMessages, IgnoresUnknownFields) {
  json frame = json::parse(encode(one_of_each()[0]));
  frame["colour"] = {{"deep", {1, 2, 3}}};
  frame["memory"]["flavour"] = "x";
  EXPECT_NO_THROW((void)decode(frame.dump()));
}

TEST(WireMessages, NamesEveryMissingField) {
  for (const Message& message : one_of_each()) {
    const json whole = json::parse(encode(message));
    for (const auto& [name, value] : whole.items()) {
      json frame = whole;
      frame.erase(name);
      const std::string code = code_of(frame.dump());
      if (code.empty()) continue;
      EXPECT_EQ(code, "malformed");
      EXPECT_THAT(text_of(frame.dump()), HasSubstr("'" + name + "' is missing"));
    }
  }
  // Not vacuous: required ones are among them.
  json frame = json::parse(encode(one_of_each()[0]));
  frame["memory"].erase("min_bytes");
  EXPECT_THAT(text_of(frame.dump()), HasSubstr("'memory.min_bytes' is missing"));
}

TEST(WireMessages, NamesWrongFieldAndValue) {
  const json whole = json::parse(encode(one_of_each()[0]));
  const auto with = [&](const char* name, json value) {
    json frame = whole;
    frame[name] = std::move(value);
    return text_of(frame.dump());
  };
  EXPECT_THAT(with("start_ticks", -5), AllOf(HasSubstr("'start_ticks'"), HasSubstr("-5")));
  EXPECT_THAT(with("start_ticks", 1.5), HasSubstr("1.5"));
  EXPECT_THAT(with("start_ticks", "much"), HasSubstr("\"much\""));
  EXPECT_THAT(with("rank", 1LL << 40U), HasSubstr("'rank'"));
  EXPECT_THAT(with("job_class", "royal"), HasSubstr("\"royal\""));
  EXPECT_THAT(with("share", 7), HasSubstr("'share'"));
  EXPECT_THAT(with("name", json::array()), HasSubstr("'name'"));
  EXPECT_THAT(with("pid", 0), HasSubstr("'pid'"));
  EXPECT_THAT(with("job_id", ""), HasSubstr("'job_id'"));
  EXPECT_THAT(with("job_id", std::string(64, 'x')), HasSubstr("63"));
  EXPECT_EQ(with("job_id", std::string(63, 'x')), "");
}

TEST(WireMessages, TellsPeersOfAnotherVersion) {
  json frame = json::parse(encode(StatusRequest{}));
  for (const int version : {0, 2, 99}) {
    frame["v"] = version;
    EXPECT_EQ(code_of(frame.dump()), "version");
    EXPECT_THAT(text_of(frame.dump()),
                AllOf(HasSubstr(std::to_string(version)), HasSubstr("version 1")));
  }
  frame["type"] = "of_the_future";
  EXPECT_EQ(code_of(frame.dump()), "version");
  frame["v"] = "1";
  EXPECT_EQ(code_of(frame.dump()), "malformed");
}

TEST(WireMessages, RefusesUnknownTypesAndGarbage) {
  EXPECT_EQ(code_of(R"({"v":1,"type":"dance"})"), "unknown_type");
  EXPECT_THAT(text_of(R"({"v":1,"type":"dance"})"), HasSubstr("dance"));
  for (const char* frame : {"", "{", "[]", "null", "7", "\"x\"", "{}", "\xff\xfe", "{\"v\":1}"}) {
    EXPECT_EQ(code_of(frame), "malformed") << frame;
  }
  const std::string whole = encode(one_of_each()[2]);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(code_of(whole.substr(0, size)), "malformed") << size;
  }
}

TEST(WireMessages, RefusesWhatIsTooLargeOrTooDeep) {
  EXPECT_EQ(code_of(std::string(kMaxFrameBytes + 1, ' ')), "oversized");
  const std::string deep(kMaxFrameBytes / 2, '[');
  EXPECT_EQ(code_of(deep), "malformed");
  const std::string objects =
      R"({"v":1,"type":"stats","job_id":"j","pid":1,"final":false,"stats":)" + [] {
        std::string text;
        for (int i = 0; i < 1000; ++i) text += "{\"a\":";
        return text + "1" + std::string(1000, '}') + "}";
      }();
  EXPECT_THAT(text_of(objects), HasSubstr("deeper"));
}

TEST(WireMessages, WhatAJobSaysOfItselfCanBeToldWithinAStatus) {
  const auto stats = [](std::size_t depth) {
    json value = 1;
    for (std::size_t i = 0; i < depth; ++i) value = json{{"a", value}};
    return encode(Stats{"j", 1, value, false});
  };
  const auto deepest = std::get<Stats>(decode(stats(16)));
  EXPECT_NO_THROW((void)decode(encode(StatusReply{{{"jobs", {deepest.stats}}}})));
  EXPECT_EQ(text_of(stats(17)), "field 'stats' nests deeper than 16");
}

TEST(WireMessages, ManySmallElementsAreReadAsFastAsFewLargeOnes) {
  // Minutes, if each element that ends looked at the others.
  std::string elements;
  while (elements.size() < 700'000) elements += "{},";
  const std::string stats =
      R"({"v":1,"type":"stats","job_id":"j","pid":1,"final":false,"stats":{"a":[)" + elements +
      "0]}}";
  EXPECT_EQ(std::get<Stats>(decode(stats)).stats["a"].size(), elements.size() / 3 + 1);
}

TEST(WireMessages, EncodesTextThatIsNotUtf8) {
  SetReply reply;
  reply.reason = "caf\xe9";
  EXPECT_NO_THROW((void)decode(encode(reply)));
}

TEST(WireMessages, NoInputCrashesTheDecoder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  const auto messages = one_of_each();
  std::uniform_int_distribution<int> byte{0, 255};
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string frame;
    if (round % 4 == 0) {
      frame.resize(random() % 200);
      std::generate(frame.begin(), frame.end(), [&] { return static_cast<char>(byte(random)); });
    } else {
      frame = encode(messages[random() % messages.size()]);
      for (unsigned change = random() % 4 + 1; change > 0 && !frame.empty(); --change) {
        const std::size_t at = random() % frame.size();
        switch (random() % 3) {
          case 0: frame[at] = static_cast<char>(byte(random)); break;
          case 1: frame.erase(at, random() % 5); break;
          default: frame.insert(at, 1, "{}[]\",:0-9e.ntf\\"[random() % 16]); break;
        }
      }
    }
    try {
      (void)encode(decode(frame));
      ++accepted;
    } catch (const BadMessage& problem) {
      EXPECT_STRNE(problem.what(), "");
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace commensal::wire::wire_messages_test
