// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <limits>

namespace commensal::page {
namespace {

using nlohmann::json;
using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

Histogram::BucketBoundaries short_times() {
  return {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
}
Histogram::BucketBoundaries waiting_times() {
  return {1, 5, 15, 60, 300, 900, 3600, 4.0 * 3600, 24.0 * 3600};
}

constexpr std::array<std::string_view, 15> kTypes{
    "backup", "health", "state",   "submit", "queue", "explain", "cancel",   "resume",
    "logs",   "nodes",  "tenants", "quota",  "drain", "undrain", "set_class"};

}  // namespace

struct Metrics::Families {
  Registry registry;

  Family<Gauge>& build = BuildGauge()
                             .Name("commensal_build_info")
                             .Help("Always 1; the label is the version of the coordinator.")
                             .Register(registry);
  Family<Gauge>& jobs = BuildGauge()
                            .Name("commensal_jobs")
                            .Help(
                                "Jobs that have not ended, by state and class; class none: not "
                                "placed.")
                            .Register(registry);
  Family<Gauge>& waiting = BuildGauge()
                               .Name("commensal_queue_length")
                               .Help("Jobs that wait to be started.")
                               .Register(registry);
  Family<Gauge>& oldest = BuildGauge()
                              .Name("commensal_queue_oldest_timestamp_seconds")
                              .Help(
                                  "When the job was submitted that waits longest, in seconds "
                                  "since 1970; 0: none waits.")
                              .Register(registry);
  Family<Histogram>& waits = BuildHistogram()
                                 .Name("commensal_queue_wait_seconds")
                                 .Help("Time that a job was queued before a start, by its class.")
                                 .Register(registry);
  Family<Counter>& ends = BuildCounter()
                              .Name("commensal_jobs_ended_total")
                              .Help("Ends of jobs since the coordinator began, by state.")
                              .Register(registry);
  Family<Gauge>& devices = BuildGauge()
                               .Name("commensal_devices")
                               .Help(
                                   "Devices: free, with guaranteed or opportunistic jobs, shared "
                                   "by both, or unavailable (node not up, nobody on it).")
                               .Register(registry);
  Family<Gauge>& nodes =
      BuildGauge().Name("commensal_nodes").Help("Machines by state.").Register(registry);
  Family<Gauge>& quota =
      BuildGauge()
          .Name("commensal_tenant_quota_devices")
          .Help("Devices that a tenant's guaranteed jobs may have; +Inf: no limit.")
          .Register(registry);
  Family<Gauge>& guaranteed = BuildGauge()
                                  .Name("commensal_tenant_guaranteed_devices")
                                  .Help("Devices charged to a tenant's quota.")
                                  .Register(registry);
  Family<Gauge>& opportunistic = BuildGauge()
                                     .Name("commensal_tenant_opportunistic_devices")
                                     .Help("Devices that a tenant's opportunistic jobs share.")
                                     .Register(registry);
  Family<Histogram>& decisions = BuildHistogram()
                                     .Name("commensal_decision_seconds")
                                     .Help("Time of a decision of the policy.")
                                     .Register(registry);
  Family<Histogram>& writes = BuildHistogram()
                                  .Name("commensal_store_write_seconds")
                                  .Help("Time until a batch of changes was durable.")
                                  .Register(registry);
  Family<Gauge>& engine = BuildGauge()
                              .Name("commensal_engine_problem")
                              .Help("1 while the engine cannot be asked, else 0.")
                              .Register(registry);
  Family<Counter>& engine_failures = BuildCounter()
                                         .Name("commensal_engine_problems_total")
                                         .Help("How often the engine began not to answer.")
                                         .Register(registry);
  Family<Counter>& requests = BuildCounter()
                                  .Name("commensal_requests_total")
                                  .Help("Requests by type and result (ok, or the error's code).")
                                  .Register(registry);
  Family<Counter>& http = BuildCounter()
                              .Name("commensal_http_requests_total")
                              .Help("Requests over HTTP by path and status.")
                              .Register(registry);
  Family<Gauge>& looking_on = BuildGauge()
                                  .Name("commensal_page_listeners")
                                  .Help("Pages that are open: listeners of live events.")
                                  .Register(registry);

  // Those without labels, or of which every label is known, are there from the beginning.
  Gauge& waiting_now = waiting.Add({});
  Gauge& oldest_now = oldest.Add({});
  Histogram& decision = decisions.Add({}, short_times());
  Histogram& write = writes.Add({}, short_times());
  Gauge& engine_now = engine.Add({});
  Counter& engine_failure = engine_failures.Add({});
  Gauge& listeners_now = looking_on.Add({});

  explicit Families(const std::string& version) {
    build.Add({{"version", version}}).Set(1);
    for (const char* job_class : {"guaranteed", "opportunistic"}) {
      (void)waits.Add({{"class", job_class}}, waiting_times());
    }
    for (const char* state : {"finished", "failed", "cancelled", "lost"}) {
      (void)ends.Add({{"state", state}});
    }
  }
};

Metrics::Metrics(const std::string& version) : families_(std::make_unique<Families>(version)) {}

Metrics::~Metrics() = default;

void Metrics::decided(Seconds took) { families_->decision.Observe(took.count()); }

void Metrics::wrote(Seconds took) { families_->write.Observe(took.count()); }

void Metrics::started(std::string_view job_class, Seconds waited) {
  // A clock that was set back makes no negative time.
  families_->waits.Add({{"class", std::string{job_class}}}, waiting_times())
      .Observe(std::max(0.0, waited.count()));
}

void Metrics::ended(std::string_view state) {
  families_->ends.Add({{"state", std::string{state}}}).Increment();
}

void Metrics::answered(std::string_view type, std::string_view result) {
  const bool known = std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
  families_->requests
      .Add({{"type", known ? std::string{type} : "unknown"}, {"result", std::string{result}}})
      .Increment();
}

void Metrics::engine_failed() { families_->engine_failure.Increment(); }

void Metrics::served(const std::string& path, int status) {
  families_->http.Add({{"path", path}, {"code", std::to_string(status)}}).Increment();
}

void Metrics::show(const json& picture) {
  const json& summary = picture.at("summary");
  for (const json& entry : summary.at("jobs")) {
    families_->jobs.Add({{"state", entry.at("state")}, {"class", entry.at("class")}})
        .Set(entry.at("count"));
  }
  families_->waiting_now.Set(summary.at("waiting"));
  const json& since = summary.at("oldest_waiting_ms");
  families_->oldest_now.Set(since.is_null() ? 0.0 : since.get<double>() / 1000);
  for (const auto& [state, count] : summary.at("devices").items()) {
    families_->devices.Add({{"state", state}}).Set(count);
  }
  for (const auto& [state, count] : summary.at("nodes").items()) {
    families_->nodes.Add({{"state", state}}).Set(count);
  }
  for (const json& tenant : picture.at("tenants")) {
    const prometheus::Labels labels{{"tenant", tenant.at("name")}};
    const json& quota = tenant.at("quota");
    families_->quota.Add(labels).Set(quota.is_null() ? std::numeric_limits<double>::infinity()
                                                     : quota.get<double>());
    families_->guaranteed.Add(labels).Set(tenant.at("guaranteed_devices"));
    families_->opportunistic.Add(labels).Set(tenant.at("opportunistic_devices"));
  }
  const std::string problem = picture.at("coordinator").at("problem");
  families_->engine_now.Set(problem.empty() ? 0 : 1);
}

void Metrics::listeners(int count) { families_->listeners_now.Set(count); }

std::string Metrics::text() const {
  return prometheus::TextSerializer{}.Serialize(families_->registry.Collect());
}

}  // namespace commensal::page
