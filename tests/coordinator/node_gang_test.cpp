// SPDX-License-Identifier: Apache-2.0
// Jobs of several ranks at the node coordinator: which are gated together, and whose steps count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/node/node_coordinator.h"

namespace commensal::node::node_gang_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;

class NodeGangTest : public ::testing::Test {
 protected:
  static Device device() {
    Device device;
    device.capacity = 1000_MiB;
    device.cores = 2;
    return device;
  }
  void join(const std::string& job, JobClass job_class, std::int64_t pid, int rank, int world_size,
            const std::string& role = "rank") {
    wire::Register hello;
    hello.job_id = hello.name = job;
    hello.job_class = job_class;
    hello.pid = pid;
    hello.start_ticks = 1;
    hello.role = role;
    hello.rank = rank;
    hello.world_size = world_size;
    node_.receive(job + std::to_string(pid), hello, now_);
    (void)node_.take_outgoing();
  }
  static PageReading page(std::uint64_t begun, std::uint64_t step = 0, Duration step_last = {}) {
    PageReading page;
    page.collectives_begun = page.collectives_ended = begun;
    page.step_number = step;
    page.step_last = step_last;
    return page;
  }
  void show(const std::string& job, std::int64_t pid, PageReading reading) {
    reading.heartbeat = now_;
    node_.observe_page(JobId{job}, pid, reading, now_);
  }
  void two_ranks() {
    join("o", JobClass::kOpportunistic, 1, 0, 2, "main");  // torchrun itself
    join("o", JobClass::kOpportunistic, 10, 0, 2);
    join("o", JobClass::kOpportunistic, 11, 1, 2);
    show("o", 10, page(3));
    show("o", 11, page(3));
    pass(20ms);
  }
  void pass(Duration time) {
    now_ += time;
    node_.sample(now_);
  }
  [[nodiscard]] PageEntry entry(const std::string& job) const {
    for (const PageEntry& entry : node_.host().page_entries(now_)) {
      if (entry.job_id == job) return entry;
    }
    ADD_FAILURE() << "no entry of " << job;
    return {};
  }
  void set_paused(bool paused) {
    wire::SetRequest request;
    request.job = "o";
    request.paused = paused;
    node_.receive("cli", request, now_);
    (void)node_.take_outgoing();
  }
  json status_of(const std::string& job) { return node_.status(job, now_)["jobs"][0]; }
  json explain(const std::string& job) {
    node_.receive("cli", wire::ExplainRequest{job, 60, false}, now_);
    for (const Outgoing& out : node_.take_outgoing()) {
      if (const auto* reply = std::get_if<wire::ExplainReply>(&out.message))
        return reply->explanation;
    }
    ADD_FAILURE() << "no answer";
    return {};
  }

  TimePoint now_{1h};
  NodeCoordinator node_{CoordinatorConfig{}, device(), 77, 5, now_};
};

TEST_F(NodeGangTest, ThePageOfAGangSaysItsEpochAndAPauseIsAnother) {
  two_ranks();
  const std::uint64_t open = entry("o").gang_epoch;
  EXPECT_NE(open, 0U) << "the main that started the ranks is none of them";
  set_paused(true);
  EXPECT_TRUE(entry("o").paused);
  EXPECT_EQ(entry("o").gang_epoch, open + 1) << "with the order itself, not a sample later";
  set_paused(false);
  EXPECT_EQ(entry("o").gang_epoch, open + 2);
}

TEST_F(NodeGangTest, ADeadRankFreesTheOther) {
  two_ranks();
  node_.member_gone(JobId{"o"}, 11, Departure::kExited, now_);
  EXPECT_EQ(entry("o").gang_epoch, 0U);
  pass(20ms);
  EXPECT_EQ(entry("o").gang_epoch, 0U);
}

TEST_F(NodeGangTest, ARankWithoutASignOfLifeFreesTheOther) {
  two_ranks();
  for (int i = 0; i < 12; ++i) {
    pass(200ms);
    show("o", 10, page(3));
    node_.sample(now_);
  }
  EXPECT_EQ(entry("o").gang_epoch, 0U);
  EXPECT_THAT(status_of("o")["gang"]["reason"].get<std::string>(),
              HasSubstr("rank 1 has shown no sign of life"));
}

TEST_F(NodeGangTest, AWindowClosesTheGangByAnEpochOfItsOwn) {
  join("g", JobClass::kGuaranteed, 5, 0, 1, "main");
  two_ranks();
  std::uint64_t last = entry("o").gang_epoch;
  int windows = 0;
  for (std::uint64_t step = 1; step < 400; ++step) {
    now_ += 50ms;
    show("g", 5, page(0, step, 50ms));
    show("o", 10, page(3 + step));
    show("o", 11, page(3 + step));
    const bool was_closed = entry("o").share_max == 0.0;
    node_.sample(now_);
    const bool is_closed = entry("o").share_max == 0.0;
    const std::uint64_t epoch = entry("o").gang_epoch;
    EXPECT_EQ(epoch, was_closed == is_closed ? last : last + 1);
    if (!was_closed && is_closed) ++windows;
    last = epoch;
  }
  EXPECT_GT(windows, 2);
  EXPECT_EQ(status_of("o")["gang"]["closes_total"], windows);
}

TEST_F(NodeGangTest, AGuaranteedJobIsNeverAGang) {
  join("g", JobClass::kGuaranteed, 10, 0, 2);
  join("g", JobClass::kGuaranteed, 11, 1, 2);
  show("g", 10, page(3));
  show("g", 11, page(3));
  pass(20ms);
  EXPECT_EQ(entry("g").gang_epoch, 0U);
  EXPECT_TRUE(status_of("g")["gang"].is_null());
}

TEST_F(NodeGangTest, StatusAndExplainTellOfTheGang) {
  two_ranks();
  for (const json& gang : {status_of("o")["gang"], explain("o")["job"]["gang"]}) {
    EXPECT_EQ(gang["gated"], true);
    EXPECT_EQ(gang["ranks"], 2);
    EXPECT_EQ(gang["epoch"], entry("o").gang_epoch);
    EXPECT_EQ(gang["reason"], "open together");
  }
  std::string decisions;
  const json told = explain("o");
  for (const json& decision : told["decisions"]) {
    decisions += decision["kind"].get<std::string>() + ": " + decision["text"].get<std::string>();
  }
  EXPECT_THAT(decisions, HasSubstr("gang: 2 ranks are gated together"));
}

// --- a guaranteed job of several ranks

TEST_F(NodeGangTest, TheSlowestRankOfAGuaranteedJobIsTheSignal) {
  join("g", JobClass::kGuaranteed, 10, 0, 2);
  join("g", JobClass::kGuaranteed, 11, 1, 2);
  const Job* job = node_.host().table().jobs().data();
  EXPECT_EQ(job->slowest(), nullptr) << "no step yet";
  show("g", 10, page(0, 7, 50ms));
  show("g", 11, page(0, 8, 90ms));
  EXPECT_EQ(job->slowest()->pid, 10) << "it is a step behind";
  show("g", 10, page(0, 8, 50ms));
  EXPECT_EQ(job->slowest()->pid, 11) << "as far, and its step took longer";
  show("g", 11, page(0, 8, 40ms));
  EXPECT_EQ(job->slowest()->pid, 10);
}

TEST_F(NodeGangTest, OneSlowedRankOfAGuaranteedJobIsItsSlowdown) {
  join("g", JobClass::kGuaranteed, 10, 0, 2);
  join("g", JobClass::kGuaranteed, 11, 1, 2);
  join("o", JobClass::kOpportunistic, 20, 0, 1, "main");
  for (std::uint64_t step = 1; step < 600; ++step) {
    now_ += 50ms;
    const bool closed = entry("o").share_max == 0.0;
    show("g", 10, page(0, step, 50ms));
    show("g", 11, page(0, step, closed ? 50ms : 60ms));  // only the second one suffers
    node_.sample(now_);
  }
  const json slowdown = status_of("g")["slowdown"];
  ASSERT_FALSE(slowdown.is_null());
  EXPECT_NEAR(slowdown.get<double>(), 0.2, 0.05);
}

}  // namespace
}  // namespace commensal::node::node_gang_test
