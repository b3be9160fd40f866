// SPDX-License-Identifier: Apache-2.0
// One epoll loop: signals, output, deadlines.
#include "coordinator/engines/local/keeper.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "coordinator/engines/local/keeper_signals.h"
#include "coordinator/engines/local/process.h"
#include "coordinator/engines/local/system_failure.h"

namespace commensal::cluster::local {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using wire::UniqueFd;

constexpr std::uint64_t kSignals = ~std::uint64_t{0};  // the key of the signals' descriptor
constexpr std::uint64_t kOrders = kSignals - 1;        // and of the one with orders
constexpr auto kBetweenKills = 50ms;  // what a dying process has started meanwhile is killed then

void add(int events, int fd, std::uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (::epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) != 0) fail("cannot watch a descriptor");
}

/// A port of this address that nobody has now; rank 0 opens it.
int free_port(in_addr_t at) {
  const UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(at);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!fd || ::bind(fd.get(), generic, size) != 0 || ::getsockname(fd.get(), generic, &size) != 0) {
    fail("cannot find a free port");
  }
  return ntohs(address.sin_port);
}

Environment own_environment() {
  Environment variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text{*entry};
    const std::size_t end = text.find('=');
    if (end != std::string::npos) variables.emplace(text.substr(0, end), text.substr(end + 1));
  }
  return variables;
}

/// Coordinators beside each other give out the same numbers: a name of this process's own.
std::string group_name(const Attempt& attempt) {
  const ProcessIdentity self = own_identity();
  return "commensal-" + attempt.job.str() + '-' + std::to_string(attempt.number) + "-limits-" +
         std::to_string(self.pid) + '-' + std::to_string(self.start_ticks);
}

/// Numbers of the ranks that a keeper starts.
std::vector<std::size_t> ranks_of(const Placed& placed, std::optional<std::size_t> group) {
  std::vector<std::size_t> own;
  for (const RankNumbers& numbers : number_ranks(placed.devices)) {
    if (!group || numbers.group == *group) own.push_back(numbers.rank);
  }
  return own;
}

}  // namespace

Keeper::Keeper(AttemptFolder folder, HeldJob held, Placed placed, std::optional<std::size_t> group)
    : folder_(std::move(folder)),
      held_(std::move(held)),
      placed_(std::move(placed)),
      self_(to_string(own_identity())),
      numbers_(ranks_of(placed_, group)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      signals_(take_signals()),
      ending_(numbers_.size(), placed_.devices.size() > 1) {
  if (!events_) fail("cannot make a descriptor for events");
  add(events_.get(), signals_.get(), kSignals);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) fail("cannot become a subreaper");
  ::signal(SIGPIPE, SIG_IGN);
  for (const std::size_t number : numbers_) {
    ranks_.push_back(Rank{number, OutputLog{folder_.log(number), held_.logs}, 0, UniqueFd{}});
  }
  if (group == 0U) port_ = free_port(INADDR_ANY);
  if (!group && (ranks_.size() > 1 || held_.job.pre_run)) port_ = free_port(INADDR_LOOPBACK);
  // Limits are those of a node: where several stand for this machine, of all of them together.
  const auto nodes =
      group ? 1 : static_cast<std::int64_t>(number_ranks(placed_.devices).front().groups);
  groups_ = make_limit_groups({}, node::kernel_group_files(), group_name(folder_.attempt()),
                              {held_.job.cpu_milli * nodes, held_.job.host_memory_mib * nodes});
  for (const std::string& problem : groups_.problems) spdlog::warn("{}", problem);
}

Keeper::~Keeper() { remove_groups(node::kernel_group_files(), groups_.folders); }

Outcome Keeper::run() {
  try {
    start_ranks();
    while (!childless_) wait_for_something();
  } catch (const std::exception&) {
    signal_all(SIGKILL);
    throw;
  }
  for (Rank& rank : ranks_) read_output(rank);
  node::GroupFiles& files = node::kernel_group_files();
  const auto killed = killed_for_memory(files, groups_.folders);
  // Whoever reads the outcome finds nothing of the attempt left.
  remove_groups(files, groups_.folders);
  return ending_.outcome(killed == 0 ? ""
                                     : "out of memory: its limit is " +
                                           std::to_string(held_.job.host_memory_mib) + " MiB");
}

void Keeper::start_ranks() {
  const RankContext context{folder_.attempt(), held_, placed_, port_, self_};
  const auto numbers = number_ranks(placed_.devices);
  if (held_.job.time_limit) limit_at_ = Clock::now() + *held_.job.time_limit;
  for (std::size_t index = 0; index < ranks_.size() && !ending_.has_cause(); ++index) {
    start(index, context, numbers[ranks_[index].number]);
  }
  if (ending_.has_cause()) stop(held_.grace);
}

void Keeper::start(std::size_t index, const RankContext& context, const RankNumbers& numbers) {
  RankStart start{placed_.command,
                  rank_environment(own_environment(), context, numbers),
                  held_.job.directory,
                  group_,
                  {}};
  for (const auto& folder : groups_.folders) start.groups.push_back(folder.native());
  StartedRank started = start_rank(start);
  // The first one's number stays that of the group until it is waited for, which is done later.
  if (group_ == 0) group_ = started.pid;
  for (const std::string& problem : started.problems) spdlog::warn("{}", problem);
  if (started.failure) ending_.start_failed(started.failure->exit_code, started.failure->reason);
  Rank& rank = ranks_[index];
  rank.pid = started.pid;
  rank.output = std::move(started.output);
  add(events_.get(), rank.output.get(), index);
}

void Keeper::wait_for_something() {
  auto next = kill_at_;
  if (limit_at_ && !stopping_) next = next ? std::min(*next, *limit_at_) : *limit_at_;
  int timeout = -1;
  if (next) {
    const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now());
    timeout = static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 3'600'000));
  }
  std::array<epoll_event, 16> ready{};
  const int count = ::epoll_wait(events_.get(), ready.data(), ready.size(), timeout);
  if (count < 0 && errno != EINTR) fail("cannot wait for events");
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = ready[static_cast<std::size_t>(i)].data.u64;
    if (key == kSignals) {
      read_signals();
    } else if (key == kOrders) {
      read_orders();
    } else {
      read_output(ranks_.at(key));
    }
  }
  reap();
  look_at_clock();
}

void Keeper::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGTERM) note_take_back();
  }
}

void Keeper::follow(int orders) {
  orders_ = orders;
  add(events_.get(), orders_, kOrders);
}

void Keeper::read_orders() {
  std::array<char, 4096> piece;
  const ssize_t count = ::read(orders_, piece.data(), piece.size());
  if (count < 0 && errno == EINTR) return;
  if (count <= 0) {
    if (::epoll_ctl(events_.get(), EPOLL_CTL_DEL, orders_, nullptr) != 0) {
      fail("cannot leave a descriptor");
    }
    ending_.head_gone();
    stop(held_.grace);
    return;
  }
  for (const std::string& line :
       order_lines_.add({piece.data(), static_cast<std::size_t>(count)})) {
    const auto order = order_of(line);
    const auto* stop_ranks = order ? std::get_if<StopRanks>(&*order) : nullptr;
    if (stop_ranks == nullptr) continue;
    ending_.taken_back();
    stop(stop_ranks->grace);
  }
}

void Keeper::note_take_back() {
  const auto grace = folder_.take_back();
  if (grace) {
    ending_.taken_back();
  } else {
    ending_.keeper_told_to_end();
  }
  stop(grace.value_or(held_.grace));
}

void Keeper::read_output(Rank& rank) {
  std::array<char, 65536> piece;
  // A rank that never stops printing must not keep us from the others.
  const int most = childless_ ? -1 : 4;
  for (int i = 0; rank.output && i != most; ++i) {
    const ssize_t count = ::read(rank.output.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      rank.output.reset();
    } else {
      rank.log.append({piece.data(), static_cast<std::size_t>(count)});
    }
  }
}

void Keeper::reap() {
  while (true) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid == 0) break;
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0 && errno != ECHILD) fail("cannot wait for processes");
    if (pid < 0) {
      childless_ = true;
      return;
    }
    for (Rank& rank : ranks_) {
      if (rank.pid != pid) continue;
      rank.pid = 0;
      ending_.rank_ended(rank.number, status);
    }
  }
  // A rank failed, or all have ended and left processes behind.
  if (ending_.has_cause() && !stopping_) stop(held_.grace);
}

void Keeper::look_at_clock() {
  const auto now = Clock::now();
  if (limit_at_ && !stopping_ && now >= *limit_at_) {
    ending_.time_limit(*held_.job.time_limit);
    stop(held_.grace);
  }
  if (kill_at_ && now >= *kill_at_ && !childless_) {
    signal_all(SIGKILL);
    kill_at_ = now + kBetweenKills;
  }
}

void Keeper::stop(milliseconds grace) {
  const auto deadline = Clock::now() + std::min<milliseconds>(grace, 24h);
  kill_at_ = kill_at_ ? std::min(*kill_at_, deadline) : deadline;
  if (stopping_) return;
  stopping_ = true;
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // one that was stopped hears it only then
}

bool Keeper::has_ranks() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.pid != 0; });
}

// A number stands for our own processes only while one of them has not been waited for.
void Keeper::signal_all(int signal) {
  const auto children = children_of(::getpid());
  const auto in_group = [&](pid_t pid) { return ::getpgid(pid) == group_; };
  const bool group =
      group_ != 0 && (has_ranks() || std::any_of(children.begin(), children.end(), in_group));
  if (group) ::kill(-group_, signal);
  for (const pid_t pid : children) {
    if (!group || !in_group(pid)) ::kill(pid, signal);
  }
}

}  // namespace commensal::cluster::local
