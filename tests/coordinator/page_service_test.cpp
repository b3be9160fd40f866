// SPDX-License-Identifier: Apache-2.0
// The page beside a coordinator: what is put up, when, and what comes back; the coordinator is
// real, its engine a fake one, its page is asked over HTTP.
#include "coordinator/cluster/page_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/command_line.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/fake_engine.h"

namespace commensal::cluster::page_service_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class NoClasses final : public ClassChanger {
 public:
  void change(const JobRecord& /*job*/, JobClass /*job_class*/) override {}
  std::vector<Outcome> outcomes() override { return {}; }
};

class PageServiceTest : public ::testing::Test {
 protected:
  PageServiceTest() {
    folder_ = std::filesystem::temp_directory_path() /
              ("commensal-page-" + std::to_string(getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    world_.nodes = {FakeWorld::make_node("n1", 2), FakeWorld::make_node("n2", 2)};
    open();
  }
  ~PageServiceTest() override {
    close();
    std::filesystem::remove_all(folder_);
  }

  void open() {
    page_.emplace(
        options_, folder_, "1.2.3", [this] { return node_status_; }, log_);
    store_ = std::make_unique<Store>(folder_ / "cluster.db");
    engine_ = std::make_unique<FakeEngine>(world_);
    ClusterConfig config;
    config.pid = 42;
    config.page = page_->url();
    config.observer = &*page_;
    coordinator_ = std::make_unique<ClusterCoordinator>(
        config, *store_, *engine_, classes_, *policy_, [this] { return wall_; }, log_, now_);
    step();
  }
  void close() {
    page_.reset();
    coordinator_.reset();
    engine_.reset();
    store_.reset();
  }

  /// One turn of the daemon's loop.
  void step() {
    now_ += 1ms;
    wall_ += 1ms;
    auto changes = page_->take();
    for (auto& [number, request] : changes) request = answer(request);
    coordinator_->settle(now_);
    page_->publish(*coordinator_, now_, [this] {
      ++reports_made_;
      return reports_;
    });
    for (auto& [number, answer] : changes) page_->answer(number, std::move(answer));
  }
  json answer(const json& request) {
    json answer;
    try {
      answer = coordinator_->answer(request, now_);
      answer["type"] = request["type"];
    } catch (const RequestRefused& error) {
      answer = {{"type", "error"}, {"code", error.code()}, {"what", error.what()}};
    }
    page_->count(request, answer);
    return answer;
  }
  json ask(const json& request) {
    json told = answer(request);
    for (int i = 0; i < 5; ++i) step();
    return told;
  }
  std::string submit(const std::string& name, int gpus = 1,
                     const std::string& asked = "guaranteed") {
    return ask({{"type", "submit"},
                {"job",
                 {{"name", name},
                  {"tenant", "default"},
                  {"class", asked},
                  {"gpus", gpus},
                  {"cpu_milli", 0},
                  {"host_memory_mib", 0},
                  {"environment", json::object()},
                  {"command", {"train"}},
                  {"directory", "/"}}}})["id"];
  }

  /// Turns the loop until a client has its answer.
  template <typename Call>
  httplib::Result serve(const Call& call) {
    auto result = std::async(std::launch::async, [&] {
      httplib::Client client{"http://127.0.0.1:" + port()};
      client.set_read_timeout(60);
      return call(client);
    });
    while (result.wait_for(0s) != std::future_status::ready) {
      pollfd woken{page_->descriptor(), POLLIN, 0};
      (void)::poll(&woken, 1, 1);
      step();
    }
    return result.get();
  }
  json get(const std::string& path) {
    const auto answer = serve([&](httplib::Client& client) { return client.Get(path); });
    EXPECT_TRUE(answer);
    return json::parse(answer->body);
  }
  std::string metrics() {
    return serve([&](httplib::Client& client) { return client.Get("/metrics"); })->body;
  }
  std::pair<int, json> post(const json& request) {
    const auto answer = serve([&](httplib::Client& client) {
      return client.Post("/api/v1/requests", {{"Authorization", "Bearer " + token()}},
                         request.dump(), "application/json");
    });
    return {answer->status, json::parse(answer->body)};
  }
  [[nodiscard]] std::string port() const {
    const std::string url = page_->url();
    return url.substr(url.rfind(':') + 1, url.size() - url.rfind(':') - 2);
  }
  [[nodiscard]] std::string token() const {
    std::string text;
    std::ifstream{page_->token_file()} >> text;
    return text;
  }

  std::filesystem::path folder_;
  PageOptions options_;
  std::string node_status_ = R"({"jobs": []})";
  json reports_ = {{"nodes", json::array()}, {"left_out", 0}};
  int reports_made_ = 0;
  FakeWorld world_;
  NoClasses classes_;
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("antman", {});
  std::shared_ptr<spdlog::logger> log_ =
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>());
  TimePoint now_{1h};
  WallTime wall_{std::chrono::hours{24}};
  std::optional<PageService> page_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<ClusterCoordinator> coordinator_;
};

TEST_F(PageServiceTest, ThePageShowsWhatIs) {
  (void)ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 3}});
  const std::string runs = submit("first", 2);
  const std::string waits = submit("too-much", 4);
  const json state = get("/api/v1/state");
  EXPECT_EQ(state["coordinator"]["pid"], 42);
  EXPECT_EQ(state["coordinator"]["page"], page_->url());
  ASSERT_EQ(state["jobs"].size(), 2U);
  EXPECT_EQ(state["jobs"][0]["id"], runs) << "those that are placed first";
  EXPECT_EQ(state["jobs"][0]["class"], "guaranteed");
  EXPECT_EQ(state["jobs"][1]["id"], waits);
  EXPECT_NE(state["jobs"][1]["reason"], "");
  EXPECT_NE(state["jobs"][1]["estimate"]["words"], "");
  EXPECT_EQ(state["nodes"].size(), 2U);
  EXPECT_EQ(state["tenants"][1]["name"], "vision");
  EXPECT_EQ(state["tenants"][1]["quota"], 3);
  EXPECT_EQ(state["summary"]["waiting"], 1);
  EXPECT_EQ(state["summary"]["devices"]["guaranteed"], 2);
  EXPECT_EQ(state["summary"]["devices"]["free"], 2);
  EXPECT_EQ(state["node"]["status"], json::parse(node_status_));
  std::vector<std::string> to;
  for (const json& event : state["events"]) {
    if (event["job"] == runs) to.push_back(event["to"]);
  }
  EXPECT_THAT(to, ElementsAre("submitted", "queued", "starting", "running"));
}

TEST_F(PageServiceTest, AnAnswerIsOfNowAndNothingNewIsNoVersion) {
  const auto first = get("/api/v1/jobs");
  EXPECT_EQ(get("/api/v1/jobs"), first);
  const std::string id = submit("job");
  const auto second = get("/api/v1/jobs");
  EXPECT_GT(second["version"], first["version"]);
  EXPECT_EQ(second["jobs"][0]["id"], id);
  world_.end({JobId{id}, 1}, 0);
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(get("/api/v1/jobs")["jobs"][0]["state"], "finished");
}

TEST_F(PageServiceTest, ReportsAreShownAsTheyAreNowAndMadeForThoseWhoLook) {
  reports_["nodes"].push_back({{"name", "n3"}});
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(reports_made_, 0);
  EXPECT_EQ(get("/api/v1/reports")["reports"], reports_);
  reports_["left_out"] = 7;
  EXPECT_EQ(get("/api/v1/state")["reports"]["left_out"], 7);
}

TEST_F(PageServiceTest, WithoutSomebodyWhoLooksNothingIsMade) {
  (void)get("/api/v1/state");
  const std::uint64_t before = coordinator_->revision();
  (void)submit("job");
  EXPECT_GT(coordinator_->revision(), before);
  EXPECT_GT(page_->next_wake(), now_ + 1s) << "but for the history nobody waits for it";
}

TEST_F(PageServiceTest, WhatWasIsKnownAlsoOfWhenNobodyLooked) {
  (void)submit("first", 2);
  (void)submit("too-much", 4);
  EXPECT_LE(page_->next_wake(), now_ + page::LoadHistory::kStep) << "it comes back for it";
  now_ = page_->next_wake();
  wall_ += 5s;
  step();
  EXPECT_EQ(page_->next_wake(), TimePoint::max()) << "once";
  now_ += 1min;
  (void)submit("beside", 1, "opportunistic");
  const json load = get("/api/v1/load")["load"];
  ASSERT_EQ(load.size(), 3U);
  const auto counts = [](const json& point) {
    return std::array{point["guaranteed"], point["opportunistic"], point["waiting"]};
  };
  EXPECT_EQ(counts(load[0]), (std::array<json, 3>{0, 0, 0}));
  EXPECT_EQ(counts(load[1]), (std::array<json, 3>{1, 0, 1}));
  EXPECT_EQ(counts(load[2]), (std::array<json, 3>{1, 1, 1}));
  EXPECT_GE(load[1]["at_ms"].get<std::int64_t>() - load[0]["at_ms"].get<std::int64_t>(), 5000);
}

TEST_F(PageServiceTest, AListenerIsToldSoonAndNotForEachChange) {
  std::atomic<int> events = 0;
  std::atomic<bool> seen = false;
  auto listens = std::async(std::launch::async, [&] {
    httplib::Client client{"http://127.0.0.1:" + port()};
    client.set_read_timeout(60);
    std::string all;
    (void)client.Get("/api/v1/live", [&](const char* data, std::size_t size) {
      all.append(data, size);
      if (std::string_view{data, size}.find("event: state") != std::string_view::npos) ++events;
      seen = all.find("the-last") != std::string::npos;
      return !seen;
    });
  });
  while (events == 0) step();
  for (int i = 0; i < 50; ++i) (void)submit("job-" + std::to_string(i));
  // If all is told just now, it comes back for what nodes report alone.
  for (int i = 0; i < 1000 && page_->next_wake() > now_ + 250ms; ++i) (void)submit("one-more");
  EXPECT_LE(page_->next_wake(), now_ + 250ms) << "the loop comes back for it";
  (void)submit("the-last");
  while (!seen) {
    now_ += 50ms;
    step();
  }
  listens.get();
  EXPECT_LT(events, 20) << "50 changes of several steps each";
}

TEST_F(PageServiceTest, ChangesAreAnsweredOnceTheyAreDurable) {
  const std::string id = submit("job");
  EXPECT_EQ(post({{"type", "quota"}, {"tenant", "default"}, {"quota", 0}}).first, 409)
      << "below use";
  const auto [status, told] = post({{"type", "cancel"}, {"id", id}, {"reason", "on the page"}});
  EXPECT_EQ(status, 200);
  EXPECT_EQ(told["id"], id);
  EXPECT_TRUE(store_->job(JobId{id})->cancel_asked);
  EXPECT_EQ(post({{"type", "cancel"}, {"id", "77"}}).first, 404);
  EXPECT_EQ(post({{"type", "resume"}, {"id", id}}).first, 409) << "it is not parked";
  EXPECT_EQ(post({{"type", "quota"}, {"tenant", "x"}, {"quota", "many"}}).first, 400);
  EXPECT_EQ(post({{"type", "drain"}, {"node", "n2"}, {"reason", "disk"}}).first, 200);
  EXPECT_EQ(get("/api/v1/nodes")["nodes"][1]["state"], "drained");
  EXPECT_EQ(post({{"type", "undrain"}, {"node", "n2"}}).first, 200);
  EXPECT_EQ(get("/api/v1/nodes")["nodes"][1]["state"], "up");
}

TEST_F(PageServiceTest, MetricsFollowTheCoordinator) {
  const std::string id = submit("job");
  (void)submit("too-much", 4);
  (void)ask({{"type", "nonsense"}});
  EXPECT_THAT(
      metrics(),
      AllOf(HasSubstr("commensal_jobs{class=\"guaranteed\",state=\"running\"} 1\n"),
            HasSubstr("commensal_queue_length 1\n"),
            HasSubstr("commensal_devices{state=\"guaranteed\"} 1\n"),
            HasSubstr("commensal_tenant_guaranteed_devices{tenant=\"default\"} 1\n"),
            HasSubstr("commensal_requests_total{result=\"ok\",type=\"submit\"} 2\n"),
            HasSubstr("commensal_requests_total{result=\"unknown_type\",type=\"unknown\"} 1"),
            HasSubstr("commensal_queue_wait_seconds_count{class=\"guaranteed\"} 1\n"),
            Not(HasSubstr("commensal_decision_seconds_count 0\n")),
            Not(HasSubstr("commensal_store_write_seconds_count 0\n"))));
  world_.end({JobId{id}, 1}, 3);
  for (int i = 0; i < 3; ++i) step();
  EXPECT_THAT(metrics(), AllOf(HasSubstr("commensal_jobs_ended_total{state=\"failed\"} 1\n"),
                               HasSubstr("commensal_queue_length 0\n"),
                               HasSubstr("commensal_devices{state=\"guaranteed\"} 4\n")));
}

TEST_F(PageServiceTest, StepsThatWriteNothingAreNotMeasuredAsWrites) {
  (void)submit("job");
  const auto writes = [this] {
    const std::string text = metrics();
    const std::size_t at = text.find("commensal_store_write_seconds_count ");
    return text.substr(at, text.find('\n', at) - at);
  };
  const std::string before = writes();
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(writes(), before);
}

TEST_F(PageServiceTest, AnEngineThatCannotBeAskedIsTold) {
  world_.fail(EngineCall::kNodes, Moment::kBefore, 1000);
  now_ += 10s;
  step();
  EXPECT_THAT(get("/api/v1/coordinator")["coordinator"]["problem"], HasSubstr("told to fail"));
  EXPECT_THAT(metrics(), AllOf(HasSubstr("commensal_engine_problem 1\n"),
                               HasSubstr("commensal_engine_problems_total 1\n")));
  now_ += 10s;
  step();
  EXPECT_THAT(metrics(), HasSubstr("commensal_engine_problems_total 1\n")) << "still the same one";
  world_.no_more_faults();
  now_ += 10s;
  step();
  EXPECT_EQ(get("/api/v1/coordinator")["coordinator"]["problem"], "");
  EXPECT_THAT(metrics(), HasSubstr("commensal_engine_problem 0\n"));
}

TEST_F(PageServiceTest, TheNextOneHasThePortAndTheTokenOfBefore) {
  const std::string url = page_->url();
  const std::string before = token();
  close();
  open();
  EXPECT_EQ(page_->url(), url);
  EXPECT_EQ(token(), before);
  close();
  std::ofstream{folder_ / "page-port"} << "no port";
  open();
  EXPECT_NE(page_->url(), "");
}

TEST_F(PageServiceTest, WhatNobodyAskedForStopsNothing) {
  close();
  std::ofstream{folder_ / "page-token"} << "guess";
  open();
  EXPECT_EQ(page_->url(), "");
  (void)submit("job");
  EXPECT_TRUE(world_.runs({JobId{"1"}, 1}));
}

TEST_F(PageServiceTest, ATokenThatCannotBeUsedIsSaid) {
  page_.reset();
  options_.required = true;
  std::ofstream{folder_ / "page-token"} << "guess";
  try {
    const PageService page{options_, folder_, "1", [] { return std::string{}; }, log_};
    ADD_FAILURE() << "anybody could guess it";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr((folder_ / "page-token").native()));
  }
}

TEST_F(PageServiceTest, WithoutAPageNothingIsOpened) {
  close();
  options_.address.reset();
  std::filesystem::remove(folder_ / "page-token");
  open();
  (void)submit("job");
  EXPECT_EQ(page_->url(), "");
  EXPECT_EQ(page_->token_file(), "");
  EXPECT_EQ(page_->next_wake(), TimePoint::max());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "page-token"));
}

TEST_F(PageServiceTest, APictureShowsSoMuchAndTheNumbersOfAll) {
  for (int i = 0; i < 6; ++i) (void)submit("job-" + std::to_string(i));
  world_.end({JobId{"1"}, 1}, 0);
  world_.end({JobId{"2"}, 1}, 0);
  for (int i = 0; i < 3; ++i) step();  // 3 to 6 run
  for (int i = 6; i < 9; ++i) (void)submit("job-" + std::to_string(i));
  const json picture = coordinator_->picture({.placed = 2, .waiting = 1, .ended = 1, .events = 3});
  std::vector<std::string> ids;
  for (const json& job : picture["jobs"]) ids.push_back(job["id"]);
  EXPECT_THAT(ids, ElementsAre("3", "4", "7", "2"));
  EXPECT_EQ(picture["events"].size(), 3U);
  EXPECT_LT(picture["events"][0]["number"], picture["events"][2]["number"]);
  EXPECT_EQ(picture["events"][2]["job"], "9");
  EXPECT_EQ(picture["summary"]["waiting"], 3);
  int running = 0;
  for (const json& entry : picture["summary"]["jobs"]) {
    if (entry["state"] == "running") running += entry["count"].get<int>();
  }
  EXPECT_EQ(running, 4);
  EXPECT_EQ(picture["summary"]["devices"]["free"], 0);
}

TEST(PageOptionsTest, HttpIsAnAddressOrOff) {
  const auto read = [](std::vector<std::string> words) {
    return parse_command_line(std::move(words), "1");
  };
  EXPECT_EQ(read({}).options->page.address, (page::Address{"127.0.0.1", 0}));
  EXPECT_FALSE(read({}).options->page.required);
  EXPECT_TRUE(read({"--http", "127.0.0.1:0"}).options->page.required);
  EXPECT_EQ(read({"--http", "off"}).options->page.address, std::nullopt);
  const auto line = read({"--http", "[::1]:8100", "--http-host", "head:80", "--http-host", "b:1"});
  EXPECT_EQ(line.options->page.address, (page::Address{"::1", 8100}));
  EXPECT_THAT(line.options->page.hosts, ElementsAre("head:80", "b:1"));
  for (const char* wrong : {"8100", "localhost", "127.0.0.1:x", "on", ""}) {
    const auto refused = read({"--http", wrong});
    EXPECT_FALSE(refused.options) << wrong;
    EXPECT_EQ(refused.code, node::ExitCode::kUsage);
    EXPECT_THAT(refused.text, HasSubstr(std::string{"\""} + wrong + "\""));
  }
}

}  // namespace
}  // namespace commensal::cluster::page_service_test
