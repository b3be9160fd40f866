// SPDX-License-Identifier: Apache-2.0
// The hand-over socket's server side.
#include "coordinator/node/page_server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include "coordinator/wire/messages.h"
#include "coordinator/wire/pages.h"

namespace commensal::node {
namespace {

using wire::Handover;
using wire::HandoverKind;
using wire::UniqueFd;

void make_non_blocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a socket non-blocking");
  }
}

/// The text of a refusal if the peer is another user's process; empty if it may come in.
std::string credentials_problem(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return "cannot tell whose process this is: " + std::generic_category().message(errno);
  }
  if (peer.uid == geteuid()) return "";
  return "process " + std::to_string(peer.pid) + " belongs to user " + std::to_string(peer.uid) +
         ", this coordinator to " + std::to_string(geteuid());
}

bool is_pidfd(int fd) {
  std::ifstream info{"/proc/self/fdinfo/" + std::to_string(fd)};
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("Pid:")) return true;
  }
  return false;
}

bool is_expected_close(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == EBADF;
}

/// Sends; a peer whose queue is full gets it at the next call.
bool try_send(const UniqueFd& socket, const Handover& message) {
  if (!socket) return false;
  try {
    wire::send_handover(socket.get(), message);
    return true;
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    if (code == EAGAIN || code == EWOULDBLOCK || is_expected_close(code)) return false;
    throw;
  }
}

UniqueFd duplicate(int fd) { return UniqueFd{fcntl(fd, F_DUPFD_CLOEXEC, 0)}; }

}  // namespace

PageServer::PageServer(const std::string& path,
                       std::function<UniqueFd(const std::string&)> device_page)
    : device_page_(std::move(device_page)) {
  listen(path);
}

void PageServer::listen(const std::string& path) {
  UniqueFd listener = wire::listen_handover(path);
  make_non_blocking(listener.get());
  listener_ = std::move(listener);
}

std::vector<int> PageServer::descriptors() const {
  std::vector<int> result{listener_.get()};
  for (const Process& process : processes_) {
    if (process.socket) result.push_back(process.socket.get());
  }
  return result;
}

std::string PageServer::accept_all() {
  std::string refusal;
  for (;;) {
    UniqueFd socket{accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return refusal;
      return "cannot accept a hand-over: " + std::generic_category().message(errno);
    }
    Process process;
    process.socket = std::move(socket);
    if (std::string problem = credentials_problem(process.socket.get()); !problem.empty()) {
      refuse(process, problem);
      refusal = problem;
      continue;
    }
    processes_.push_back(std::move(process));
  }
}

std::string PageServer::serve(int descriptor) {
  if (descriptor == listener_.get()) return accept_all();
  const auto found = std::find_if(processes_.begin(), processes_.end(), [&](const Process& p) {
    return p.socket && p.socket.get() == descriptor;
  });
  if (found == processes_.end()) return "";
  std::string refusal;
  try {
    std::optional<Handover> message = wire::receive_handover(descriptor);
    if (message && message->kind == HandoverKind::kHello && !found->known) {
      refusal = take_hello(*found, std::move(*message));
      if (refusal.empty()) return "";
    } else if (message) {
      refusal = "a process says hello, once, and nothing else";
    }
  } catch (const wire::BadMessage& problem) {
    refusal = problem.what();
  } catch (const std::system_error& error) {
    if (error.code().value() == EAGAIN) return "";
    refusal = error.what();
  }
  if (!refusal.empty()) refuse(*found, refusal);
  found->socket.reset();
  if (!found->known) processes_.erase(found);
  return refusal;
}

void PageServer::refuse(Process& process, const std::string& text) const {
  Handover message;
  message.kind = HandoverKind::kRefused;
  message.text = text;
  try_send(process.socket, message);
}

std::string PageServer::take_hello(Process& process, Handover hello) {
  if (hello.job_id.empty()) return "hello without a job id";
  UniqueFd reader;
  wire::MappedPage page;
  try {
    reader = wire::reopen_read_only(hello.fds[0].get());
    page = wire::MappedPage{reader.get(), sizeof(wire::JobPage), false};
  } catch (const std::system_error& error) {
    return error.what();
  }
  const auto* job_page = page.as<wire::JobPage>();
  // The file may be larger than what is mapped: the header is judged against the layout's size.
  if (const char* problem = wire::check_page(job_page, wire::kPageSize, wire::kJobPageMagic);
      *problem != '\0') {
    return problem;
  }
  if (strnlen(job_page->job_id, wire::kIdSize) == wire::kIdSize ||
      hello.job_id != job_page->job_id) {
    return "the page is not that of job '" + hello.job_id + "'";
  }
  if (!is_pidfd(hello.fds[1].get())) return "the second descriptor is no pidfd";
  const ProcessKey key{JobId{hello.job_id}, hello.pid};
  processes_.remove_if([&](const Process& p) { return &p != &process && p.known && p.key == key; });
  process.known = true;
  process.key = key;
  process.rank = hello.rank;
  process.page_reader = std::move(reader);
  process.pidfd = std::move(hello.fds[1]);
  process.page = std::move(page);
  for (Process& other : processes_) other.peers.erase(key);  // a new page is sent anew

  (void)push_device(process, process.device);
  return "";
}

bool PageServer::push_device(Process& to, const std::string& device) const {
  Handover message;
  message.kind = HandoverKind::kDevicePage;
  message.job_id = to.key.first.str();
  message.pid = to.key.second;
  message.rank = to.rank;
  message.fds.push_back(device_page_(device));
  return try_send(to.socket, message);
}

const PageServer::Process* PageServer::find(const ProcessKey& key) const {
  const auto found = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const Process& p) { return p.known && p.key == key; });
  return found == processes_.end() ? nullptr : &*found;
}

bool PageServer::push_peer(Process& to, const Process& peer) const {
  Handover message;
  message.kind = HandoverKind::kPeerAdded;
  message.job_id = peer.key.first.str();
  message.pid = peer.key.second;
  message.rank = peer.rank;
  message.fds.push_back(duplicate(peer.page_reader.get()));
  message.fds.push_back(duplicate(peer.pidfd.get()));
  return try_send(to.socket, message);
}

bool PageServer::remove_peer(Process& from, const ProcessKey& peer) const {
  Handover message;
  message.kind = HandoverKind::kPeerGone;
  message.job_id = peer.first.str();
  message.pid = peer.second;
  return try_send(from.socket, message);
}

std::vector<PageServer::Place> PageServer::places(const NodeCoordinator& node) {
  std::vector<Place> all;
  for (Process& process : processes_) {
    if (!process.known) continue;
    const auto& [id, pid] = process.key;
    for (const DeviceCoordinator* const device : node.devices_of(id, pid)) {
      const Job& job = *device->table().find(id);
      const Member& member =
          *std::find_if(job.members.begin(), job.members.end(),
                        [wanted = pid](const Member& each) { return each.pid == wanted; });
      const bool opportunistic = job.job_class == JobClass::kOpportunistic;
      all.push_back({&process, device, member.first, !opportunistic && job.trains(member),
                     opportunistic, opportunistic && member.role == "rank"});
    }
  }
  return all;
}

void PageServer::push_devices(Process& to, const std::vector<Place>& places) const {
  for (const Place& place : places) {
    if (place.process != &to) continue;
    const std::string& device = place.device->device().id;
    if (!place.first) {
      if (!to.others.contains(device) && push_device(to, device)) to.others.insert(device);
    } else if (to.device != device && push_device(to, device)) {
      to.device = device;
    }
  }
}

bool PageServer::is_peer(const Place& to, const Place& other) {
  if (!to.listens || other.process == to.process) return false;
  const bool same_gang = to.rank && other.rank && other.process->key.first == to.process->key.first;
  return same_gang || (other.guaranteed && other.device == to.device);
}

void PageServer::sync(const NodeCoordinator& node) {
  const std::vector<Place> all = places(node);
  for (Process& process : processes_) {
    if (!process.known || !process.socket) continue;
    push_devices(process, all);
    bool registered = false;
    std::set<const Process*> wanted;
    for (const Place& to : all) {
      if (to.process != &process) continue;
      registered = true;
      for (const Place& other : all) {
        if (is_peer(to, other)) wanted.insert(other.process);
      }
    }
    if (!registered) continue;
    std::erase_if(process.peers, [&](const ProcessKey& peer) {
      const bool alive = std::any_of(wanted.begin(), wanted.end(),
                                     [&](const Process* other) { return other->key == peer; });
      return !alive && remove_peer(process, peer);
    });
    for (const Process* peer : wanted) {
      if (!process.peers.contains(peer->key) && push_peer(process, *peer)) {
        process.peers.insert(peer->key);
      }
    }
  }
}

void PageServer::forget(const ProcessKey& process) {
  processes_.remove_if([&](const Process& p) { return p.known && p.key == process; });
}

std::optional<PageReading> PageServer::read(const ProcessKey& process, TimePoint now) const {
  const Process* found = find(process);
  if (found == nullptr) return std::nullopt;
  const auto* page = found->page.as<wire::JobPage>();
  const auto nanoseconds = [](const wire::Word& word) {
    return Duration{static_cast<std::int64_t>(word.load(std::memory_order_relaxed))};
  };
  PageReading reading;
  reading.heartbeat = TimePoint{nanoseconds(page->heartbeat_ns)};
  reading.step_number = page->step_number.load(std::memory_order_acquire);
  reading.step_last = nanoseconds(page->step_last_ns);
  reading.step_end = TimePoint{nanoseconds(page->step_end_ns)};
  reading.step_confidence = std::min(
      1.0, static_cast<double>(page->step_confidence_ppm.load(std::memory_order_relaxed)) * 1e-6);
  reading.memory_wanted = Bytes{page->memory_wanted.load(std::memory_order_relaxed)};
  const auto activity = static_cast<wire::Activity>(page->activity.load(std::memory_order_relaxed));
  const auto now_ns = static_cast<std::uint64_t>(now.time_since_epoch().count());
  const wire::PresentWait wait = wire::present_wait(*page, now_ns);
  reading.waits = wait.waits || activity == wire::Activity::kPaused;
  reading.waits_shown.ended = nanoseconds(page->wait_ns_total);
  if (activity == wire::Activity::kWaiting || activity == wire::Activity::kPaused) {
    reading.waits_shown.since = TimePoint{nanoseconds(page->activity_since_ns)};
    reading.waits_shown.works = wire::queue_works(*page);
  } else if (wait.waits) {
    reading.waits_shown.since = TimePoint{Duration{static_cast<Duration::rep>(wait.since_ns)}};
  }
  reading.serves = page->step_kind.load(std::memory_order_relaxed) ==
                   static_cast<std::uint64_t>(wire::StepKind::kRequests);
  reading.burst = nanoseconds(page->gate_burst_ns);
  reading.collectives_ended = page->collectives_ended.load(std::memory_order_acquire);
  reading.collectives_begun = page->collectives_begun.load(std::memory_order_acquire);
  reading.gang_epoch = page->gang_epoch.load(std::memory_order_acquire);
  reading.gang_stand = page->gang_stand.load(std::memory_order_acquire);
  return reading;
}

std::optional<Bytes> PageServer::taken(const ProcessKey& process, std::uint64_t device_page) const {
  const Process* found = find(process);
  if (found == nullptr) return std::nullopt;
  const auto* page = found->page.as<wire::JobPage>();
  if (page->memory_page.load(std::memory_order_seq_cst) != device_page) return std::nullopt;
  return Bytes{page->memory_taken.load(std::memory_order_seq_cst)};
}

bool PageServer::connected(const ProcessKey& process) const {
  const Process* found = find(process);
  return found != nullptr && found->socket;
}

int PageServer::pidfd(const ProcessKey& process) const {
  const Process* found = find(process);
  return found == nullptr ? -1 : found->pidfd.get();
}

}  // namespace commensal::node
