// SPDX-License-Identifier: Apache-2.0
// One poll loop: signals, reports, deadlines.
#include "coordinator/engines/local/gang_head.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "coordinator/engines/local/keeper_signals.h"
#include "coordinator/engines/local/program_start.h"
#include "coordinator/engines/local/rank_environment.h"
#include "coordinator/engines/local/system_failure.h"

namespace commensal::cluster::local {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

std::string end_of(const std::string& name, int status) {
  return WIFSIGNALED(status) ? name + " was killed by signal " + std::to_string(WTERMSIG(status))
                             : name + " ended with " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

bool needs_head(const Placed& placed) {
  return !placed.launcher.empty() && nodes_of(placed).size() > 1;
}

GangHead::GangHead(AttemptFolder folder, HeldJob held, Placed placed, Waits waits)
    : folder_(std::move(folder)),
      held_(std::move(held)),
      placed_(std::move(placed)),
      waits_(waits),
      book_(nodes_of(placed_)),
      signals_(take_signals()) {
  ::signal(SIGPIPE, SIG_IGN);
}

GangHead::~GangHead() { kill_launcher(); }

Outcome GangHead::run() {
  start_launcher();
  ready_until_ = Clock::now() + waits_.ready;
  while (launcher_ != 0) wait_for_something();
  read_reports();  // what was on its way
  return book_.outcome(launcher_end_);
}

void GangHead::start_launcher() {
  Pipe orders = make_pipe();
  Pipe reports = make_pipe();
  ProgramStart program;
  program.give(orders.read.get(), 0);
  program.give(reports.write.get(), 1);
  launcher_ = program.start(placed_.launcher, own_variables());
  orders_ = std::move(orders.write);
  reports_ = std::move(reports.read);
  if (::fcntl(reports_.get(), F_SETFL, O_NONBLOCK) != 0) fail("cannot read without waiting");
}

void GangHead::wait_for_something() {
  auto next = kill_at_;
  if (ready_until_) next = next ? std::min(*next, *ready_until_) : *ready_until_;
  int timeout = -1;
  if (next) {
    const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now());
    timeout = static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 3'600'000));
  }
  // A negative descriptor is left out.
  std::array<pollfd, 2> ready{pollfd{signals_.get(), POLLIN, 0},
                              pollfd{reports_ ? reports_.get() : -1, POLLIN, 0}};
  if (::poll(ready.data(), ready.size(), timeout) < 0 && errno != EINTR) {
    fail("cannot wait for reports");
  }
  read_reports();
  read_signals();
  follow_book();
  look_at_clock();
}

void GangHead::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) reap();
    if (info.ssi_signo != SIGTERM) continue;
    const auto grace = folder_.take_back();
    if (grace) {
      book_.taken_back();
    } else {
      book_.told_to_end();
    }
    stop(grace.value_or(held_.grace));
  }
}

void GangHead::read_reports() {
  std::array<char, 4096> piece;
  while (reports_) {
    const ssize_t count = ::read(reports_.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      reports_.reset();
      return;
    }
    for (const std::string& line : lines_.add({piece.data(), static_cast<std::size_t>(count)})) {
      const auto report = report_of(line);
      if (report) book_.note(*report);
      if (!report) spdlog::info("{}: {}", placed_.launcher.front(), line);
    }
  }
}

void GangHead::follow_book() {
  if (book_.has_cause() && !stopping_) stop(held_.grace);
  if (begun_ || stopping_ || !book_.all_ready()) return;
  begun_ = true;
  ready_until_.reset();
  if (!folder_.set_begun()) throw std::runtime_error("it had begun before");
  say(StartRanks{book_.port()});
}

void GangHead::look_at_clock() {
  const auto now = Clock::now();
  if (ready_until_ && now >= *ready_until_) {
    ready_until_.reset();
    book_.waited_in_vain(waits_.ready);
    stop(0ms);
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    kill_launcher();
  }
}

void GangHead::stop(milliseconds grace) {
  stopping_ = true;
  ready_until_.reset();
  say(StopRanks{grace});
  const auto deadline = Clock::now() + std::min<milliseconds>(grace, 24h) + waits_.past_grace;
  kill_at_ = kill_at_ ? std::min(*kill_at_, deadline) : deadline;
}

void GangHead::say(const Order& order) {
  // Where nobody reads any more, the launcher is about to end.
  if (orders_ && !write_line(orders_.get(), line_of(order))) orders_.reset();
}

void GangHead::reap() {
  int status = 0;
  pid_t pid = 0;
  do {
    pid = ::waitpid(launcher_, &status, WNOHANG);
  } while (pid < 0 && errno == EINTR);
  if (pid < 0) fail("cannot wait for " + placed_.launcher.front());
  if (pid != launcher_) return;
  launcher_ = 0;
  launcher_end_ = end_of(placed_.launcher.front(), status);
}

void GangHead::kill_launcher() const {
  if (launcher_ > 0) ::kill(-launcher_, SIGKILL);
}

}  // namespace commensal::cluster::local
