// SPDX-License-Identifier: Apache-2.0
// The fake coordinator's thread.
#include "tests/torch_ext/runtime/fake_coordinator.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <zmq.hpp>

#include "coordinator/wire/paths.h"

namespace commensal::testing {
namespace {

std::uint64_t page_now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Calls until no signal came in between: a thread that is stopped for a move is interrupted.
template <typename Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    try {
      return call();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "commensal-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

bool eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

FakeCoordinator::FakeCoordinator(const std::filesystem::path& dir, Behaviour behaviour)
    : behaviour_(std::move(behaviour)) {
  wire::DevicePage& device = page();
  device.header = {wire::kDevicePageMagic, wire::kPageVersion,
                   static_cast<std::uint32_t>(wire::kPageSize), 1, 0};
  device.heartbeat_ns.store(page_now());
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  endpoint_ = wire::ipc_endpoint(wire::control_socket_path(dir, "default"));
  listener_ = wire::listen_handover(wire::pages_socket_path(dir, "default").string());
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  while (!ready_) arrived_.wait(lock);
}

FakeCoordinator::~FakeCoordinator() {
  stop_.store(true);
  command([] {});
  thread_.join();
}

void FakeCoordinator::command(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(work));
  }
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void FakeCoordinator::send(const wire::Message& message) { send_frame(wire::encode(message)); }

void FakeCoordinator::send_frame(std::string frame) {
  command([this, frame = std::move(frame)] {
    auto& router = *static_cast<zmq::socket_t*>(router_);
    uninterrupted(
        [&] { return router.send(zmq::buffer(last_identity_), zmq::send_flags::sndmore); });
    uninterrupted([&] { return router.send(zmq::buffer(frame), zmq::send_flags::none); });
  });
}

void FakeCoordinator::add_peer(std::int64_t pid, int page_fd) {
  // Opened by the caller: the test may end the process before the command runs.
  auto pidfd = std::make_shared<wire::UniqueFd>(wire::open_pidfd(pid));
  auto page = std::make_shared<wire::UniqueFd>(::dup(page_fd));
  command([this, pid, page, pidfd] {
    wire::Handover message;
    message.kind = wire::HandoverKind::kPeerAdded;
    message.job_id = "other";
    message.pid = pid;
    message.fds.push_back(std::move(*page));
    message.fds.push_back(std::move(*pidfd));
    wire::send_handover(connections_.back().get(), message);
  });
}

void FakeCoordinator::peer_gone(std::int64_t pid) {
  command([this, pid] {
    wire::Handover message;
    message.kind = wire::HandoverKind::kPeerGone;
    message.pid = pid;
    wire::send_handover(connections_.back().get(), message);
  });
}

void FakeCoordinator::accept() {
  wire::UniqueFd connection{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  auto hello = wire::receive_handover(connection.get());
  if (!hello || hello->fds.size() != 2) return;
  job_page_ = wire::MappedPage(hello->fds[0].get(), wire::kPageSize, false);
  has_job_page_.store(true);
  wire::Handover device;
  device.kind = wire::HandoverKind::kDevicePage;
  device.fds.emplace_back(::dup(page_fd_.get()));
  wire::send_handover(connection.get(), device);
  connections_.push_back(std::move(connection));
}

void FakeCoordinator::take(std::string identity, const wire::Message& message) {
  if (const auto* hello = std::get_if<wire::Register>(&message)) {
    last_identity_ = std::move(identity);
    if (behaviour_.refuses) {
      send(wire::Error{"full", *behaviour_.refuses});
    } else if (behaviour_.answers) {
      wire::Registered answer;
      answer.job_id = hello->job_id;
      answer.coordinator = "default";
      answer.coordinator_pid = 4242;
      answer.capacity_bytes = behaviour_.limit_bytes;
      answer.limit_bytes = behaviour_.limit_bytes;
      answer.share.max = hello->terms.share.max;
      answer.law = behaviour_.law;
      answer.job_class = behaviour_.job_class;
      answer.revision = behaviour_.revision;
      for (const auto& each : hello->devices) {
        const bool is_first = &each == &hello->devices.front();
        if (!is_first && !behaviour_.other_limit_bytes) break;
        answer.device = each.device.empty() ? "host" : each.device;
        if (!is_first) answer.limit_bytes = *behaviour_.other_limit_bytes;
        send(answer);
      }
    }
  }
  const std::lock_guard lock(mutex_);
  received_.push_back(message);
  arrived_.notify_all();
}

void FakeCoordinator::run() {
  zmq::context_t context{1};
  zmq::socket_t router{context, zmq::socket_type::router};
  router.set(zmq::sockopt::linger, 0);
  router.bind(endpoint_);
  router_ = &router;
  {
    const std::lock_guard lock(mutex_);
    ready_ = true;
    arrived_.notify_all();
  }
  while (!stop_.load()) {
    if (!silent_.load()) page().heartbeat_ns.store(page_now());
    zmq::pollitem_t items[] = {{router.handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, listener_.get(), ZMQ_POLLIN, 0},
                               {nullptr, wake_.get(), ZMQ_POLLIN, 0}};
    uninterrupted([&] { return zmq::poll(items, 3, std::chrono::milliseconds{50}); });
    if ((items[1].revents & ZMQ_POLLIN) != 0) accept();
    zmq::message_t identity;
    while (uninterrupted([&] { return router.recv(identity, zmq::recv_flags::dontwait); })) {
      zmq::message_t frame;
      uninterrupted([&] { return router.recv(frame, zmq::recv_flags::none); });
      take(identity.to_string(), wire::decode(frame.to_string_view()));
    }
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
    std::vector<std::function<void()>> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(commands_);
    }
    for (const auto& job : work) job();
  }
}

}  // namespace commensal::testing
