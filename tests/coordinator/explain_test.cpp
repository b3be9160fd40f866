// SPDX-License-Identifier: Apache-2.0
// What the coordinator tells of the last minutes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <type_traits>

#include "coordinator/node/gap_control.h"
#include "coordinator/node/node_coordinator.h"

namespace commensal::node::explain_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;

/// Two jobs on two cores. Beside the other one the guaranteed job's step takes longer, because its
/// thread waits for a core.
class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() {
    join("g", JobClass::kGuaranteed, 10);
    join("o", JobClass::kOpportunistic, 20);
  }

  void join(const std::string& id, JobClass job_class, std::int64_t pid) {
    wire::Register hello;
    hello.job_id = id;
    hello.name = id;
    hello.job_class = job_class;
    hello.pid = pid;
    hello.start_ticks = 1;
    hello.role = "main";
    node_.receive(id, hello, now_);
    (void)node_.take_outgoing();
  }
  template <typename Reply>
  Reply ask(const wire::Message& message) {
    node_.receive("cli", message, now_);
    for (const Outgoing& out : node_.take_outgoing()) {
      if (const auto* reply = std::get_if<Reply>(&out.message)) return *reply;
    }
    ADD_FAILURE() << "no answer";
    return {};
  }
  json explain(const std::string& job, double seconds = 60.0, bool series = false) {
    return ask<wire::ExplainReply>(wire::ExplainRequest{job, seconds, series}).explanation;
  }

  /// Passes time: g steps of 40 ms alone, 1 + `loss` times as long beside o.
  void run(Duration time, double loss) {
    run(time, [loss] { return loss; });
  }
  template <typename Loss>
  void run(Duration time, const Loss& next_loss) requires(std::is_invocable_v<Loss>) {
    const TimePoint end = now_ + time;
    while (now_ < end) {
      const double loss = next_loss();
      const bool quiet = node_.host().compute().window_closed();
      const Duration step =
          quiet ? 40ms : Duration{static_cast<Duration::rep>(40e6 * (1.0 + loss))};
      now_ += step;
      guaranteed_.run += 30ms;
      guaranteed_.delayed += step - 40ms;
      other_.run += quiet ? 0ms : step / 2;
      closed_ += std::chrono::duration<double>(quiet ? step : step / 2).count();
      PageReading page;
      page.heartbeat = now_;
      page.step_number = ++steps_;
      page.step_last = step;
      node_.observe_page(JobId{"g"}, 10, page, now_);
      node_.sample(now_);
      if (!node_.take_timed().empty() || steps_ % 25 == 0) {
        node_.observe_cpu(JobId{"g"}, 10, {{10, guaranteed_}}, 0s, now_);
        node_.observe_cpu(JobId{"o"}, 20, {{20, other_}}, 0s, now_);
      }
      report();
      node_.tick(now_);
      (void)node_.take_outgoing();
    }
  }
  void report() {
    const json stats{
        {"gate",
         {{"closed_seconds_total", closed_},
          {"busy_seconds_total", 1.0},
          {"closed_by", json::array({{{"reason", "guaranteed job busy"}, {"seconds", closed_}},
                                     {{"reason", "resting"}, {"seconds", 0.5}}})}}}};
    node_.receive("o", wire::Stats{"o", 20, stats, false}, now_);
  }

  static Device device() {
    Device device;
    device.capacity = 1000_MiB;
    device.cores = 2;
    return device;
  }
  TimePoint now_{1h};
  NodeCoordinator node_{CoordinatorConfig{}, device(), 77, 5, now_};
  ThreadTime guaranteed_;
  ThreadTime other_;
  double closed_ = 0.0;
  std::uint64_t steps_ = 0;
};

TEST_F(ExplainTest, TellsTheGapsByPhaseAndTheRulesForThem) {
  double waits = 0;
  for (int second = 0; second < 40; ++second) {
    waits += 10;
    json stats = json::parse(R"({"activity": {"gaps": [{"phase": "loader",
        "median_seconds": 0.03, "p90_seconds": 0.04, "lengths": [[0.028, 30.0]]}]}})");
    stats["activity"]["gaps"][0]["waits_total"] = waits;
    stats["activity"]["gaps"][0]["seconds_total"] = 0.03 * waits;
    node_.receive("g", wire::Stats{"g", 10, stats, false}, now_);
    run(1s, 0.0);
  }
  const json told = explain("o");
  const json& gaps = told["guaranteed"][0]["gaps"];
  ASSERT_EQ(gaps.size(), wire::kGapPhases - 1) << "all that have a name";
  EXPECT_EQ(gaps[1]["per_minute"], 0.0);
  EXPECT_EQ(gaps[0]["phase"], "loader");
  EXPECT_NEAR(gaps[0]["per_minute"].get<double>(), 600, 60);
  EXPECT_NEAR(gaps[0]["share"].get<double>(), 0.3, 0.03);
  EXPECT_EQ(told["job"]["gap_rules"]["level"], 0);
  EXPECT_THAT(told["job"]["gap_rules"]["reason"].get<std::string>(),
              HasSubstr("every gap may be used"));
  const json status = node_.status("", now_);
  EXPECT_EQ(status["jobs"][0]["gaps"], gaps);
  EXPECT_EQ(status["jobs"][0]["gap_rules"]["reason"], "") << "it is guaranteed";
  EXPECT_EQ(status["jobs"][1]["gap_rules"]["level"], 0);
}

TEST_F(ExplainTest, ThePageSaysWhatTheControllerDecidesOfGaps) {
  run(20s, 0.0);
  wire::GapRules of_o{.known = true};
  of_o.guard = kWakeGuard;  // it is not in the idle class
  for (const PageEntry& entry : node_.host().page_entries(now_)) {
    EXPECT_EQ(entry.gap_rules, entry.job_id == "o" ? of_o : wire::GapRules{});
  }
}

TEST_F(ExplainTest, TellsHowLongOpsWaitedAndWhy) {
  run(30s, 0.0);
  const json told = explain("o", 20);
  EXPECT_NEAR(told["seconds"].get<double>(), 20, 1.5);
  const json& job = told["job"];
  EXPECT_EQ(job["class"], "opportunistic");
  EXPECT_EQ(job["law"], "gap");
  EXPECT_NEAR(job["closed_seconds"].get<double>(), 10, 2);
  ASSERT_EQ(job["closed_by"].size(), 1U) << "the other reason did not grow";
  EXPECT_EQ(job["closed_by"][0]["reason"], "guaranteed job busy");
  EXPECT_NEAR(job["closed_by"][0]["seconds"].get<double>(), job["closed_seconds"].get<double>(),
              1e-6);
  EXPECT_NEAR(job["core_seconds"].get<double>(), 10, 2);
}

TEST_F(ExplainTest, TellsWhatItCostTheGuaranteedJobAndOfWhatTheCostIsMade) {
  run(60s, 0.10);
  for (const char* asked : {"o", "g"}) {
    const json told = explain(asked, 30);
    ASSERT_EQ(told["guaranteed"].size(), 1U);
    const json& cost = told["guaranteed"][0];
    EXPECT_EQ(cost["name"], "g");
    EXPECT_NEAR(cost["slowdown"].get<double>(), 0.10, 0.01);
    EXPECT_EQ(cost["slowdown_reason"], "");
    EXPECT_NEAR(cost["lost_seconds"].get<double>(), 30 * 0.1 / 1.1, 0.4);
    EXPECT_NEAR(cost["parts"]["scheduling"].get<double>(), 0.10, 0.02);
    EXPECT_NEAR(cost["parts"]["memory"].get<double>(), 0.0, 0.02);
    EXPECT_GT(cost["evidence"]["shared"]["waiting_for_a_core"].get<double>(), 0.05);
    EXPECT_EQ(cost["slo"], 0.01);
  }
}

TEST_F(ExplainTest, AFigureThatSaysNothingIsNotTold) {
  // Step times that have nothing to do with each other: no slowdown follows from them.
  std::minstd_rand chance(7);
  const auto wild = [&] { return chance() % 2 == 0 ? 0.0 : 12.0; };
  run(20s, 0.0);
  bool seen = false;
  for (int i = 0; i < 60 && !seen; ++i) {
    run(1s, wild);
    const json job = node_.status("", now_)["jobs"][0];
    const auto reason = job["slowdown_reason"].get<std::string>();
    EXPECT_EQ(reason.empty(), job["slowdown"].is_number());
    EXPECT_EQ(reason.empty(), job["slowdown_error"].is_number());
    if (!reason.starts_with("not known yet: ")) continue;
    seen = true;
    const json told = explain("o", 30);
    const json& cost = told["guaranteed"][0];
    EXPECT_TRUE(cost["slowdown"].is_null() && cost["slowdown_error"].is_null());
    EXPECT_EQ(cost["slowdown_reason"], reason);
    EXPECT_TRUE(cost["parts"].is_null() && cost["lost_seconds"].is_null());
    const json& use = told["device"];
    EXPECT_NEAR(use["oracle_share"].get<double>(),
                1 - std::min(1.0, use["guaranteed_share"].get<double>()) / 1.01, 1e-9)
        << "as if nothing were lost";
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(node_.status("", now_)["jobs"][1]["slowdown_reason"], "") << "it is opportunistic";
}

TEST_F(ExplainTest, WhatAGuaranteedJobsOpsAreIsEvidence) {
  run(5s, 0.0);
  EXPECT_TRUE(explain("o")["guaranteed"][0]["ops"].is_null()) << "nothing was sampled";
  node_.receive(
      "g",
      wire::Stats{
          "g",
          10,
          {{"samples",
            {{"windows_total", 4},
             {"window_seconds_total", 0.2},
             {"ops_total", 120},
             {"compute_seconds_total", 0.09},
             {"memory_seconds_total", 0.03},
             {"on_core_seconds_total", 0.06},
             {"top", json::array({{{"name", "aten::mm"}, {"seconds", 0.05}}, {{"name", 3}}, 7})}}}},
          false},
      now_);
  const json ops = explain("o")["guaranteed"][0]["ops"];
  EXPECT_EQ(ops["samples"], 120);
  EXPECT_NEAR(ops["busy"].get<double>(), 0.6, 1e-9);
  EXPECT_NEAR(ops["compute"].get<double>(), 0.75, 1e-9);
  EXPECT_NEAR(ops["memory"].get<double>(), 0.25, 1e-9);
  EXPECT_NEAR(ops["on_core"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(ops["top"], json::array({{{"name", "aten::mm"}, {"seconds", 0.05}}}));
  for (const json& strange : {json(3), json{{"window_seconds_total", 1.0}}, json::array()}) {
    node_.receive("g", wire::Stats{"g", 10, {{"samples", strange}}, false}, now_);
    EXPECT_TRUE(explain("o")["guaranteed"][0]["ops"].is_null());
  }
}

TEST_F(ExplainTest, StepsOfAnotherProgramAreNotCountedBackwards) {
  run(20s, 0.0);
  steps_ = 0;  // what a launcher starts next
  run(2s, 0.0);
  EXPECT_LE(explain("o", 10)["guaranteed"][0]["steps"].get<std::uint64_t>(), steps_);
}

TEST_F(ExplainTest, NamesTheDecisionsWithTheirNumbers) {
  run(20s, 0.0);
  run(60s, 0.10);
  std::string all;
  const json decisions = explain("o", 600)["decisions"];
  for (const json& decision : decisions) {
    all += decision["job"].get<std::string>() + " " + decision["kind"].get<std::string>() + ": " +
           decision["text"].get<std::string>() + "\n";
    EXPECT_GE(decision["seconds_ago"].get<double>(), 0.0);
  }
  EXPECT_THAT(all, HasSubstr("g arrival: guaranteed, law open"));
  EXPECT_THAT(all, HasSubstr("o share: 1.0 % -> "));
  EXPECT_THAT(all, HasSubstr("% over baseline (+-"));
  EXPECT_THAT(all, HasSubstr("above 1.0 %: cut to"));
  EXPECT_THAT(all, HasSubstr("o window: closed for a moment"));
  (void)ask<wire::SetReply>(wire::SetRequest{"o", {.share = ShareRange{0, 0.5}}});
  node_.member_gone(JobId{"g"}, 10, Departure::kExited, now_);
  const json last = explain("o", 1)["decisions"];
  std::string after;
  for (const json& decision : last) after += decision["text"].get<std::string>() + "\n";
  EXPECT_THAT(after, HasSubstr("share 0:0.5"));
  EXPECT_THAT(after, HasSubstr("g killed or crashed"));
}

TEST_F(ExplainTest, ToldOfTheDeviceIsHowMuchOfWhatWasToBeHadWasTaken) {
  run(30s, 0.0);
  const json use = explain("o")["device"];
  // g runs 30 of 40 ms on one of two cores.
  EXPECT_NEAR(use["guaranteed_share"].get<double>(), 0.375, 0.03);
  EXPECT_NEAR(use["oracle_share"].get<double>(), 1 - 0.375 / 1.01, 0.03);
  EXPECT_NEAR(use["efficiency"].get<double>(),
              use["opportunistic_share"].get<double>() / use["oracle_share"].get<double>(), 1e-9);
  EXPECT_EQ(node_.status("", now_)["devices"][0]["use"], use);
}

TEST_F(ExplainTest, ASeriesComesWhenItIsAskedFor) {
  run(30s, 0.0);
  EXPECT_TRUE(explain("o")["series"].empty());
  const json series = explain("o", 10, true)["series"];
  ASSERT_EQ(series.size(), 2U);
  EXPECT_NEAR(static_cast<double>(series[1]["samples"].size()), 10, 2);
  EXPECT_TRUE(series[1]["samples"][0].contains("closed_seconds_total"));
}

TEST_F(ExplainTest, AJobThatHasJustBegunIsExplainedToo) {
  const json told = explain("o");
  EXPECT_EQ(told["seconds"], 0.0);
  EXPECT_FALSE(told["job"].contains("closed_seconds"));
  EXPECT_TRUE(told["device"]["guaranteed_share"].is_null());
  EXPECT_TRUE(told["guaranteed"][0]["slowdown"].is_null());
  EXPECT_EQ(told["guaranteed"][0]["slowdown_reason"], "not measured yet");
}

TEST_F(ExplainTest, WrongQuestionsAreAnsweredWithTheValue) {
  EXPECT_THAT(ask<wire::Error>(wire::ExplainRequest{"x", 60, false}).what, HasSubstr("x"));
  for (const double seconds : {0.0, -1.0, 601.0}) {
    const auto error = ask<wire::Error>(wire::ExplainRequest{"o", seconds, false});
    EXPECT_EQ(error.code, "malformed");
    EXPECT_THAT(error.what, HasSubstr("at most 600"));
    EXPECT_THAT(error.what, HasSubstr(json(seconds).dump()));
  }
}

TEST_F(ExplainTest, AnEndedJobIsExplainedAsOfItsEnd) {
  run(60s, 0.10);
  const json live = explain("o", 30);
  node_.member_gone(JobId{"o"}, 20, Departure::kExited, now_);
  now_ += 2min;
  node_.tick(now_);
  const json told = explain("o", 30, true);
  const json& job = told["job"];
  EXPECT_NEAR(job["ended_seconds_ago"].get<double>(), 120, 1e-6);
  EXPECT_NEAR(told["until_seconds_ago"].get<double>(), 120, 1e-6);
  EXPECT_THAT(job["exit_reason"].get<std::string>(), HasSubstr("killed or crashed"));
  EXPECT_TRUE(live["job"]["ended_seconds_ago"].is_null());
  EXPECT_NEAR(told["seconds"].get<double>(), live["seconds"].get<double>(), 1.1);
  EXPECT_NEAR(job["closed_seconds"].get<double>(), live["job"]["closed_seconds"].get<double>(), 2);
  ASSERT_EQ(job["closed_by"].size(), 1U);
  EXPECT_EQ(job["closed_by"][0]["reason"], "guaranteed job busy");
  EXPECT_GT(job["core_seconds"].get<double>(), 5.0);
  ASSERT_EQ(told["guaranteed"].size(), 1U);
  EXPECT_NEAR(told["guaranteed"][0]["slowdown"].get<double>(), 0.10, 0.01);
  EXPECT_NEAR(told["guaranteed"][0]["lost_seconds"].get<double>(), 30 * 0.1 / 1.1, 0.4);
  EXPECT_FALSE(told["guaranteed"][0]["parts"].is_null());
  EXPECT_GT(told["device"]["opportunistic_share"].get<double>(), 0.0);
  EXPECT_EQ(told["opportunistic"][0]["id"], "o");
  std::string kinds;
  for (const json& decision : told["decisions"]) kinds += decision["kind"].get<std::string>() + " ";
  EXPECT_THAT(kinds, HasSubstr("departure"));
  ASSERT_EQ(told["series"].size(), 2U);
  for (const json& other : told["series"]) {
    EXPECT_GE(other["samples"].back()["seconds_ago"].get<double>(), 119.0) << other["id"];
    EXPECT_NEAR(static_cast<double>(other["samples"].size()), 31, 4) << other["id"];
  }
}

TEST_F(ExplainTest, WhatAJobCostIsKnownAfterTheOneThatPaidHasLeft) {
  run(60s, 0.10);
  node_.member_gone(JobId{"g"}, 10, Departure::kExited, now_);
  now_ += 5s;
  for (const char* asked : {"o", "g"}) {
    const json told = explain(asked, 30);
    ASSERT_EQ(told["guaranteed"].size(), 1U) << asked;
    EXPECT_NEAR(told["guaranteed"][0]["slowdown"].get<double>(), 0.10, 0.01) << asked;
    EXPECT_NEAR(told["guaranteed"][0]["ended_seconds_ago"].get<double>(), 5, 1e-6) << asked;
  }
  now_ += 1min;
  EXPECT_TRUE(explain("o", 30)["guaranteed"].empty()) << "not in the last half minute";
}

TEST_F(ExplainTest, WhatHappenedAfterItsEndIsNotToldOfAnEndedJob) {
  run(20s, 0.0);
  node_.member_gone(JobId{"o"}, 20, Departure::kExited, now_);
  now_ += 1s;
  join("later", JobClass::kGuaranteed, 30);
  const json told = explain("o");
  EXPECT_EQ(told["guaranteed"].size(), 1U);
  for (const json& decision : told["decisions"]) EXPECT_NE(decision["job"], "later");
}

TEST_F(ExplainTest, ALiveJobComesBeforeAnEndedOneOfItsNameAndOfTheseTheNewest) {
  run(2s, 0.0);
  const auto begin = [&](const char* id, std::int64_t pid) {
    wire::Register hello;
    hello.job_id = id;
    hello.name = "sweep";
    hello.pid = pid;
    hello.start_ticks = 1;
    hello.role = "main";
    node_.receive(id, hello, now_);
    (void)node_.take_outgoing();
  };
  for (const auto& [id, pid] : {std::pair{"s1", 31}, std::pair{"s2", 32}, std::pair{"s3", 33}}) {
    begin(id, pid);
    EXPECT_EQ(explain("sweep")["job"]["id"], id);
    now_ += 1s;
    node_.member_gone(JobId{id}, pid, Departure::kExited, now_);
    EXPECT_EQ(explain("sweep")["job"]["id"], id);
  }
  EXPECT_EQ(explain("s1")["job"]["id"], "s1");
}

TEST_F(ExplainTest, EndedJobsAreForgottenAfterTenMinutes) {
  run(5s, 0.0);
  node_.member_gone(JobId{"o"}, 20, Departure::kExited, now_);
  now_ += kHistory;
  node_.tick(now_);
  EXPECT_EQ(explain("o")["job"]["id"], "o");
  now_ += 1s;
  node_.tick(now_);
  const auto error = ask<wire::Error>(wire::ExplainRequest{"o", 60, false});
  EXPECT_EQ(error.code, "unknown_job");
  EXPECT_EQ(error.what, "no job 'o' of the last ten minutes; known: g (g)");
  EXPECT_FALSE(node_.status("o", now_)["jobs"].empty()) << "the status lists it longer";
}

TEST_F(ExplainTest, OfManyEndedJobsTheNewestAreKept) {
  const auto id = [](std::size_t i) { return "job-" + std::to_string(i); };
  for (std::size_t i = 0; i <= kEndedExplained; ++i) {
    join(id(i), JobClass::kOpportunistic, 100 + static_cast<std::int64_t>(i));
    now_ += 1s;
    node_.member_gone(JobId{id(i)}, 100 + static_cast<std::int64_t>(i), Departure::kExited, now_);
  }
  EXPECT_EQ(ask<wire::Error>(wire::ExplainRequest{id(0), 60, false}).code, "unknown_job");
  EXPECT_EQ(explain(id(1))["job"]["id"], id(1));
  EXPECT_EQ(explain(id(kEndedExplained))["job"]["id"], id(kEndedExplained));
}

TEST_F(ExplainTest, AnUnknownJobIsAnsweredWithThoseThatAreKnown) {
  run(2s, 0.0);
  node_.member_gone(JobId{"o"}, 20, Departure::kExited, now_);
  EXPECT_EQ(ask<wire::Error>(wire::ExplainRequest{"x", 60, false}).what,
            "no job 'x' of the last ten minutes; known: g (g), o (o, ended)");
}

TEST_F(ExplainTest, TimeOnCoresOfARankThatLeftStaysCounted) {
  run(10s, 0.0);
  wire::Register hello;
  hello.job_id = hello.name = "o";
  hello.pid = 21;
  hello.start_ticks = 1;
  hello.role = "main";
  node_.receive("o2", hello, now_);
  node_.observe_cpu(JobId{"o"}, 21, {{21, {0s, 0s}}}, 0s, now_);
  node_.observe_cpu(JobId{"o"}, 21, {{21, {3s, 0s}}}, 0s, now_);
  now_ += 1s;
  node_.tick(now_);
  const double before = explain("o")["job"]["core_seconds"].get<double>();
  node_.member_gone(JobId{"o"}, 21, Departure::kExited, now_);
  now_ += 1s;
  node_.tick(now_);
  EXPECT_NEAR(explain("o")["job"]["core_seconds"].get<double>(), before, 1e-6);
}

TEST_F(ExplainTest, StrangeReportsDoNoHarm) {
  for (const json& gate : {json(3), json("x"), json{{"closed_by", 3}},
                           json{{"closed_by", json::array({3, {{"reason", 5}}, json::object()})}},
                           json{{"closed_by", {{{"reason", "x"}, {"seconds", "long"}}}},
                                {"closed_seconds_total", "x"}},
                           json(nullptr)}) {
    node_.receive("o", wire::Stats{"o", 20, {{"gate", gate}, {"activity", 3}}, false}, now_);
    now_ += 1s;
    node_.tick(now_);
    EXPECT_NO_THROW((void)explain("o"));
  }
}

}  // namespace
}  // namespace commensal::node::explain_test
