// SPDX-License-Identifier: Apache-2.0
// What holders of keys may ask of a coordinator with a real store, and what they see.
#include "coordinator/cluster/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/policies/registry.h"
#include "tests/coordinator/fake_engine.h"
#include "tests/coordinator/hostile_texts.h"
#include "tests/coordinator/key_world.h"
#include "tests/random_operations.h"
#include "tests/sanitizers.h"

namespace commensal::cluster::requests_test {
namespace {

using namespace std::chrono_literals;
using keys::AllowedKey;
using keys::Role;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class NoClasses final : public ClassChanger {
 public:
  void change(const JobRecord& /*job*/, JobClass /*job_class*/) override {}
  std::vector<Outcome> outcomes() override { return {}; }
};

AllowedKey key(const std::string& name, Role role, std::vector<std::string> tenants = {}) {
  return {.name = name,
          .key = {},
          .role = role,
          .tenants = std::move(tenants),
          .created_ms = 0,
          .revoked_ms = std::nullopt};
}

/// Makes requests of which little is as it should be: types, depths, lengths, numbers, letters.
class OddRequests {
 public:
  explicit OddRequests(std::uint64_t seed) : random_(seed) {}

  std::string next() {
    std::string text = R"({"v":1,"type":)" + type();
    for (std::size_t i = below(6); i > 0; --i) text += ',' + name() + ':' + value(0);
    return text + '}';
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  template <std::size_t N>
  std::string one_of(const char* const (&words)[N]) {
    return words[below(N)];
  }
  std::string type() {
    if (below(8) == 0) return value(0);
    return '"' + one_of({"submit", "cancel",   "resume",    "queue",     "explain",
                         "logs",   "read_log", "nodes",     "tenants",   "quota",
                         "drain",  "undrain",  "inputs",    "add_input", "remove_input",
                         "state",  "health",   "heartbeat", "set_class", "finish"}) +
           '"';
  }
  std::string name() {
    return '"' + one_of({"job",       "id",          "tenant",
                         "name",      "class",       "gpus",
                         "command",   "after",       "report",
                         "orders",    "placements",  "jobs",
                         "devices",   "results",     "run",
                         "list",      "number",      "rank",
                         "file",      "offset",      "node",
                         "quota",     "all",         "dataset",
                         "record",    "reason",      "suspects",
                         "step",      "environment", "directory",
                         "estimate",  "gang",        "host_memory_mib",
                         "cpu_milli", "left_out",    "v"}) +
           '"';
  }
  std::string value(int depth) {
    switch (below(depth > 4 ? 9 : 12)) {
      case 0: return one_of({"null", "true", "false"});
      case 1: return std::to_string(static_cast<std::int64_t>(random_()));
      case 2: return one_of({"0", "-1", "1e308", "-1e999", "18446744073709551615", "1.5"});
      case 3: return '"' + std::string(below(64), 'x') + '"';
      case 4: return one_of({R"("1")", R"("n1")", R"("vision")", R"("guaranteed")"});
      case 5:
        return one_of({R"("\u0000")", R"("\ud800")", "\"\xff\"", R"("\u001b[2J")", R"("/..")"});
      case 6: return below(20) == 0 ? '"' + std::string(100'000, 'y') + '"' : "[]";
      case 7: {
        const std::size_t deep = below(20) == 0 ? 200'000 : below(40);
        return std::string(deep, '[') + std::string(below(30) == 0 ? deep / 2 : deep, ']');
      }
      case 8: return below(20) == 0 ? '[' + testing::repeated("{},", 300'000) + "0]" : "{}";
      case 9:
      case 10: {
        std::string text = "{";
        for (std::size_t i = below(6); i > 0; --i) text += name() + ':' + value(depth + 1) + ',';
        return text + R"("x":0})";
      }
      default: {
        std::string text = "[";
        for (std::size_t i = below(6); i > 0; --i) text += value(depth + 1) + ',';
        return text + "0]";
      }
    }
  }

  std::mt19937_64 random_;
};

class RequestsTest : public ::testing::Test {
 protected:
  RequestsTest() : nodes_(world_.nodes = {FakeWorld::make_node("n1", 4)}) {
    for (const char* tenant : {"vision", "speech"}) {
      (void)ask(Caller::owner(), {{"type", "quota"}, {"tenant", tenant}, {"quota", 4}});
    }
  }

  json ask(Caller caller, json request) {
    const Reply reply = answer_request(coordinator_, nodes_told_, caller, std::move(request), now_);
    settle_some();
    return json::parse(reply.text());
  }
  void settle_some() {
    for (int i = 0; i < 5; ++i) {
      now_ += 1ms;
      coordinator_.settle(now_);
    }
  }
  json ask(const AllowedKey& caller, json request) {
    return ask(Caller::of(caller), std::move(request));
  }
  /// "code: what" of a refusal.
  std::string refusal(Caller caller, json request) {
    try {
      (void)ask(caller, std::move(request));
    } catch (const RequestRefused& error) {
      return error.code() + ": " + error.what();
    }
    return "not refused";
  }
  std::string refusal(const AllowedKey& caller, json request) {
    return refusal(Caller::of(caller), std::move(request));
  }
  /// What the coordinator sends back for a frame: whatever it holds, there is an answer.
  std::string answer_to_frame(Caller caller, const std::string& frame) {
    try {
      return answer_request(coordinator_, nodes_told_, caller, read_request({frame}), now_).text();
    } catch (const RequestRefused& refused) {
      return refused.what();
    } catch (const EngineFailed& failed) {
      return failed.what();
    }
  }
  static json submission(const std::string& tenant) {
    return {{"type", "submit"},
            {"job",
             {{"name", "train"},
              {"tenant", tenant},
              {"class", "guaranteed"},
              {"gpus", 1},
              {"cpu_milli", 0},
              {"host_memory_mib", 0},
              {"environment", json::object()},
              {"command", {"train"}},
              {"directory", "/"}}}};
  }
  std::string submit(const AllowedKey& caller, const std::string& tenant) {
    return ask(caller, submission(tenant))["id"];
  }
  static std::vector<std::string> names(const json& list, const char* field) {
    std::vector<std::string> found;
    for (const json& entry : list) found.push_back(entry[field]);
    return found;
  }
  std::string state(const std::string& id) {
    return ask(Caller::owner(), {{"type", "explain"}, {"id", id}})["job"]["state"];
  }

  const AllowedKey ann_ = key("ann", Role::kUser, {"vision"});
  const AllowedKey bob_ = key("bob", Role::kUser, {"speech", "default"});
  const AllowedKey boss_ = key("boss", Role::kOperator);
  const AllowedKey machine_ = key("n1", Role::kNode);

  keys::TestFolder folder_;
  FakeWorld world_;
  std::vector<EngineNode> nodes_;  // there before the engine is
  NoClasses classes_;
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("antman", {});
  std::shared_ptr<spdlog::logger> log_ =
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_st>());
  TimePoint now_{1h};
  Store store_{folder_.path() / "cluster.db"};
  FakeEngine engine_{world_};
  ClusterCoordinator coordinator_{
      {},   store_, engine_, classes_, *policy_, [] { return WallTime{std::chrono::hours{24}}; },
      log_, now_};
  NodeReports reports_;
  NodeOrders orders_{"run"};
  NodePlacements placements_{coordinator_, "run"};
  const Nodes nodes_told_{reports_, orders_, placements_};
};

TEST_F(RequestsTest, AUserActsForItsOwnTenantAlone) {
  const std::string id = submit(ann_, "vision");
  EXPECT_EQ(state(id), "running");
  EXPECT_THAT(refusal(ann_, submission("speech")),
              AllOf(StartsWith("forbidden"), HasSubstr("not for tenant speech")));
  EXPECT_THAT(refusal(ann_, submission("")), HasSubstr("not for tenant default"));
  EXPECT_EQ(state(submit(bob_, "")), "running") << "no tenant is the tenant default";
  for (const char* type : {"cancel", "resume", "explain", "logs", "read_log"}) {
    EXPECT_THAT(refusal(bob_, {{"type", type}, {"id", id}}),
                AllOf(StartsWith("forbidden"), HasSubstr("not for tenant vision")))
        << type;
  }
  EXPECT_EQ(state(id), "running");
  EXPECT_THAT(refusal(ann_, {{"type", "resume"}, {"id", id}}), HasSubstr("is not parked"));
  (void)ask(ann_, {{"type", "cancel"}, {"id", id}});
  EXPECT_EQ(state(id), "cancelled");
  EXPECT_THAT(refusal(bob_, {{"type", "explain"}, {"id", id}}), StartsWith("forbidden"))
      << "ended jobs are their tenant's as well";
}

TEST_F(RequestsTest, AJobOfAnotherTenantIsNotFollowed) {
  const std::string id = submit(ann_, "vision");
  json after = submission("speech");
  after["job"]["after"] = id;
  EXPECT_THAT(refusal(bob_, after), AllOf(StartsWith("forbidden"), HasSubstr("tenant vision")));
  after["job"]["after"] = "99";
  EXPECT_THAT(refusal(bob_, after), StartsWith("unknown_job"));
}

TEST_F(RequestsTest, AUserDoesNotSteerTheCluster) {
  for (const json& request :
       std::vector<json>{{{"type", "quota"}, {"tenant", "vision"}, {"quota", 100}},
                         {{"type", "drain"}, {"node", "n1"}},
                         {{"type", "undrain"}, {"node", "n1"}},
                         {{"type", "heartbeat"}, {"report", json::object()}},
                         {{"type", "no such thing"}},
                         json::object()}) {
    EXPECT_THAT(refusal(ann_, request), StartsWith("forbidden")) << request.dump();
    EXPECT_THAT(refusal(machine_, {{"type", request.value("type", "") + "x"}}),
                StartsWith("forbidden"));
  }
  const json tenants = ask(boss_, {{"type", "tenants"}})["tenants"];
  for (const json& tenant : tenants) EXPECT_NE(tenant["quota"], 100);
}

TEST_F(RequestsTest, AnOperatorDoesEverything) {
  const std::string id = submit(ann_, "vision");
  (void)ask(boss_, {{"type", "quota"}, {"tenant", "robots"}, {"quota", 2}});
  (void)ask(boss_, {{"type", "drain"}, {"node", "n1"}});
  (void)ask(boss_, {{"type", "cancel"}, {"id", id}});
  EXPECT_EQ(state(id), "cancelled");
  EXPECT_THAT(names(ask(boss_, {{"type", "tenants"}})["tenants"], "name"),
              UnorderedElementsAre("default", "vision", "speech", "robots"));
}

TEST_F(RequestsTest, AUserSeesItsOwnTenantsAlone) {
  const std::string vision = submit(ann_, "vision");
  const std::string speech = submit(bob_, "speech");
  const std::string ended = submit(bob_, "speech");
  (void)ask(bob_, {{"type", "cancel"}, {"id", ended}});
  EXPECT_THAT(names(ask(ann_, {{"type", "queue"}})["jobs"], "id"), ElementsAre(vision));
  EXPECT_THAT(names(ask(bob_, {{"type", "queue"}, {"all", true}})["jobs"], "id"),
              UnorderedElementsAre(speech, ended));
  EXPECT_THAT(names(ask(boss_, {{"type", "queue"}})["jobs"], "id"),
              UnorderedElementsAre(vision, speech));
  EXPECT_THAT(names(ask(ann_, {{"type", "tenants"}})["tenants"], "name"), ElementsAre("vision"));
}

TEST_F(RequestsTest, ANodeReportsUnderTheNameOfItsKey) {
  const json report{
      {"devices", json::array()},
      {"jobs",
       {{{"id", "a"}, {"tenant", "vision"}}, {{"id", "b"}, {"tenant", "speech"}}, {{"id", "c"}}}},
      {"name", "somebody-else"}};
  const json beat{{"type", "heartbeat"}, {"report", report}};
  EXPECT_EQ(ask(machine_, beat), json::object());
  (void)ask(key("n7", Role::kNode), beat);
  const json all = ask(boss_, {{"type", "nodes"}})["nodes"];
  EXPECT_THAT(names(all, "name"), ElementsAre("n1", "n7"));
  EXPECT_EQ(all[0]["report"]["jobs"].size(), 3U);
  const json seen = ask(ann_, {{"type", "nodes"}})["nodes"];
  EXPECT_THAT(names(seen[0]["report"]["jobs"], "id"), ElementsAre("a"));
  EXPECT_THAT(names(seen[1]["report"]["jobs"], "id"), ElementsAre("a"));
  for (const AllowedKey& other : {ann_, boss_}) {
    EXPECT_THAT(refusal(other, beat), StartsWith("forbidden"));
  }
  EXPECT_THAT(refusal(Caller::owner(), beat), AllOf(StartsWith("forbidden"), HasSubstr("key")));
  EXPECT_THAT(refusal(machine_, {{"type", "heartbeat"}, {"report", 7}}), StartsWith("malformed"));
  EXPECT_THAT(refusal(machine_, {{"type", "heartbeat"}}), StartsWith("malformed"));
}

json beat_with(json orders, const std::string& job = "train") {
  return {{"type", "heartbeat"},
          {"report", {{"devices", json::array()}, {"jobs", json::array({{{"id", job}}})}}},
          {"orders", std::move(orders)}};
}

TEST_F(RequestsTest, AnOperatorsOrderGoesOutWithTheNodesAnswersAndItsResultComesBack) {
  const json nothing{{"beat", 1U}, {"run", "run"}, {"results", json::array()}};
  const json order{
      {"type", "set_class"}, {"node", "n1"}, {"job", "train"}, {"class", "guaranteed"}};
  EXPECT_THAT(refusal(boss_, order), HasSubstr("unavailable: node n1 does not report"));
  EXPECT_EQ(ask(machine_, beat_with(nothing))["orders"]["list"], json::array());
  EXPECT_EQ(ask(boss_, order)["outcome"], "deferred");
  const json told = ask(machine_, beat_with(nothing))["orders"];
  ASSERT_EQ(told["list"].size(), 1U);
  EXPECT_EQ(told["list"][0]["job"], "train");
  json results = nothing;
  results["results"].push_back(
      {{"number", told["list"][0]["number"]}, {"outcome", "refused"}, {"reason", "never"}});
  EXPECT_EQ(ask(key("n2", Role::kNode), beat_with(results))["orders"]["list"], json::array());
  EXPECT_EQ(ask(boss_, order)["outcome"], "deferred") << "another node's word is none";
  EXPECT_EQ(ask(machine_, beat_with(results))["orders"]["list"], json::array());
  const json done = ask(Caller::owner(), order);
  EXPECT_EQ(done["outcome"], "refused");
  EXPECT_EQ(done["reason"], "never");
}

TEST_F(RequestsTest, OrdersAreForOperatorsAndNotForTheClustersOwnJobs) {
  const std::string id = submit(ann_, "vision");
  const json nothing{{"beat", 1U}, {"run", "run"}, {"results", json::array()}};
  (void)ask(machine_, beat_with(nothing, "job-" + id + ".1"));
  json order{{"type", "set_class"},
             {"node", "n1"},
             {"job", "job-" + id + ".1"},
             {"class", "opportunistic"}};
  EXPECT_THAT(refusal(boss_, order), HasSubstr("refused: job-1.1 is the cluster's job 1"));
  for (const AllowedKey& other : {ann_, machine_}) {
    EXPECT_THAT(refusal(other, order), StartsWith("forbidden"));
  }
  order["class"] = "king";
  EXPECT_THAT(refusal(boss_, order), HasSubstr("opportunistic\": \"king\""));
  order.erase("job");
  EXPECT_THAT(refusal(boss_, order), StartsWith("malformed"));
  EXPECT_EQ(orders_.size(), 0U);
}

TEST_F(RequestsTest, ANodeIsToldItsPlacementsOnceAndOperatorsSeeThatItKnowsThem) {
  const auto beat = [](std::uint64_t number, const std::string& run) {
    return json{{"type", "heartbeat"},
                {"report", {{"devices", json::array()}, {"jobs", json::array()}}},
                {"placements", {{"beat", 1U}, {"run", run}, {"number", number}}}};
  };
  const auto shown = [this](std::size_t node) {
    return ask(boss_, {{"type", "nodes"}})["nodes"][node]["report"]["placements"];
  };
  const std::string id = submit(ann_, "vision");
  const json first = ask(machine_, beat(0, ""))["placements"];
  ASSERT_EQ(first["list"].size(), 1U);
  EXPECT_EQ(first["list"][0]["id"], "job-" + id + ".1");
  EXPECT_EQ(first["list"][0]["tenant"], "vision");
  EXPECT_EQ(shown(0), (json{{"number", first["number"]}, {"known", 0}}));
  const json again = ask(machine_, beat(first["number"], "run"))["placements"];
  EXPECT_FALSE(again.contains("list"));
  EXPECT_EQ(shown(0)["known"], first["number"]);
  // A node that the engine does not have has nothing placed on it.
  EXPECT_EQ(ask(key("n7", Role::kNode), beat(0, ""))["placements"]["list"], json::array());
  (void)ask(boss_, {{"type", "cancel"}, {"id", id}});
  world_.tick();
  settle_some();
  const json last = ask(machine_, beat(first["number"], "run"))["placements"];
  EXPECT_GT(last["number"], first["number"]);
  EXPECT_EQ(last["list"], json::array());
}

TEST_F(RequestsTest, AHeartbeatWithWrongPlacementsIsRefusedAsAWhole) {
  json wrong = beat_with({{"beat", 1U}, {"run", ""}, {"results", json::array()}});
  for (const json& bad : {json(7), json::array(), json{{"beat", 1U}, {"run", ""}},
                          json{{"beat", 1U}, {"run", "run"}, {"number", 99U}}}) {
    wrong["placements"] = bad;
    EXPECT_THAT(refusal(machine_, wrong), StartsWith("malformed")) << bad;
  }
  EXPECT_EQ(reports_.size(), 0U);
  EXPECT_EQ(placements_.size(), 0U);
  EXPECT_THAT(orders_.why_not("n1", "train"), HasSubstr("does not report")) << "nothing of it";
}

TEST_F(RequestsTest, AHeartbeatWithWrongResultsIsRefusedAsAWhole) {
  for (const json& bad : {json(7), json::array(), json{{"beat", "x"}}}) {
    EXPECT_THAT(refusal(machine_, beat_with(bad)), StartsWith("malformed")) << bad;
  }
  EXPECT_EQ(reports_.size(), 0U);
  const json nothing{{"beat", 1U}, {"run", ""}, {"results", json::array()}};
  json no_report = beat_with(nothing);
  no_report["report"] = 7;
  EXPECT_THAT(refusal(machine_, no_report), StartsWith("malformed"));
  EXPECT_THAT(orders_.why_not("n1", "train"), HasSubstr("does not report"));
}

TEST_F(RequestsTest, OnlyReportsLeaveNothingToWrite) {
  EXPECT_TRUE(is_report({{"type", "heartbeat"}}));
  EXPECT_FALSE(is_report({{"type", "submit"}}));
  EXPECT_FALSE(is_report({{"type", 7}}));
  EXPECT_FALSE(is_report(json::object()));
}

TEST_F(RequestsTest, QuestionsAreKnownAndNothingElseIsOne) {
  for (const char* type : {"queue", "explain", "logs", "read_log", "nodes", "tenants", "inputs",
                           "state", "health", "heartbeat"}) {
    EXPECT_TRUE(is_question({{"type", type}})) << type;
  }
  for (const char* type : {"submit", "cancel", "quota", "drain", "undrain", "backup", "report_loss",
                           "report_input", "add_input", "remove_input", "no such thing", ""}) {
    EXPECT_FALSE(is_question({{"type", type}})) << type;
  }
  EXPECT_FALSE(is_question({{"type", 7}}));
  EXPECT_FALSE(is_question(json::array()));
}

TEST_F(RequestsTest, AReplyWithJobsIsOneObject) {
  const auto parsed = [](const Reply& reply) { return json::parse(reply.text()); };
  EXPECT_EQ(parsed({json::object(), "[]"}), json::parse(R"({"jobs":[]})"));
  EXPECT_EQ(parsed({{{"v", 1}, {"type", "queue"}}, R"([{"id":"1"}])"}),
            json::parse(R"({"jobs":[{"id":"1"}],"type":"queue","v":1})"));
  EXPECT_EQ(parsed({{{"what", "a\xff"}}}), json::parse(R"({"what":"a\ufffd"})")) << "no UTF-8";
}

TEST_F(RequestsTest, AQueueIsTheSameWrittenAndAsked) {
  for (int i = 0; i < 6; ++i)
    (void)ask(Caller::owner(), submission(i % 2 == 0 ? "vision" : "speech"));
  (void)ask(Caller::owner(), {{"type", "cancel"}, {"id", "1"}});
  for (const bool all : {false, true}) {
    const json request{{"type", "queue"}, {"all", all}};
    EXPECT_EQ(ask(Caller::owner(), request), coordinator_.answer(request, now_));
  }
  EXPECT_THAT(refusal(Caller::owner(), {{"type", "queue"}, {"all", 7}}), HasSubstr("malformed"));
}

TEST_F(RequestsTest, QuestionsLeaveTheCoordinatorAsItIs) {
  (void)ask(key("ann", Role::kUser, {"vision"}), submission("vision"));
  const std::uint64_t before = coordinator_.revision();
  for (const char* type : {"queue", "tenants", "nodes", "state", "health", "inputs"}) {
    (void)answer_request(coordinator_, nodes_told_, Caller::owner(), {{"type", type}}, now_);
  }
  for (const char* type : {"explain", "logs", "read_log"}) {
    (void)answer_request(coordinator_, nodes_told_, Caller::owner(), {{"type", type}, {"id", "1"}},
                         now_);
  }
  EXPECT_EQ(coordinator_.revision(), before);
}

TEST_F(RequestsTest, RequestsThatAreNoneChangeNothing) {
  const json before = ask(Caller::owner(), {{"type", "queue"}, {"all", true}});
  for (const AllowedKey& caller : {ann_, boss_}) {
    for (const json& bad : std::vector<json>{{{"type", "submit"}},
                                             {{"type", "submit"}, {"job", 7}},
                                             {{"type", "submit"}, {"job", {{"tenant", 7}}}},
                                             {{"type", "cancel"}},
                                             {{"type", "cancel"}, {"id", 7}},
                                             {{"type", "cancel"}, {"id", "none"}},
                                             {{"type", 7}},
                                             json::object()}) {
      const std::string refused = refusal(caller, bad);
      EXPECT_NE(refused, "not refused") << bad.dump();
    }
  }
  EXPECT_EQ(ask(Caller::owner(), {{"type", "queue"}, {"all", true}}), before);
}

TEST_F(RequestsTest, LongAndNestedMessagesAreAnsweredWhereverTheyHideIt) {
  std::vector<std::string> frames;
  for (const auto& [what, text] : testing::long_texts(std::size_t{1} << 17U)) {
    frames.push_back(R"({"v":)" + text + '}');
    frames.push_back(R"({"v":1,"type":)" + text + '}');
    frames.push_back(R"({"v":1,"type":"submit","job":)" + text + '}');
    frames.push_back(R"({"v":1,"type":"submit","job":{"environment":)" + text + "}}");
    frames.push_back(R"({"v":1,"type":"heartbeat","report":)" + text + '}');
    frames.push_back(R"({"v":1,"type":"heartbeat","report":{},"placements":)" + text + '}');
    frames.push_back(R"({"v":1,"type":"set_class","node":"n1","class":"guaranteed","job":)" + text +
                     '}');
  }
  for (const std::string& frame : frames) {
    for (const Caller caller : {Caller::of(boss_), Caller::of(machine_)}) {
      testing::on_a_small_stack(
          [&] { EXPECT_NE(answer_to_frame(caller, frame), "") << frame.substr(0, 60); });
    }
  }
}

TEST_F(RequestsTest, OddMessagesAreAnsweredWithoutGrowth) {
  const std::uint64_t most = fuzz_operations(1'000, 1'000);
  OddRequests odd{fuzz_seed()};
  const std::vector<Caller> callers{Caller::owner(), Caller::of(ann_), Caller::of(boss_),
                                    Caller::of(machine_)};
  const auto in_use = [] { return mallinfo2().uordblks; };
  std::size_t before = 0;
  for (std::uint64_t i = 0; i < most; ++i) {
    if (i == most / 2) before = in_use();
    const std::string frame = odd.next();
    std::string answer;
    testing::on_a_small_stack(
        [&] { answer = answer_to_frame(callers[i % callers.size()], frame); });
    ASSERT_NE(answer, "") << frame.substr(0, 1000);
    if (i % 16 == 0) settle_some();
  }
  // What an operator may do, an odd message may have done.
  (void)ask(Caller::owner(), {{"type", "undrain"}, {"node", "n1"}});
  (void)ask(Caller::owner(), {{"type", "quota"}, {"tenant", "vision"}, {"quota", 4}});
  EXPECT_EQ(state(submit(ann_, "vision")), "running") << "the others are served as before";
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer keeps freed memory";
  EXPECT_LT(in_use(), before + (std::size_t{4} << 20U));
}

TEST_F(RequestsTest, OutputComesInPartsAsItIs) {
  const std::string id = submit(ann_, "vision");
  const std::filesystem::path file = folder_.path() / "rank-0";
  world_.logs[{JobId{id}, 1}] = {file.native()};
  std::string bytes;
  for (int i = 0; i < 300'000; ++i) bytes += static_cast<char>(i % 256);
  keys::write_text(file, bytes);
  std::string text;
  json question{{"type", "read_log"}, {"id", id}, {"rank", 0}};
  int parts = 0;
  for (bool more = true; more; ++parts) {
    const json answer = ask(ann_, question);
    EXPECT_EQ(answer["ranks"], 1);
    EXPECT_FALSE(answer.contains("files")) << "where it lies is the coordinator's alone";
    text += answer["text"].get<std::string>();
    question["file"] = answer["file"];
    question["offset"] = answer["offset"];
    more = answer["more"];
  }
  EXPECT_GT(parts, 1);
  // Each character is a byte: of those above 127 UTF-8 has two.
  std::string back;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80U) {
      back += text[i];
    } else {
      ++i;
      back +=
          static_cast<char>((first & 3U) << 6U | (static_cast<unsigned char>(text.at(i)) & 63U));
    }
  }
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(ask(ann_, {{"type", "read_log"}, {"id", id}, {"rank", 5}})["text"], "");
  EXPECT_THAT(refusal(ann_, {{"type", "read_log"}, {"id", id}, {"rank", "x"}}),
              StartsWith("malformed"));
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_THAT(refusal(ann_, {{"type", "read_log"}, {"id", id}}),
              AllOf(StartsWith("unavailable"), HasSubstr("rank-0")));
}

TEST_F(RequestsTest, AUserReportsAndListsBadInputsOfItsTenantsAlone) {
  EXPECT_EQ(ask(ann_, {{"type", "add_input"}, {"tenant", "vision"}, {"record", "r"}})["listed"],
            true);
  EXPECT_EQ(ask(ann_, {{"type", "inputs"}, {"tenant", "vision"}})["inputs"].size(), 1U);
  for (const char* type : {"inputs", "add_input", "remove_input"}) {
    const json request{{"type", type}, {"tenant", "vision"}, {"record", "r"}};
    EXPECT_THAT(refusal(bob_, request), StartsWith("forbidden: the key 'bob' acts for speech"));
    EXPECT_THAT(refusal(machine_, request), StartsWith("forbidden: a node only reports"));
  }
  EXPECT_THAT(refusal(ann_, {{"type", "inputs"}}), HasSubstr("not for tenant default"));
  const std::string id = submit(boss_, "vision");
  const json report{{"type", "report_input"}, {"id", id}, {"record", "q"}};
  EXPECT_THAT(refusal(bob_, report), StartsWith("forbidden: "));
  EXPECT_EQ(ask(ann_, report)["listed"], true);
}

}  // namespace
}  // namespace commensal::cluster::requests_test
