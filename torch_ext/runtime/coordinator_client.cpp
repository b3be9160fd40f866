// SPDX-License-Identifier: Apache-2.0
// The client thread's loop: connect, register, exchange, notice deaths.
#include "torch_ext/runtime/coordinator_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <zmq.hpp>

#include "allocator/base/mutex.h"
#include "allocator/host/own_descriptors.h"
#include "coordinator/wire/kernel_name.h"
#include "coordinator/wire/pages.h"
#include "coordinator/wire/paths.h"
#include "torch_ext/runtime/zmq_threads.h"

namespace commensal {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStatsWhenChanged{250};
constexpr milliseconds kStatsAnyway{1000};
constexpr milliseconds kRefusedRetry{5000};
constexpr int kFinalLinger = 500;  // ms to get the last statistics out

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

void set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl of the hand-over socket");
  }
}

wire::UniqueFd duplicate(int fd) {
  wire::UniqueFd copy{::fcntl(fd, F_DUPFD_CLOEXEC, 0)};
  if (!copy) throw std::system_error(errno, std::generic_category(), "dup of the job page");
  return copy;
}

}  // namespace

struct CoordinatorClient::Impl {
  Impl(ClientOptions given, ClientHost& owner) : options(std::move(given)), host(owner) {
    own_descriptors::run([this] {
      wake_fd.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!wake_fd) throw std::system_error(errno, std::generic_category(), "eventfd");
    });
  }
  ~Impl() {
    own_descriptors::run([this] {
      peers.clear();
      line.reset();
      zmq.reset();
      wake_fd.reset();
    });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// One connection to one daemon. Destroyed as a whole when the daemon goes.
  struct Line {
    explicit Line(zmq::context_t& context) : socket(context, zmq::socket_type::dealer) {
      socket.set(zmq::sockopt::linger, 0);
    }
    zmq::socket_t socket;
    wire::UniqueFd pages;
    bool registered = false;
    Steady::time_point register_by;
  };

  const ClientOptions options;
  ClientHost& host;
  wire::UniqueFd wake_fd;  // as all descriptors here: in our own table (own_descriptors.h)
  std::thread thread;
  std::atomic<int> tid{0};
  std::atomic<bool> stopping{false};
  std::atomic<bool> is_connected{false};
  std::atomic<bool> says_hello_again{false};

  // --- the thread's own
  std::unique_ptr<ZmqContext> zmq;
  std::unique_ptr<Line> line;
  std::map<std::int64_t, wire::UniqueFd> peers;  // pidfds of guaranteed processes
  Steady::time_point next_attempt;
  Steady::time_point last_stats;
  std::string job_id;  // as registered
  nlohmann::json last_sent;

  mutable Mutex mutex;
  std::condition_variable_any first_attempt_ended;
  bool attempted COMMENSAL_GUARDED_BY(mutex) = false;
  ClientStatus now COMMENSAL_GUARDED_BY(mutex);
  std::vector<wire::Message> outbox COMMENSAL_GUARDED_BY(mutex);

  void run() noexcept;
  void loop_once();
  void connect();
  void drop(const std::string& reason, milliseconds retry);
  void set_reason(const std::string& reason);
  void end_attempt();
  void send(const wire::Message& message);
  void send_outbox();
  void send_statistics(bool final);
  void receive_messages();
  void handle(const wire::Message& message);
  void receive_pages();
  void handle_pages(wire::Handover message);
  void check_peers(const std::vector<zmq::pollitem_t>& items, std::size_t first);
};

CoordinatorClient::CoordinatorClient(ClientOptions options, ClientHost& host)
    : impl_(std::make_unique<Impl>(std::move(options), host)) {}

CoordinatorClient::~CoordinatorClient() { stop(); }

void CoordinatorClient::start() {
  // What it opens, ZeroMQ's too, is in our own table, where the program cannot close it.
  impl_->thread = own_descriptors::start_thread([this] { impl_->run(); });
  impl_->mutex.lock();
  while (!impl_->attempted) impl_->first_attempt_ended.wait(impl_->mutex);
  impl_->mutex.unlock();
}

void CoordinatorClient::stop() noexcept {
  if (impl_->stopping.exchange(true)) return;
  wake();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void CoordinatorClient::post(wire::Message message) {
  if (!connected()) return;
  {
    const MutexLock lock(impl_->mutex);
    impl_->outbox.push_back(std::move(message));
  }
  wake();
}

void CoordinatorClient::register_again() noexcept {
  impl_->says_hello_again.store(true);
  wake();
}

void CoordinatorClient::wake() noexcept {
  const std::uint64_t one = 1;
  // EAGAIN: the counter is full, so it is awake anyway.
  (void)own_descriptors::call(SYS_write, impl_->wake_fd.get(), &one, sizeof one);
}

ClientStatus CoordinatorClient::status() const {
  const MutexLock lock(impl_->mutex);
  return impl_->now;
}

bool CoordinatorClient::connected() const noexcept { return impl_->is_connected.load(); }

bool CoordinatorClient::on_client_thread() const noexcept {
  return impl_->tid.load() == ::gettid();
}

int CoordinatorClient::thread_id() const noexcept { return impl_->tid.load(); }

void CoordinatorClient::Impl::run() noexcept {
  const OwnThread own;
  ::prctl(PR_SET_NAME, "commensal-coord");
  tid.store(::gettid());
  while (!stopping.load()) {
    try {
      loop_once();
    } catch (const std::exception& error) {
      // Whatever broke, training goes on; the reason stands in the statistics.
      drop(std::string("the line to the coordinator broke: ") + error.what(), options.retry);
    }
  }
  try {
    send_outbox();
    send_statistics(true);
    if (line) line->socket.set(zmq::sockopt::linger, kFinalLinger);
    line.reset();
    zmq.reset();  // waits for the linger time at most
  } catch (const std::exception& error) {
    set_reason(std::string("the last statistics were not sent: ") + error.what());
  }
  is_connected.store(false);
}

void CoordinatorClient::Impl::loop_once() {
  Duration wait = host.on_tick();
  const auto now_time = Steady::now();
  if (!line && !options.runtime_dir.empty() && now_time >= next_attempt) connect();
  if (!line) {
    end_attempt();
    if (!options.runtime_dir.empty()) wait = std::min<Duration>(wait, options.retry);
  } else if (!line->registered) {
    if (now_time >= line->register_by) {
      drop("coordinator '" + options.instance + "' did not answer within " +
               std::to_string(options.connect_timeout.count()) + " ms",
           options.retry);
      return;
    }
    wait = std::min<Duration>(wait, line->register_by - now_time);
  } else {
    if (says_hello_again.exchange(false)) send(host.registration());
    send_outbox();
    if (now_time - last_stats >= kStatsWhenChanged) send_statistics(false);
  }

  std::vector<zmq::pollitem_t> items;
  items.push_back({nullptr, wake_fd.get(), ZMQ_POLLIN, 0});
  if (line) {
    items.push_back({line->socket.handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({nullptr, line->pages.get(), ZMQ_POLLIN, 0});
  }
  const std::size_t first_peer = items.size();
  for (const auto& [pid, pidfd] : peers) {
    if (pidfd) items.push_back({nullptr, pidfd.get(), ZMQ_POLLIN, 0});
  }
  const auto timeout = std::chrono::ceil<milliseconds>(wait);
  try {
    zmq::poll(items.data(), items.size(), timeout);
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) throw;
    return;
  }
  if ((items[0].revents & ZMQ_POLLIN) != 0) {
    std::uint64_t count = 0;
    (void)!::read(wake_fd.get(), &count, sizeof count);
  }
  check_peers(items, first_peer);
  if (line && (items[2].revents & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0) receive_pages();
  if (line && (items[1].revents & ZMQ_POLLIN) != 0) receive_messages();
}

void CoordinatorClient::Impl::connect() {
  next_attempt = Steady::now() + options.retry;
  // Asked each time: one that was started again may be in another folder.
  const auto folder = wire::where_listens(options.runtime_dir, options.instance);
  const auto pages = wire::pages_socket_path(folder, options.instance);
  std::error_code ignored;
  if (!std::filesystem::exists(pages, ignored)) {
    set_reason("no coordinator '" + options.instance + "' in " + folder.string());
    return;
  }
  try {
    says_hello_again.store(false);  // before it is asked, so that nothing newer is missed
    const wire::Register registration = host.registration();
    job_id = registration.job_id;
    if (!zmq) zmq = std::make_unique<ZmqContext>();
    auto fresh = std::make_unique<Line>(zmq->context());
    fresh->pages = wire::connect_handover(pages.string());
    wire::Handover hello;
    hello.kind = wire::HandoverKind::kHello;
    hello.job_id = job_id;
    hello.pid = registration.pid;
    hello.rank = registration.rank;
    hello.fds.push_back(duplicate(options.page_fd));
    hello.fds.push_back(wire::open_pidfd(::getpid()));
    wire::send_handover(fresh->pages.get(), hello);
    set_nonblocking(fresh->pages.get());
    fresh->socket.connect(wire::ipc_endpoint(wire::control_socket_path(folder, options.instance)));
    fresh->register_by = Steady::now() + options.connect_timeout;
    line = std::move(fresh);
    send(registration);
  } catch (const std::exception& error) {
    line.reset();
    set_reason("coordinator '" + options.instance + "' cannot be reached: " + error.what());
  }
}

void CoordinatorClient::Impl::drop(const std::string& reason, milliseconds retry) {
  const bool was = line && line->registered;
  line.reset();
  is_connected.store(false);
  next_attempt = Steady::now() + retry;
  set_reason(reason);
  {
    const MutexLock lock(mutex);
    outbox.clear();
  }
  if (was) host.on_disconnected();
  end_attempt();
}

void CoordinatorClient::Impl::set_reason(const std::string& reason) {
  const MutexLock lock(mutex);
  now.connected = false;
  now.coordinator_pid = 0;
  now.instance.clear();
  now.reason = reason;
}

void CoordinatorClient::Impl::end_attempt() {
  const MutexLock lock(mutex);
  if (attempted) return;
  attempted = true;
  if (options.runtime_dir.empty()) now.reason = "not asked for";
  first_attempt_ended.notify_all();
}

void CoordinatorClient::Impl::send(const wire::Message& message) {
  const std::string frame = wire::encode(message);
  // Never waits: a coordinator that does not read must not hold this process's heartbeat up.
  if (!line->socket.send(zmq::buffer(frame), zmq::send_flags::dontwait)) {
    throw std::runtime_error("its queue is full");
  }
}

void CoordinatorClient::Impl::send_outbox() {
  std::vector<wire::Message> messages;
  {
    const MutexLock lock(mutex);
    messages.swap(outbox);
  }
  if (!line || !line->registered) return;
  for (const wire::Message& message : messages) send(message);
}

void CoordinatorClient::Impl::send_statistics(bool final) {
  if (!line || !line->registered) return;
  nlohmann::json statistics = host.statistics();
  const auto time = Steady::now();
  if (!final && statistics == last_sent && time - last_stats < kStatsAnyway) return;
  send(wire::Stats{.job_id = job_id, .pid = ::getpid(), .stats = statistics, .final = final});
  last_stats = time;
  last_sent = std::move(statistics);
}

void CoordinatorClient::Impl::receive_messages() {
  zmq::message_t frame;
  while (line && line->socket.recv(frame, zmq::recv_flags::dontwait)) {
    try {
      handle(wire::decode({static_cast<const char*>(frame.data()), frame.size()}));
    } catch (const wire::BadMessage&) {
      const MutexLock lock(mutex);
      ++now.malformed_frames;
    }
  }
}

void CoordinatorClient::Impl::handle(const wire::Message& message) {
  std::visit(
      Overloaded{[this](const wire::Registered& answer) {
                   line->registered = true;
                   {
                     const MutexLock lock(mutex);
                     now.connected = true;
                     now.coordinator_pid = answer.coordinator_pid;
                     now.instance = answer.coordinator;
                     now.reason.clear();
                   }
                   is_connected.store(true);
                   host.on_registered(answer);
                   end_attempt();
                 },
                 [this](const wire::Change& change) { host.on_change(change); },
                 [this](const wire::SetReply& reply) { host.on_set_reply(reply); },
                 [this](const wire::MapRequest& request) { host.on_map_request(request); },
                 [this](const wire::Error& error) {
                   if (!line->registered && !error.device) {
                     drop("coordinator '" + options.instance + "' refused: " + error.what,
                          kRefusedRetry);
                   } else {
                     host.on_error(error);
                   }
                 },
                 [this](const auto&) {  // known, but nothing that a coordinator says to a job
                   const MutexLock lock(mutex);
                   ++now.malformed_frames;
                 }},
      message);
}

void CoordinatorClient::Impl::receive_pages() {
  while (line) {
    std::optional<wire::Handover> message;
    try {
      message = wire::receive_handover(line->pages.get());
    } catch (const std::system_error& error) {
      if (error.code().value() == EAGAIN || error.code().value() == EINTR) return;
      drop(std::string("coordinator '") + options.instance + "' is gone: " + error.what(),
           options.retry);
      return;
    } catch (const wire::BadMessage&) {
      const MutexLock lock(mutex);
      ++now.malformed_frames;
      continue;
    }
    if (!message) {
      drop("coordinator '" + options.instance + "' is gone", options.retry);
      return;
    }
    handle_pages(std::move(*message));
  }
}

void CoordinatorClient::Impl::handle_pages(wire::Handover message) {
  try {
    switch (message.kind) {
      case wire::HandoverKind::kDevicePage:
        if (message.fds.size() != 1) throw std::runtime_error("a device page without descriptor");
        host.on_device_page(wire::MappedPage(message.fds[0].get(), wire::kPageSize, false));
        return;
      case wire::HandoverKind::kPeerAdded:
        if (message.fds.size() != 2) throw std::runtime_error("a peer without its descriptors");
        host.on_peer_added(message.pid,
                           wire::MappedPage(message.fds[0].get(), wire::kPageSize, false));
        peers[message.pid] = std::move(message.fds[1]);
        return;
      case wire::HandoverKind::kPeerGone:
        peers.erase(message.pid);
        host.on_peer_gone(message.pid);
        return;
      case wire::HandoverKind::kRefused:
        drop("coordinator '" + options.instance + "' refused: " + message.text, kRefusedRetry);
        return;
      case wire::HandoverKind::kHello: break;
    }
    throw std::runtime_error("a hand-over that is not for a job");
  } catch (const std::exception&) {
    const MutexLock lock(mutex);
    ++now.malformed_frames;
  }
}

void CoordinatorClient::Impl::check_peers(const std::vector<zmq::pollitem_t>& items,
                                          std::size_t first) {
  for (std::size_t i = first; i < items.size(); ++i) {
    if (items[i].revents == 0) continue;
    const auto dead = std::find_if(peers.begin(), peers.end(), [&](const auto& peer) {
      return peer.second.get() == items[i].fd;
    });
    if (dead == peers.end()) continue;
    host.on_peer_gone(dead->first);
    peers.erase(dead);
  }
}

}  // namespace commensal
