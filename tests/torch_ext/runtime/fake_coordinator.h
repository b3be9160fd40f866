// SPDX-License-Identifier: Apache-2.0
// A node coordinator that does what a test says: real sockets and pages, no decisions.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "coordinator/wire/handover.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/pages.h"

namespace commensal::testing {

/// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Polls until something is true; false after 20 s, so that a test fails rather than hangs.
[[nodiscard]] bool eventually(const std::function<bool()>& condition);

class FakeCoordinator {
 public:
  struct Behaviour {
    bool answers = true;  ///< false: takes registrations and says nothing
    std::optional<std::string> refuses;
    std::uint64_t limit_bytes = 1U << 30U;
    /// Of each device but the first; nothing: they are not answered.
    std::optional<std::uint64_t> other_limit_bytes = 1U << 29U;
    std::string law = "gap";
    JobClass job_class = JobClass::kOpportunistic;
    std::uint64_t revision = 1;
  };

  explicit FakeCoordinator(const std::filesystem::path& dir) : FakeCoordinator(dir, Behaviour()) {}
  FakeCoordinator(const std::filesystem::path& dir, Behaviour behaviour);
  /// Dies: closes its sockets without a word and leaves their files.
  ~FakeCoordinator();
  FakeCoordinator(const FakeCoordinator&) = delete;
  FakeCoordinator& operator=(const FakeCoordinator&) = delete;

  /// Sends to the process that registered last.
  void send(const wire::Message& message);
  void send_frame(std::string frame);
  /// Hands a guaranteed process's page over, with a pidfd of `pid`.
  void add_peer(std::int64_t pid, int page_fd);
  void peer_gone(std::int64_t pid);

  /// Waits for the next message of a kind; earlier ones of other kinds are dropped.
  template <typename T>
  std::optional<T> next() {
    return next_if<T>([](const T&) { return true; });
  }
  template <typename T, typename Wanted>
  std::optional<T> next_if(Wanted wanted) {
    std::unique_lock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (true) {
      while (!received_.empty()) {
        const wire::Message message = std::move(received_.front());
        received_.pop_front();
        if (const T* match = std::get_if<T>(&message); match != nullptr && wanted(*match)) {
          return *match;
        }
      }
      if (arrived_.wait_until(lock, until) == std::cv_status::timeout) return std::nullopt;
    }
  }

  [[nodiscard]] wire::DevicePage& page() noexcept { return *map_.as<wire::DevicePage>(); }
  [[nodiscard]] bool has_job_page() const noexcept { return has_job_page_.load(); }
  [[nodiscard]] const wire::JobPage& job_page() const noexcept {
    return *job_page_.as<wire::JobPage>();
  }
  /// Stops the device page's heartbeat.
  void fall_silent() noexcept { silent_.store(true); }

 private:
  void run();
  void accept();
  void take(std::string identity, const wire::Message& message);
  void command(std::function<void()> work);

  const Behaviour behaviour_;
  wire::UniqueFd page_fd_ = wire::make_page_memfd("fake-device");
  wire::MappedPage map_{page_fd_.get(), wire::kPageSize, true};
  wire::MappedPage job_page_;
  std::atomic<bool> has_job_page_{false};
  std::atomic<bool> silent_{false};
  std::atomic<bool> stop_{false};
  wire::UniqueFd listener_;
  wire::UniqueFd wake_;
  std::vector<wire::UniqueFd> connections_;
  void* router_ = nullptr;  // zmq::socket_t of the thread
  std::string endpoint_;
  std::string last_identity_;

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<wire::Message> received_;
  std::vector<std::function<void()>> commands_;
  bool ready_ = false;
  std::thread thread_;
};

}  // namespace commensal::testing
