// SPDX-License-Identifier: Apache-2.0
// What Prometheus reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/page/metrics.h"

namespace commensal::page::page_metrics_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

json picture() {
  return json::parse(R"({
    "coordinator": {"problem": ""},
    "summary": {
      "jobs": [{"state": "running", "class": "guaranteed", "count": 3},
               {"state": "queued", "class": "none", "count": 2}],
      "waiting": 2, "oldest_waiting_ms": 1500,
      "devices": {"free": 1, "shared": 4}, "nodes": {"up": 2, "down": 1, "drained": 0}},
    "tenants": [
      {"name": "vision", "quota": 8, "guaranteed_devices": 3, "opportunistic_devices": 1},
      {"name": "a\"b\n", "quota": null, "guaranteed_devices": 0, "opportunistic_devices": 0}]})");
}

TEST(PageMetricsTest, WhatIsIsShown) {
  Metrics metrics{"1.2.3"};
  metrics.show(picture());
  metrics.listeners(2);
  EXPECT_THAT(
      metrics.text(),
      AllOf(HasSubstr("commensal_build_info{version=\"1.2.3\"} 1\n"),
            HasSubstr("commensal_jobs{class=\"guaranteed\",state=\"running\"} 3\n"),
            HasSubstr("commensal_jobs{class=\"none\",state=\"queued\"} 2\n"),
            HasSubstr("commensal_queue_length 2\n"),
            HasSubstr("commensal_queue_oldest_timestamp_seconds 1.5\n"),
            HasSubstr("commensal_devices{state=\"shared\"} 4\n"),
            HasSubstr("commensal_nodes{state=\"down\"} 1\n"),
            HasSubstr("commensal_tenant_quota_devices{tenant=\"vision\"} 8\n"),
            HasSubstr("commensal_tenant_guaranteed_devices{tenant=\"vision\"} 3\n"),
            HasSubstr("commensal_tenant_opportunistic_devices{tenant=\"vision\"} 1\n"),
            HasSubstr("commensal_engine_problem 0\n"), HasSubstr("commensal_page_listeners 2\n")));
}

TEST(PageMetricsTest, WhatChangesIsShownAnew) {
  Metrics metrics{"1"};
  json now = picture();
  metrics.show(now);
  now["coordinator"]["problem"] = "squeue is missing";
  now["summary"]["jobs"][0]["count"] = 0;
  now["summary"]["oldest_waiting_ms"] = nullptr;
  metrics.show(now);
  EXPECT_THAT(metrics.text(),
              AllOf(HasSubstr("commensal_engine_problem 1\n"),
                    HasSubstr("commensal_jobs{class=\"guaranteed\",state=\"running\"} 0\n"),
                    HasSubstr("commensal_queue_oldest_timestamp_seconds 0\n")));
}

TEST(PageMetricsTest, NamesOfUsersAreEscapedAndNoQuotaIsInfinite) {
  Metrics metrics{"1"};
  metrics.show(picture());
  EXPECT_THAT(metrics.text(),
              HasSubstr("commensal_tenant_quota_devices{tenant=\"a\\\"b\\n\"} +Inf\n"));
}

TEST(PageMetricsTest, WhatHappensIsCounted) {
  Metrics metrics{"1"};
  metrics.answered("submit", "ok");
  metrics.answered("submit", "ok");
  metrics.answered("submit", "unknown_tenant");
  metrics.ended("failed");
  metrics.engine_failed();
  metrics.served("/metrics", 200);
  metrics.decided(2ms);
  metrics.wrote(20ms);
  metrics.started("guaranteed", 30s);
  metrics.started("guaranteed", -5s);  // a clock that was set
  EXPECT_THAT(
      metrics.text(),
      AllOf(HasSubstr("commensal_requests_total{result=\"ok\",type=\"submit\"} 2\n"),
            HasSubstr("commensal_requests_total{result=\"unknown_tenant\",type=\"submit\"} 1\n"),
            HasSubstr("commensal_jobs_ended_total{state=\"failed\"} 1\n"),
            HasSubstr("commensal_jobs_ended_total{state=\"lost\"} 0\n"),
            HasSubstr("commensal_engine_problems_total 1\n"),
            HasSubstr("commensal_http_requests_total{code=\"200\",path=\"/metrics\"} 1\n"),
            HasSubstr("commensal_decision_seconds_bucket{le=\"0.003\"} 1\n"),
            HasSubstr("commensal_decision_seconds_bucket{le=\"0.001\"} 0\n"),
            HasSubstr("commensal_store_write_seconds_count 1\n"),
            HasSubstr("commensal_queue_wait_seconds_sum{class=\"guaranteed\"} 30\n"),
            HasSubstr("commensal_queue_wait_seconds_count{class=\"guaranteed\"} 2\n")));
}

TEST(PageMetricsTest, WordsOfOthersMakeNoNewSeries) {
  Metrics metrics{"1"};
  for (int i = 0; i < 100; ++i) metrics.answered("type-" + std::to_string(i), "unknown_type");
  EXPECT_THAT(
      metrics.text(),
      AllOf(HasSubstr("commensal_requests_total{result=\"unknown_type\",type=\"unknown\"} 100\n"),
            Not(HasSubstr("type-1"))));
}

TEST(PageMetricsTest, ManyThreadsCountAndRead) {
  Metrics metrics{"1"};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        metrics.answered("queue", "ok");
        metrics.served("/", 200);
        if (n % 20 == 0) metrics.show(picture());
        if (n % 50 == 0) (void)metrics.text();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics.text(),
              HasSubstr("commensal_requests_total{result=\"ok\",type=\"queue\"} 800\n"));
}

}  // namespace
}  // namespace commensal::page::page_metrics_test
