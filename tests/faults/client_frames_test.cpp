// SPDX-License-Identifier: Apache-2.0
// A session hears frames that are malformed, cut, doubled, out of order or too large, and gets
// peers' pages that are none: it trains on, its content and limit are right, and a sound change is
// applied. One session a process: ctest runs each case alone.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/session.h"

namespace commensal::client_frames_test {
namespace {

using testing::eventually;
using testing::FakeCoordinator;
using testing::TemporaryFolder;

constexpr std::size_t kLive = 24U << 20U;

class ClientFrames : public ::testing::Test {
 protected:
  ClientFrames() {
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.name = "test";
    config.terms.idle_class = false;
    config.runtime_dir = folder_.path();
    config.connect_timeout = std::chrono::seconds{20};
    session_ = &Session::start(config);
    words_ = static_cast<std::uint64_t*>(session_->allocator().allocate(Bytes{kLive}));
    for (std::size_t i = 0; i < kLive / sizeof *words_; ++i) words_[i] = i * 3;
  }
  /// After everything: the newest limit is applied, and nothing is lost.
  void expect_a_change_works(Revision revision) {
    for (const Bytes limit : {8_MiB, 512_MiB, 4_MiB}) {
      coordinator_.send(limit_change(++revision, limit));
      const auto answer = coordinator_.next_if<wire::Answer>([&](const auto& a) {
        return a.revision == revision && a.outcome == wire::Outcome::kApplied;
      });
      ASSERT_TRUE(answer);
      EXPECT_LE(answer->held_bytes, limit.count());
      EXPECT_EQ(memory("limit_bytes"), limit.count());
    }
    expect_content();
    session_->step();
  }
  void expect_content() {
    for (std::size_t i = 0; i < kLive / sizeof *words_; ++i) ASSERT_EQ(words_[i], i * 3) << i;
  }
  [[nodiscard]] nlohmann::json stats() const {
    return nlohmann::json::parse(session_->stats_json());
  }
  [[nodiscard]] std::uint64_t memory(const char* name) const {
    return stats()["memory"][name].get<std::uint64_t>();
  }
  [[nodiscard]] std::uint64_t malformed() const {
    return stats()["job"]["malformed_frames_total"].get<std::uint64_t>();
  }
  [[nodiscard]] static wire::Change limit_change(Revision revision, Bytes limit) {
    wire::Change change;
    change.job_id = "job-1";
    change.revision = revision;
    change.limit_bytes = limit.count();
    change.reason = "the test wants it";
    return change;
  }
  [[nodiscard]] static std::vector<std::string> sound_frames() {
    wire::Registered registered;
    registered.job_id = "job-1";
    return {wire::encode(registered), wire::encode(limit_change(1, 8_MiB)),
            wire::encode(wire::SetReply{"job-1", 1, wire::Outcome::kRefused, "x"}),
            wire::encode(wire::Error{"no_memory", "x"})};
  }

  TemporaryFolder folder_;
  FakeCoordinator coordinator_{folder_.path()};
  Session* session_ = nullptr;
  std::uint64_t* words_ = nullptr;
};

TEST_F(ClientFrames, Law2_CutAnywhere) {
  std::uint64_t sent = 0;
  for (const std::string& frame : sound_frames()) {
    for (std::size_t length = 0; length < frame.size(); length += 3, ++sent) {
      coordinator_.send_frame(frame.substr(0, length));
    }
  }
  EXPECT_TRUE(eventually([&] { return malformed() == sent; })) << malformed() << " of " << sent;
  expect_a_change_works(10);
}

TEST_F(ClientFrames, Law2_WithBytesChangedAtRandom) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  // Its revision is stale in all that survive: no limit may change by accident.
  const std::string frame =
      wire::encode(wire::SetReply{"job-1", 1, wire::Outcome::kRefused, "a text"});
  for (int i = 0; i < 300; ++i) {
    std::string changed = frame;
    for (std::size_t n = 1 + random() % 4; n > 0; --n) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    coordinator_.send_frame(changed);
  }
  coordinator_.send_frame("{");
  EXPECT_TRUE(eventually([&] { return malformed() > 0; }));
  expect_a_change_works(10);
}

TEST_F(ClientFrames, Law2_Oversized) {
  coordinator_.send_frame(std::string(wire::kMaxFrameBytes + 1, ' '));
  EXPECT_TRUE(eventually([&] { return malformed() == 1; }));
  expect_a_change_works(10);
}

TEST_F(ClientFrames, Law2_DoubledAndOutOfOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  constexpr Revision kNewest = 40;
  std::vector<wire::Change> changes;
  for (Revision revision = 2; revision <= kNewest; ++revision) {
    const Bytes limit{(2 + revision % 7 * 4) << 20U};
    changes.insert(changes.end(), 2, limit_change(revision, limit));
  }
  std::shuffle(changes.begin(), changes.end(), random);
  for (const wire::Change& change : changes) coordinator_.send(change);
  const std::uint64_t newest = (2 + kNewest % 7 * 4) << 20U;
  EXPECT_TRUE(eventually([&] {
    session_->step();
    return memory("limit_bytes") == newest &&
           memory("device_bytes") + memory("host_touched_bytes") <= newest;
  })) << stats()["memory"].dump();
  EXPECT_EQ(malformed(), 0U);
  expect_content();
  expect_a_change_works(kNewest);
}

TEST_F(ClientFrames, Law2_NumbersAtTheirLimits) {
  wire::Change change = limit_change(wire::kMaxRevision + 1, 4_MiB);
  coordinator_.send(change);  // would leave no newer one
  change.revision = 2;
  change.limit_bytes = UINT64_MAX;
  coordinator_.send(change);  // a limit that no device has
  change.revision = 3;
  for (const ShareRange share : {ShareRange{1e300, -1e300}, ShareRange{-1e300, 1e300}}) {
    change.terms.share = share;  // neither is a range of a device's time
    coordinator_.send(change);
  }
  EXPECT_TRUE(eventually([&] { return malformed() == 3; })) << malformed();
  expect_a_change_works(10);
  EXPECT_LE(stats()["gate"]["share"].get<double>(), 1.0);
  EXPECT_GE(stats()["gate"]["share"].get<double>(), 0.0);
}

TEST_F(ClientFrames, PeersWithPagesThatAreNone) {
  ASSERT_TRUE(eventually([&] { return coordinator_.has_job_page(); }));
  const wire::UniqueFd unsealed{::memfd_create("unsealed", MFD_CLOEXEC)};
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(wire::kPageSize)), 0);
  coordinator_.add_peer(::getpid(), unsealed.get());
  const wire::UniqueFd empty = wire::make_page_memfd("empty");
  coordinator_.add_peer(::getpid(), empty.get());
  OwnPage other_version{JobId{"other"}, JobClass::kGuaranteed, 0};
  other_version.page().header.version = wire::kPageVersion + 1;
  coordinator_.add_peer(::getpid(), file_of(other_version).get());
  OwnPage other_size{JobId{"other"}, JobClass::kGuaranteed, 0};
  other_size.page().header.size = 1U << 30U;
  coordinator_.add_peer(::getpid(), file_of(other_size).get());
  expect_a_change_works(10);
}

}  // namespace
}  // namespace commensal::client_frames_test
