// SPDX-License-Identifier: Apache-2.0
// Two jobs' processes and a daemon, killed at random: random operations on blocks with checksums,
// a million in release, a tenth of it where every access is checked. No byte is lost, the ledger
// ends as what the jobs hold, and nothing is left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/wire/handover.h"
#include "tests/allocator/fuzz.h"
#include "tests/coordinator/fake_job.h"
#include "tests/faults/sharing_job.h"

namespace commensal::node::sharing_fuzz_test {
namespace {

using namespace std::chrono_literals;
using commensal::testing::SharingPage;
using commensal::testing::SharingPhase;
using nlohmann::json;

constexpr std::uint64_t kDevice = std::uint64_t{48} << 20U;

/// A job that is killed and started again, and its page.
class SharingJob {
 public:
  SharingJob(const DaemonFolder& folder, const std::filesystem::path& spill, std::string id,
             std::string job_class, std::uint64_t seed, std::string behaviour = "")
      : folder_(folder),
        spill_(spill),
        id_(std::move(id)),
        class_(std::move(job_class)),
        behaviour_(std::move(behaviour)),
        seed_(seed),
        page_file_(folder.path() / (id_ + ".page")) {
    const int fd = ::open(page_file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(SharingPage)) != 0) throw std::runtime_error("no page");
    page_ = static_cast<SharingPage*>(
        ::mmap(nullptr, sizeof(SharingPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    ::close(fd);
    if (page_ == MAP_FAILED) throw std::runtime_error("cannot map a page");
  }
  ~SharingJob() {
    kill();
    ::munmap(page_, sizeof(SharingPage));
    std::filesystem::remove(page_file_);
  }
  SharingJob(const SharingJob&) = delete;
  SharingJob& operator=(const SharingJob&) = delete;

  void start() {
    const std::string seed = std::to_string(seed_ + 1000 * ++starts_);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::execl(SHARING_JOB, SHARING_JOB, folder_.path().c_str(), id_.c_str(), class_.c_str(),
            spill_.c_str(), page_file_.c_str(), seed.c_str(), behaviour_.c_str(), nullptr);
    ::_exit(127);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] bool lives() {
    int status = 0;
    if (pid_ <= 0 || ::waitpid(pid_, &status, WNOHANG) == 0) return pid_ > 0;
    pid_ = -1;
    return false;
  }
  [[nodiscard]] SharingPage& page() noexcept { return *page_; }
  [[nodiscard]] const std::string& id() const noexcept { return id_; }

 private:
  const DaemonFolder& folder_;
  std::filesystem::path spill_;
  std::string id_;
  std::string class_;
  std::string behaviour_;
  std::uint64_t seed_;
  std::filesystem::path page_file_;
  SharingPage* page_ = nullptr;
  std::uint64_t starts_ = 0;
  pid_t pid_ = -1;
};

/// A folder on a disk for the spill files.
class SpillFolder {
 public:
  SpillFolder() {
    std::string pattern = "/var/tmp/commensal-sharing-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder");
    path_ = pattern;
  }
  ~SpillFolder() { std::filesystem::remove_all(path_); }
  SpillFolder(const SpillFolder&) = delete;
  SpillFolder& operator=(const SpillFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Processes that were started with a path in their arguments.
std::vector<std::string> processes_of(const std::filesystem::path& path) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc"}) {
    std::ostringstream text;  // not an istreambuf_iterator: it throws where a process has ended
    text << std::ifstream{entry.path() / "cmdline"}.rdbuf();
    const std::string line = std::move(text).str();
    if (line.find(path.string()) != std::string::npos) found.push_back(line);
  }
  return found;
}

class SharingFuzz : public ::testing::Test {
 protected:
  void begin_daemon() {
    const Finished started =
        folder_.start({"--memory-budget", std::to_string(kDevice), "--silence", "2"});
    ASSERT_EQ(started.code, 0) << started.output;
    daemon_runs_ = true;
  }
  void kill_daemon() {
    ASSERT_TRUE(folder_.stop(SIGKILL));
    daemon_runs_ = false;
  }
  std::uint64_t operations() {
    std::uint64_t sum = 0;
    for (const auto& job : jobs_) sum += job->page().operations;
    return sum;
  }
  /// Waits until so many operations were done; a job that ends by itself is a failure.
  void wait_for(std::uint64_t wanted) {
    std::uint64_t seen = operations();
    auto deadline = std::chrono::steady_clock::now() + 120s;  // without any operation
    while (operations() < wanted) {
      for (const auto& job : jobs_) {
        ASSERT_TRUE(job->lives()) << job->id() << " ended by itself";
        ASSERT_EQ(job->page().lost_bytes, 0U) << job->id() << " lost bytes";
      }
      if (operations() != seen) deadline = std::chrono::steady_clock::now() + 120s;
      seen = operations();
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "nothing goes on";
      std::this_thread::sleep_for(2ms);
    }
  }
  void strike(std::mt19937_64& random) {
    const std::uint64_t what = random() % 6;
    SharingJob& job = *jobs_[random() % 2];
    if (what < 3) {
      job.kill();
      job.start();
    }
    if (what < 2 || !daemon_runs_) return;  // a job alone
    kill_daemon();
    if (HasFatalFailure() || what == 5) return;  // the jobs go on alone until the next time
    begin_daemon();
  }
  [[nodiscard]] json status_of(const std::string& id) const {
    const json status = folder_.status();
    for (const json& each : status["jobs"]) {
      if (each["job"]["id"] == id && each["ended"] == false) return each;
    }
    return {};
  }
  /// The ledger is what the jobs hold, and fits into the device.
  void expect_ledger() {
    for (const auto& job : jobs_) job->page().phase = SharingPhase::kSettle;
    EXPECT_TRUE(eventually([&] {
      std::uint64_t charged = 0;
      for (const auto& job : jobs_) {
        const json now = status_of(job->id());
        if (now.is_null() || !job->page().settled) return false;
        const auto lease = now["lease"]["charged_bytes"].get<std::uint64_t>();
        const std::uint64_t held = job->page().device_bytes;
        if (now["memory"]["device_bytes"] != held || lease < held) return false;
        if (now["memory"]["live_bytes"] != job->page().live_bytes.load()) return false;
        charged += lease;
      }
      return charged <= kDevice;
    })) << held_by_the_jobs()
        << folder_.status().dump(1);
  }
  [[nodiscard]] std::string held_by_the_jobs() {
    std::string text;
    for (const auto& job : jobs_) {
      text += job->id() + ": " + std::to_string(job->page().live_bytes) + " live, " +
              std::to_string(job->page().device_bytes) + " on the device\n";
    }
    return text;
  }
  void expect_the_end() {
    for (const auto& job : jobs_) job->page().phase = SharingPhase::kEnd;
    for (const auto& job : jobs_) EXPECT_EQ(job->wait(), 0) << job->id();
    EXPECT_TRUE(eventually([&] { return folder_.status()["devices"][0]["free_bytes"] == kDevice; }))
        << folder_.status().dump(1);
    EXPECT_TRUE(folder_.stop(SIGTERM));
    std::uint64_t moved = 0;
    for (const auto& job : jobs_) {
      SharingPage& page = job->page();
      EXPECT_EQ(page.lost_bytes, 0U) << job->id();
      EXPECT_EQ(page.out_of_memory, 0U) << job->id();
      moved += page.moved_bytes;
      std::cout << job->id() << ": " << page.operations << " operations, "
                << (page.checked_bytes >> 20U) << " MiB checked, " << (page.moved_bytes >> 20U)
                << " MiB moved, " << page.forks << " forks\n";
    }
    EXPECT_GT(moved, 0U) << "live memory of theirs";
  }
  void expect_nothing_left() {
    jobs_.clear();
    EXPECT_TRUE(std::filesystem::is_empty(spill_.path())) << "spill files";
    for (const auto& file : std::filesystem::directory_iterator{folder_.path()}) {
      EXPECT_FALSE(file.is_socket()) << file.path();
    }
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process of ours";
    for (const std::string& line : processes_of(folder_.path())) ADD_FAILURE() << line;
    EXPECT_EQ(open_descriptors(), descriptors_);
  }

  std::size_t descriptors_ = open_descriptors();
  DaemonFolder folder_;
  SpillFolder spill_;
  std::vector<std::unique_ptr<SharingJob>> jobs_;
  bool daemon_runs_ = false;
};

TEST_F(SharingFuzz, P8_Law2_TwoJobsAndADaemonKilledAtRandomLoseNoByte) {
  const std::uint64_t seed = fuzz_seed();
  const std::uint64_t wanted = fuzz_operations(1'000'000, 100'000);
  std::mt19937_64 random{seed};
  begin_daemon();
  jobs_.push_back(std::make_unique<SharingJob>(folder_, spill_.path(), "g", "guaranteed", seed));
  jobs_.push_back(
      std::make_unique<SharingJob>(folder_, spill_.path(), "o", "opportunistic", seed + 500));
  for (const auto& job : jobs_) job->start();
  const std::uint64_t most = wanted < 500'000 ? 8 : 20;
  for (std::uint64_t strikes = 1; strikes <= most; ++strikes) {
    const std::uint64_t part = wanted / (most + 1);
    wait_for(part * strikes + random() % part);
    if (HasFatalFailure()) return;
    if (daemon_runs_) {
      strike(random);
    } else {
      begin_daemon();
    }
    if (HasFatalFailure()) return;
  }
  if (!daemon_runs_) begin_daemon();
  wait_for(wanted);
  if (HasFatalFailure()) return;
  expect_ledger();
  expect_the_end();
  expect_nothing_left();
}

// The twin: a writer that nobody stops writes between the comparison and the exchange of a chunk.
TEST_F(SharingFuzz, P8_TheChecksFindAWriteThatIsLost) {
  begin_daemon();
  jobs_.push_back(std::make_unique<SharingJob>(folder_, spill_.path(), "l", "opportunistic",
                                               fuzz_seed(), "loses_writes"));
  jobs_.front()->start();
  SharingPage& page = jobs_.front()->page();
  EXPECT_TRUE(eventually([&] { return page.lost_bytes > 0 || !jobs_.front()->lives(); }));
  EXPECT_GT(page.lost_bytes, 0U);
  jobs_.front()->kill();
}

}  // namespace
}  // namespace commensal::node::sharing_fuzz_test
