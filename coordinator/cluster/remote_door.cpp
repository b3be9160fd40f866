// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/remote_door.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "coordinator/cluster/daemon.h"

namespace commensal::cluster {
namespace {

using namespace std::chrono_literals;

constexpr auto kBetweenLines = 10s;
// Each connection is looked at twice a second, a few at a time: nobody waits for all of them.
constexpr std::chrono::nanoseconds kBetweenBounds = 500ms;
constexpr std::size_t kBoundsAtOnce = 64;
constexpr rlim_t kDescriptors = 65536;  // one a connection

/// As many connections as this process may have.
void raise_descriptor_limit(spdlog::logger& log) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log.warn("cannot have more than {} connections", limit.rlim_cur);
  }
}

}  // namespace

RemoteDoor::RemoteDoor(const std::string& address, const keys::KeyFolder& folder,
                       std::shared_ptr<spdlog::logger> log)
    : log_(std::move(log)),
      ring_(keys::AllowedStore{folder}),
      socket_(address, folder.coordinator_pair(),
              [this](const keys::Key& key) { return admits(key); }) {
  raise_descriptor_limit(*log_);
  look();
  log_->info("listens on {} with the public key {}; keys in {}", socket_.address(),
             folder.load_public(std::string{keys::kCoordinatorKey}).hex(), folder.path().native());
}

void RemoteDoor::add_to(std::vector<zmq::pollitem_t>& items) {
  for (void* handle : socket_.handles()) items.push_back({handle, 0, ZMQ_POLLIN, 0});
}

void RemoteDoor::look() {
  if (ring_.refresh() && !ring_.problem().empty()) {
    log_->error("no key is allowed: {}", ring_.problem());
  }
  socket_.admit_newcomers();
  bound_messages();
  tell_of_refused();
}

void RemoteDoor::bound_messages() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_bound_) return;
  const std::size_t turns =
      std::max(std::size_t{1}, (socket_.connections() + kBoundsAtOnce - 1) / kBoundsAtOnce);
  next_bound_ = now + kBetweenBounds / turns;
  const std::size_t ended = socket_.bound_messages(kBoundsAtOnce);
  if (ended > 0) log_->warn("ended {} connections that sent a message without an end", ended);
}

std::chrono::steady_clock::time_point RemoteDoor::next_wake() {
  return socket_.connections() > 0 ? next_bound_ : std::chrono::steady_clock::time_point::max();
}

bool RemoteDoor::admits(const keys::Key& key) {
  if (ring_.find(key) != nullptr) return true;
  // It may have been allowed since the last look; who is refused here does not come again.
  if (ring_.refresh() && ring_.find(key) != nullptr) return true;
  ++refused_;
  last_refused_ = key.hex();
  return false;
}

void RemoteDoor::tell_of_refused() {
  const auto now = std::chrono::steady_clock::now();
  if (refused_ == 0 || now < next_line_) return;
  log_->warn("refused {} connections with keys that are not allowed, the last one {}", refused_,
             last_refused_);
  refused_ = 0;
  next_line_ = now + kBetweenLines;
}

bool RemoteDoor::receive(Asked& asked) {
  RemoteSocket::Received received;
  if (!socket_.receive(received)) return false;
  asked.peer = std::move(received.peer);
  asked.frames = std::move(received.frames);
  (void)ring_.refresh();  // after it has come: what is sent after a key was revoked is refused
  asked.caller = ring_.find(received.sender);
  return true;
}

std::unique_ptr<RemoteDoor> make_remote_door(const ClusterOptions& options,
                                             std::shared_ptr<spdlog::logger> log) {
  if (options.listen.empty()) return nullptr;
  const keys::KeyFolder folder{options.keys_dir.empty() ? keys::default_key_folder()
                                                        : options.keys_dir};
  return std::make_unique<RemoteDoor>(options.listen, folder, std::move(log));
}

}  // namespace commensal::cluster
