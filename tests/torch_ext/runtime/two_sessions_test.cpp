// SPDX-License-Identifier: Apache-2.0
// Two jobs' sessions and a real commensald: memory goes from one to the other while both train.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/wire/control_client.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/paths.h"
#include "tests/allocator/sanitizer_threads.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/runtime/session.h"

namespace commensal::two_sessions_test {
namespace {

using testing::eventually;

constexpr std::string_view kStep = "Optimizer.step#SGD.step";
constexpr Bytes kDevice = 256_MiB;
constexpr Bytes kMost = 200_MiB;  // what the opportunistic job fills before the other one grows
constexpr Bytes kNeed = 160_MiB;  // what the guaranteed job then needs at once

/// A child process that runs a job and says what it found as bits of its exit status. It and the
/// test exchange single bytes.
class JobProcess {
 public:
  /// What the job's own code sees.
  struct Side {
    int read_fd;
    int write_fd;
    /// Tells the test; false: it is gone.
    [[nodiscard]] bool say(char word) const { return ::write(write_fd, &word, 1) == 1; }
    [[nodiscard]] bool has_word() const {
      pollfd state{read_fd, POLLIN, 0};
      return ::poll(&state, 1, 0) == 1;
    }
    void wait_word() const {
      char word = 0;
      (void)!::read(read_fd, &word, 1);
    }
  };

  explicit JobProcess(const std::function<int(const Side&)>& job) {
    int down[2];
    int up[2];
    if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0) {
      throw std::runtime_error("cannot make a pipe");
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(down[1]);
      ::close(up[0]);
      int status = 127;
      try {
        testing::pass_over_sanitizer_threads();
        status = job({down[0], up[1]});
      } catch (const std::exception& error) {
        (void)std::fprintf(stderr, "job: %s\n", error.what());
      }
      ::_exit(status);
    }
    read_.reset(up[0]);
    write_.reset(down[1]);
    ::close(up[1]);
    ::close(down[0]);
  }
  ~JobProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;

  /// Waits for the job's next byte; 0: it ended, or said nothing for a minute.
  char hear() const {
    pollfd state{read_.get(), POLLIN, 0};
    char word = 0;
    if (::poll(&state, 1, 60000) != 1 || ::read(read_.get(), &word, 1) != 1) return 0;
    return word;
  }
  void say(char word) const { (void)!::write(write_.get(), &word, 1); }
  int end() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }

 private:
  pid_t pid_ = -1;
  wire::UniqueFd read_;
  wire::UniqueFd write_;
};

class TwoSessionsTest : public ::testing::Test {
 protected:
  TwoSessionsTest() {
    daemon_ = ::fork();
    if (daemon_ == 0) {
      const std::string folder = folder_.path().string();
      const std::string budget = std::to_string(kDevice.count());
      ::execl(COMMENSALD, COMMENSALD, "--foreground", "--runtime-dir", folder.c_str(),
              "--memory-budget", budget.c_str(), "--log-level", "warning", nullptr);
      ::_exit(127);
    }
  }
  ~TwoSessionsTest() override {
    ::kill(daemon_, SIGTERM);
    ::waitpid(daemon_, nullptr, 0);
  }

  [[nodiscard]] SessionConfig config(const char* job, JobClass job_class) const {
    SessionConfig config;
    config.job_id = JobId{job};
    config.job_class = job_class;
    config.terms.idle_class = false;
    config.runtime_dir = folder_.path();
    config.connect_timeout = std::chrono::seconds{20};
    return config;
  }
  [[nodiscard]] bool daemon_is_up() const {
    return eventually([&] {
      return std::filesystem::exists(wire::pages_socket_path(folder_.path(), "default"));
    });
  }
  [[nodiscard]] nlohmann::json job_status(const std::string& job) const {
    const wire::ControlClient client{wire::control_socket_path(folder_.path(), "default"),
                                     std::chrono::seconds{20}};
    const auto reply = std::get<wire::StatusReply>(client.request(wire::StatusRequest{job}));
    return reply.status["jobs"].at(0);
  }

  static void step(Session& session) {
    session.range_begin(kStep);
    session.range_end(kStep);
  }
  /// Data is a byte every `kStride`: each page has some, and a thread sanitizer, which looks at
  /// each byte of a memset, has little to look at.
  static constexpr std::size_t kStride = 512;
  static void fill(void* block, Bytes size, unsigned char with) {
    auto* bytes = static_cast<unsigned char*>(block);
    for (std::size_t i = 0; i < size.count(); i += kStride) bytes[i] = with;
  }
  static bool is_filled(const void* block, Bytes size, unsigned char with) {
    const auto* bytes = static_cast<const unsigned char*>(block);
    for (std::size_t i = 0; i < size.count(); i += kStride) {
      if (bytes[i] != with) return false;
    }
    return true;
  }

  /// Fills `kMost` and trains until it is told to look at its data and to end.
  [[nodiscard]] std::function<int(const JobProcess::Side&)> opportunistic(
      bool takes_steps = true) const {
    return [this, takes_steps](const JobProcess::Side& side) {
      Session& session = Session::start(config("o", JobClass::kOpportunistic));
      void* const block = session.allocator().allocate(kMost);
      fill(block, kMost, 5);
      if (!side.say('f')) return 1;
      while (!side.has_word()) {
        if (takes_steps) step(session);
        ::usleep(5000);
      }
      const int wrong = is_filled(block, kMost, 5) ? 0 : 2;
      session.allocator().deallocate(block);
      session.shutdown();
      return wrong;
    };
  }

  /// Grows by `kNeed` in one allocation when it is told to, and reports whether that worked.
  [[nodiscard]] std::function<int(const JobProcess::Side&)> guaranteed(
      const SessionConfig& with) const {
    return [with](const JobProcess::Side& side) {
      Session& session = Session::start(with);
      step(session);
      if (!side.say('r')) return 1;
      side.wait_word();
      int wrong = 0;
      void* block = nullptr;
      try {
        block = session.allocator().allocate(kNeed);
        fill(block, kNeed, 9);
      } catch (const OutOfMemory& error) {
        (void)std::fprintf(stderr, "guaranteed: %s\n", error.what());
        wrong |= 4;
      }
      // All of it ends on the device: what the slower tier served meanwhile comes back.
      const auto on_device = [&] {
        step(session);
        const AllocatorStats stats = session.allocator().stats();
        return stats.limit >= kNeed && stats.device >= kNeed && stats.host.is_zero();
      };
      if (wrong == 0 && !eventually(on_device)) wrong |= 8;
      if (wrong == 0 && !is_filled(block, kNeed, 9)) wrong |= 16;
      if (!side.say('g')) wrong |= 1;
      side.wait_word();
      session.allocator().deallocate(block);
      session.shutdown();
      return wrong;
    };
  }

  void expect_memory_to_change_hands(JobProcess& o, JobProcess& g) {
    g.say('g');
    ASSERT_EQ(g.hear(), 'g');
    const auto granted = [&](const char* job) {
      return Bytes{job_status(job)["lease"]["charged_bytes"].get<std::uint64_t>()};
    };
    EXPECT_GE(granted("g"), kNeed);
    EXPECT_LE(granted("g") + granted("o"), kDevice);
    EXPECT_EQ(job_status("g")["memory"]["out_of_memory_total"], 0);
    g.say('e');
    o.say('e');
    EXPECT_EQ(g.end(), 0) << "bits: 4 out of memory, 8 not on the device, 16 wrong data";
    EXPECT_EQ(o.end(), 0) << "bits: 2 wrong data";
  }

  testing::TemporaryFolder folder_;
  pid_t daemon_ = -1;
};

TEST_F(TwoSessionsTest, AGuaranteedJobsGrowthShrinksTheOther) {
  ASSERT_TRUE(daemon_is_up());
  JobProcess o{opportunistic()};
  ASSERT_EQ(o.hear(), 'f');
  JobProcess g{guaranteed(config("g", JobClass::kGuaranteed))};
  ASSERT_EQ(g.hear(), 'r');
  expect_memory_to_change_hands(o, g);
}

TEST_F(TwoSessionsTest, WithoutASlowerTierTheAllocationWaitsForTheOther) {
  ASSERT_TRUE(daemon_is_up());
  JobProcess o{opportunistic()};
  ASSERT_EQ(o.hear(), 'f');
  SessionConfig with = config("g", JobClass::kGuaranteed);
  with.host_cap = Bytes{};
  JobProcess g{guaranteed(with)};
  ASSERT_EQ(g.hear(), 'r');
  expect_memory_to_change_hands(o, g);
}

TEST_F(TwoSessionsTest, AJobThatTakesNoStepsGivesMemoryBackToo) {
  ASSERT_TRUE(daemon_is_up());
  JobProcess o{opportunistic(false)};
  ASSERT_EQ(o.hear(), 'f');
  SessionConfig with = config("g", JobClass::kGuaranteed);
  with.host_cap = Bytes{};
  JobProcess g{guaranteed(with)};
  ASSERT_EQ(g.hear(), 'r');
  expect_memory_to_change_hands(o, g);
}

/// Together they need 1.5 times the device, and the guaranteed one takes and frees its part in
/// bursts.
class BurstsTest : public TwoSessionsTest {
 protected:
  static constexpr Bytes kBurst = Bytes{kDevice.count() * 3 / 2} - kMost;

  [[nodiscard]] SessionConfig waits(std::chrono::milliseconds ask_wait) const {
    SessionConfig with = config("g", JobClass::kGuaranteed);
    with.ask_wait = ask_wait;
    return with;
  }

  static int burst(Session& session, int number) {
    void* block = nullptr;
    try {
      block = session.allocator().allocate(kBurst);
    } catch (const OutOfMemory& error) {
      (void)std::fprintf(stderr, "burst %d: %s\n", number, error.what());
      return 4;
    }
    fill(block, kBurst, static_cast<unsigned char>(number));
    int wrong = 0;
    // The first burst may have to wait for the other's disk; from then on the lease keeps it fast.
    // Once the memory is granted, the next step is enough, whatever is on the slower tier.
    const auto granted = [&] { return session.allocator().stats().limit >= kBurst; };
    if (!granted() && (number > 0 || !eventually(granted))) wrong |= 32;
    step(session);
    const AllocatorStats stats = session.allocator().stats();
    if (!stats.host.is_zero() || stats.device < kBurst) wrong |= 8;
    if (!is_filled(block, kBurst, static_cast<unsigned char>(number))) wrong |= 16;
    session.allocator().deallocate(block);
    step(session);
    return wrong;
  }

  /// Runs both; returns what went wrong in the guaranteed one. The other one has to survive.
  int run_bursts(const SessionConfig& with, int bursts) {
    EXPECT_TRUE(daemon_is_up());
    JobProcess o{opportunistic()};
    EXPECT_EQ(o.hear(), 'f');
    JobProcess g{[with, bursts](const JobProcess::Side& side) {
      Session& session = Session::start(with);
      step(session);
      int wrong = 0;
      for (int number = 0; number < bursts && wrong == 0; ++number) wrong = burst(session, number);
      if (!side.say('g')) wrong |= 1;
      side.wait_word();
      session.shutdown();
      return wrong;
    }};
    EXPECT_EQ(g.hear(), 'g');
    for (const char* job : {"g", "o"}) {
      EXPECT_EQ(job_status(job)["memory"]["out_of_memory_total"], 0) << job;
    }
    g.say('e');
    o.say('e');
    const int wrong = g.end();
    EXPECT_EQ(o.end(), 0) << "bits: 2 wrong data";
    return wrong;
  }
  static constexpr const char* kBits =
      "bits: 4 out of memory, 8 not on the device at the next step, 16 wrong data, 32 not granted";
};

/// Nobody dies or runs out of memory, no byte is lost, and each burst is fast from the next step.
TEST_F(BurstsTest, APairOfOneAndAHalfDevicesSurvivesAHundredBursts) {
  EXPECT_EQ(run_bursts(config("g", JobClass::kGuaranteed), 100), 0) << kBits;
}

TEST_F(BurstsTest, WhatOverflowedIsFastFromTheNextStepOn) {
  EXPECT_EQ(run_bursts(waits(std::chrono::milliseconds{0}), 3), 0) << kBits;
}

/// The twin: where nothing moves, the burst that overflowed stays slow. So it did overflow.
TEST_F(BurstsTest, WhatOverflowedStaysSlowWithoutLiveMoves) {
  SessionConfig with = waits(std::chrono::milliseconds{0});
  with.memory_policy = MemoryPolicy::kAntman;
  EXPECT_EQ(run_bursts(with, 1), 8) << kBits;
}

}  // namespace
}  // namespace commensal::two_sessions_test
