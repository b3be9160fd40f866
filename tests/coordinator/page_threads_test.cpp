// SPDX-License-Identifier: Apache-2.0
// The page beside a loop that never rests: readers ask while the cluster changes. A test for TSan;
// what the page says is tested with a real coordinator (page_service_test.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/cluster/page_service.h"

namespace commensal::cluster::page_threads_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr int kReaders = 3;
constexpr int kAsked = 20;

/// Has one job more each time that it is changed.
class GrowingCluster final : public ShownCluster {
 public:
  void change() { ++revision_; }
  json picture(const PictureSize& /*size*/) override {
    json jobs = json::array();
    for (std::uint64_t i = 0; i < revision_ % 50; ++i) jobs.push_back({{"id", i}});
    return {{"coordinator", {{"jobs", jobs.size()}}},
            {"jobs", jobs},
            {"nodes", json::array()},
            {"tenants", json::array()},
            {"summary", json::object()},
            {"events", json::array()}};
  }
  [[nodiscard]] std::uint64_t revision() const noexcept override { return revision_; }
  [[nodiscard]] JobCounts counts() const override { return {1, 2, 3}; }
  [[nodiscard]] WallTime wall_time() const override { return WallTime{24h}; }

 private:
  std::uint64_t revision_ = 1;
};

TEST(PageThreadsTest, EachReaderSeesAWholePictureWhileTheClusterChanges) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("commensal-page-threads-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const auto log =
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>());
  PageOptions options;
  options.required = true;
  PageService page{options, folder, "1.2.3", [] { return std::string{R"({"jobs": []})"}; }, log};
  const std::string url = page.url().substr(0, page.url().size() - 1);
  std::string token;
  std::ifstream{page.token_file()} >> token;
  // The HTTP library makes constants at its first request; TSan does not see that others wait for
  // it.
  EXPECT_EQ(httplib::Client{url}.Get("/nothing")->status, 404);

  std::atomic<int> whole = 0;
  std::atomic<int> answered = 0;
  std::atomic<int> reading = kReaders;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&] {
      httplib::Client client{url};
      client.set_read_timeout(60);
      for (int i = 0; i < kAsked; ++i) {
        if (const auto state = client.Get("/api/v1/state")) {
          const json shown = json::parse(state->body);
          whole += shown["coordinator"]["jobs"] == shown["jobs"].size() ? 1 : 0;
        }
        const auto done = client.Post("/api/v1/requests", {{"Authorization", "Bearer " + token}},
                                      R"({"type": "cancel", "id": "j1"})", "application/json");
        answered += done && done->status == 200 ? 1 : 0;
        const auto metrics = client.Get("/metrics");
        EXPECT_THAT(metrics ? metrics->body : "", HasSubstr("commensal_"));
      }
      --reading;
    });
  }

  GrowingCluster cluster;
  JobRecord before;
  JobRecord after;
  after.state = JobState::kStarting;
  TimePoint now{1h};
  while (reading > 0) {
    pollfd woken{page.descriptor(), POLLIN, 0};
    (void)::poll(&woken, 1, 1);
    now += 1ms;
    cluster.change();
    page.begins(Work::kDecision);
    page.ended(Work::kDecision);
    page.moved(before, after);
    auto asked = page.take();
    for (const auto& [number, request] : asked) page.count(request, {{"type", "cancel"}});
    page.publish(cluster, now, [] { return json{{"nodes", json::array()}}; });
    for (const auto& [number, request] : asked) page.answer(number, {{"type", "cancel"}});
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(whole, kReaders * kAsked);
  EXPECT_EQ(answered, kReaders * kAsked);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace commensal::cluster::page_threads_test
