// SPDX-License-Identifier: Apache-2.0
// A GPU in virtual time: what several processes give it, it does in time slices.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch_ext/gate/device_time.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal::testing {

/// What a card and its host take, as they were measured.
struct CardTimes {
  Duration slice{};              ///< that a process has while another one waits
  Duration change{};             ///< from one process to another, in which nobody's kernels run
  Duration launch{};             ///< of one kernel, on the host
  Duration mark{};               ///< an event or a write behind the work, on the host
  Duration look{};               ///< at the shared pages
  Duration wake_by_timer{};      ///< later than it was set to
  Duration wake_by_bell{};       ///< from the ring to the first instruction
  std::size_t launch_queue = 0;  ///< kernels that a process may have given it before a launch waits

  /// Reads `{"name": {"value": 1, "unit": "us", "source": "..."}, ...}`.
  /// @throws std::runtime_error naming the file and the constant that is missing or has no unit.
  [[nodiscard]] static CardTimes read(const std::string& path) {
    std::ifstream file(path);
    const auto all = nlohmann::json::parse(file, nullptr, false);
    if (!all.is_object()) throw std::runtime_error(path + ": not a card file");
    const auto value = [&](const char* name, const char* unit) {
      const auto found = all.find(name);
      const bool whole = found != all.end() && found->is_object() && found->contains("value") &&
                         (*found)["value"].is_number();
      if (!whole) throw std::runtime_error(path + ": no value of " + name);
      if (found->value("unit", "") != unit) {
        throw std::runtime_error(path + ": " + name + " is not in " + unit);
      }
      return (*found)["value"].get<double>();
    };
    const auto time = [&](const char* name) {
      return Duration{static_cast<Duration::rep>(1e3 * value(name, "us"))};
    };
    return {.slice = time("slice"),
            .change = time("change"),
            .launch = time("launch"),
            .mark = time("mark"),
            .look = time("look"),
            .wake_by_timer = time("wake_by_timer"),
            .wake_by_bell = time("wake_by_bell"),
            .launch_queue = static_cast<std::size_t>(value("launch_queue", "kernels"))};
  }
};

/// One compute engine, which processes have in turns, and two copy engines, one each way.
///
/// What a process gives it is done in order. The engine stays with a process while it has kernels
/// and nobody else waits; at the border of a slice, and when it runs dry, it goes to the next one
/// that has work, which takes `change`. A kernel is interrupted at the border and goes on later.
class VirtualCard {
 public:
  using Process = std::size_t;
  using Event = std::uint64_t;
  enum class Way : std::uint8_t { kIn, kOut };

  explicit VirtualCard(const CardTimes& times) : times_(times) {}

  [[nodiscard]] Process add_process() {
    processes_.emplace_back();
    return processes_.size() - 1;
  }
  void kernel(Process process, Duration takes) { give(process, {.left = takes}); }
  void copy(Process process, Way way, Duration takes) {
    give(process, {.left = takes, .copies = way});
  }
  /// An event behind what the process has given. It is reached when that is done.
  [[nodiscard]] Event record(Process process) {
    give(process, {.event = ++newest_});
    return newest_;
  }
  /// The same for a word that the card writes.
  void write(Process process, wire::Word& word, std::uint64_t value) {
    give(process, {.word = &word, .value = value});
  }
  [[nodiscard]] std::optional<TimePoint> reached(Event event) const {
    const auto found = reached_.find(event);
    return found == reached_.end() ? std::nullopt : std::optional{found->second};
  }
  /// Kernels and copies that the process has given and that are not done.
  [[nodiscard]] std::size_t queued(Process process) const { return processes_[process].given; }
  /// For how long the process's kernels have run.
  [[nodiscard]] Duration ran(Process process) const { return processes_[process].ran; }
  /// For how long they ran while another process had kernels, too.
  /// From each time that this process ran dry to the next kernel that another one gave it.
  void watch(Process process) { watched_ = process; }
  [[nodiscard]] const std::vector<Duration>& openings() const { return openings_; }
  /// When something changes next if nothing more is given; the largest time: never.
  [[nodiscard]] TimePoint next_change() const { return step(TimePoint::max()); }

  /// Works until then.
  void advance(TimePoint to) {
    while (at_ < to) {
      settle();
      const TimePoint next = step(to);
      pass(next - at_);
      at_ = next;
    }
    settle();
  }

 private:
  struct Command {
    Duration left{};
    std::optional<Way> copies{};
    Event event = 0;
    wire::Word* word = nullptr;
    std::uint64_t value = 0;
    [[nodiscard]] bool takes_time() const { return event == 0 && word == nullptr; }
  };
  struct Queue {
    std::deque<Command> commands;
    std::size_t given = 0;
    Duration ran{};
  };

  void give(Process process, const Command& command) {
    Queue& queue = processes_[process];
    if (command.takes_time()) {
      if (process == watched_) dry_since_.reset();
      if (process != watched_ && dry_since_ && queue.given == 0) {
        openings_.push_back(at_ - *std::exchange(dry_since_, std::nullopt));
      }
      ++queue.given;
    }
    queue.commands.push_back(command);
    settle();
  }
  /// Whether the engine has something to do for a process.
  [[nodiscard]] bool wants(Process process) const {
    const auto& commands = processes_[process].commands;
    return !commands.empty() && !commands.front().copies;
  }
  [[nodiscard]] std::optional<Process> other_that_wants() const {
    for (std::size_t i = 1; i < processes_.size(); ++i) {
      const Process other = (owner_ + i) % processes_.size();
      if (wants(other)) return other;
    }
    return std::nullopt;
  }
  /// Copy engines serve the first process that is at a copy that way.
  [[nodiscard]] std::optional<Process> copying(Way way) const {
    for (Process i = 0; i < processes_.size(); ++i) {
      const auto& commands = processes_[i].commands;
      if (!commands.empty() && commands.front().copies == way) return i;
    }
    return std::nullopt;
  }

  /// Does what takes no time now.
  void settle() {
    for (bool again = true; again;) {
      again = false;
      for (const Way way : {Way::kIn, Way::kOut}) {
        const auto process = copying(way);
        if (!process || processes_[*process].commands.front().left > Duration::zero()) continue;
        pop(*process);
        again = true;
      }
      if (changing_ > Duration::zero() || processes_.empty()) continue;
      if (wants(owner_)) {
        Command& first = processes_[owner_].commands.front();
        if (first.takes_time() && first.left > Duration::zero()) {
          if (left_ > Duration::zero()) continue;
          left_ = times_.slice;
          const auto other = other_that_wants();
          if (!other) continue;
          change_to(*other);
        } else {
          if (first.event != 0) reached_[first.event] = at_;
          if (first.word != nullptr) first.word->store(first.value);
          pop(owner_);
        }
        again = true;
      } else if (const auto other = other_that_wants()) {
        change_to(*other);
        again = true;
      }
    }
  }
  void pop(Process process) {
    Queue& queue = processes_[process];
    if (queue.commands.front().takes_time() && --queue.given == 0 && process == watched_) {
      dry_since_ = at_;
    }
    queue.commands.pop_front();
  }
  void change_to(Process process) {
    owner_ = process;
    changing_ = times_.change;
    left_ = times_.slice;
  }

  /// When the next of what is going on ends, `most` at the latest.
  [[nodiscard]] TimePoint step(TimePoint most) const {
    TimePoint next = most;
    const auto ends = [&](Duration left) { next = std::min(next, at_ + left); };
    for (const Way way : {Way::kIn, Way::kOut}) {
      if (const auto process = copying(way)) ends(processes_[*process].commands.front().left);
    }
    if (changing_ > Duration::zero()) {
      ends(changing_);
    } else if (!processes_.empty() && wants(owner_)) {
      ends(std::min(processes_[owner_].commands.front().left, left_));
    }
    return next;
  }
  void pass(Duration time) {
    for (const Way way : {Way::kIn, Way::kOut}) {
      if (const auto process = copying(way)) processes_[*process].commands.front().left -= time;
    }
    if (changing_ > Duration::zero()) {
      changing_ -= time;
    } else if (!processes_.empty() && wants(owner_)) {
      Queue& queue = processes_[owner_];
      queue.commands.front().left -= time;
      left_ -= time;
      queue.ran += time;
    }
  }

  const CardTimes times_;
  std::deque<Queue> processes_;
  std::map<Event, TimePoint> reached_;
  Event newest_ = 0;
  TimePoint at_{std::chrono::hours{1}};
  Process owner_ = 0;
  Duration left_{};      // of the owner's slice
  Duration changing_{};  // until the owner begins
  std::optional<Process> watched_;
  std::optional<TimePoint> dry_since_;  // and nobody has given anything since
  std::vector<Duration> openings_;
};

/// The card's clock of the work of one process: the time between two events, as CudaWorkClock has
/// it.
class VirtualWorkClock final : public WorkClock {
 public:
  /// @param spend  passes time on the calling thread.
  VirtualWorkClock(VirtualCard& card, VirtualCard::Process process,
                   std::function<void(Duration)> spend, Duration mark)
      : card_(card), process_(process), spend_(std::move(spend)), mark_(mark) {}

  [[nodiscard]] bool done_on_return() const noexcept override { return false; }
  void begin() noexcept override { last_ = put(); }
  [[nodiscard]] Marker mark() noexcept override {
    const VirtualCard::Event from = last_;
    last_ = put();
    marks_[last_] = from;
    return last_;
  }
  [[nodiscard]] std::optional<Duration> passed(Marker marker) noexcept override {
    const auto to = card_.reached(marker);
    if (!to) return std::nullopt;
    const auto found = marks_.find(marker);
    const Duration took = *to - card_.reached(found->second).value_or(*to);
    marks_.erase(found);
    return took;
  }

 private:
  VirtualCard::Event put() {
    spend_(mark_);
    return card_.record(process_);
  }

  VirtualCard& card_;
  const VirtualCard::Process process_;
  const std::function<void(Duration)> spend_;
  const Duration mark_;
  VirtualCard::Event last_ = 0;
  std::map<Marker, VirtualCard::Event> marks_;
};

}  // namespace commensal::testing
