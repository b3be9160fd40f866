// SPDX-License-Identifier: Apache-2.0
// Takes the pages of jobs' processes and gives them the device page and each other's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/node_coordinator.h"
#include "coordinator/wire/handover.h"

namespace commensal::node {

/// Serves the hand-over socket. A process says hello with its page and its pidfd and gets the page
/// of its device, read-only: the host's until it is known to be on another one, and of each other
/// device that it uses. An opportunistic one also gets the pages of guaranteed processes on these
/// devices, and of its own job's other ranks, wherever they are, and hears when they are gone. What
/// cannot be used is refused with a text. Not thread safe.
class PageServer {
 public:
  using ProcessKey = std::pair<JobId, std::int64_t>;

  /// @param path         of the socket; bound here. @throws std::system_error.
  /// @param device_page  makes a read-only descriptor of the page of a device that is known.
  PageServer(const std::string& path,
             std::function<wire::UniqueFd(const std::string& device)> device_page);

  /// Listens at another path, or at another file of the same one; connections stay.
  /// @throws std::system_error.
  void listen(const std::string& path);

  /// Descriptors to wait on: the listener and the connections.
  [[nodiscard]] std::vector<int> descriptors() const;
  /// Takes what has arrived on a descriptor. @return a refusal's text for the log, else empty.
  std::string serve(int descriptor);

  /// Gives every process its device's page, and the opportunistic ones the pages of others that
  /// they lack; takes back those that are gone.
  void sync(const NodeCoordinator& node);
  /// Forgets a process that is gone.
  void forget(const ProcessKey& process);

  [[nodiscard]] std::optional<PageReading> read(const ProcessKey& process, TimePoint now) const;
  /// What a process holds of its device or is about to take, if it looks at this page (`made`)
  /// before it takes more. To be read after the page was written.
  [[nodiscard]] std::optional<Bytes> taken(const ProcessKey& process,
                                           std::uint64_t device_page) const;
  /// Whether the process has its line open: it lives, and is the program that opened it.
  [[nodiscard]] bool connected(const ProcessKey& process) const;
  /// The pidfd that the process sent; -1 without one.
  [[nodiscard]] int pidfd(const ProcessKey& process) const;

 private:
  struct Process {
    wire::UniqueFd socket;  // closed when the process has closed it; the page stays
    bool known = false;     // has said hello
    ProcessKey key;
    int rank = 0;
    wire::UniqueFd page_reader;
    wire::UniqueFd pidfd;
    wire::MappedPage page;
    std::string device = kHostId;  ///< whose page it has
    std::set<std::string> others;  ///< and those of its other ones
    std::set<ProcessKey> peers;
  };
  std::string accept_all();
  std::string take_hello(Process& process, wire::Handover hello);
  void refuse(Process& process, const std::string& text) const;
  /// A process on one of its devices.
  struct Place {
    Process* process;
    const DeviceCoordinator* device;
    bool first;
    bool guaranteed;
    bool listens;  // an opportunistic one
    bool rank;     // of an opportunistic job
  };
  [[nodiscard]] std::vector<Place> places(const NodeCoordinator& node);
  void push_devices(Process& to, const std::vector<Place>& places) const;
  /// Whether what `to` is in a place hears of what the other one is there.
  [[nodiscard]] static bool is_peer(const Place& to, const Place& other);
  [[nodiscard]] const Process* find(const ProcessKey& key) const;
  bool push_device(Process& to, const std::string& device) const;
  bool push_peer(Process& to, const Process& peer) const;
  bool remove_peer(Process& from, const ProcessKey& peer) const;

  wire::UniqueFd listener_;
  std::function<wire::UniqueFd(const std::string&)> device_page_;
  std::list<Process> processes_;
};

}  // namespace commensal::node
