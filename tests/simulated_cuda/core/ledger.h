// SPDX-License-Identifier: Apache-2.0
// Who holds how much of each device's memory, over all processes of the simulated machine.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/base/mutex.h"

namespace commensal::simulated_cuda {

/// Accounts for device memory in a file that the processes of one simulated machine share.
///
/// A process's share ends with the process, however it ended: every look at the file first drops
/// the entries of processes that no longer live. Chunks that were exported are counted once, as
/// long as any process holds them. Any member may be called from any thread.
class Ledger {
 public:
  struct Share {
    pid_t process;
    std::size_t bytes;
  };

  /// @param path  the shared file, made if it is not there; empty: a ledger of this process alone.
  /// @param capacity  bytes of each device; the file's maker decides for all.
  /// @param visible  physical numbers of the devices that this process sees; empty: all. Devices
  ///                 below are this process's, 0 being the first that it sees.
  /// @throws std::system_error, std::runtime_error if the file cannot be used.
  Ledger(const std::string& path, std::size_t capacity, std::vector<int> visible = {});
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  [[nodiscard]] std::size_t capacity() const noexcept;

  /// The machine's number of a device of this process, and back (-1 if it is not seen).
  [[nodiscard]] int physical(int device) const;
  [[nodiscard]] int visible(int physical) const;

  /// Takes bytes for this process. @return false, having changed nothing, if they are not there.
  [[nodiscard]] bool take(int device, std::size_t bytes);
  void give_back(int device, std::size_t bytes);

  /// Turns bytes that this process took into a chunk that others may hold too.
  /// @param identity  the same in every process for the same memory.
  /// @return false if the table of exported chunks is full.
  [[nodiscard]] bool share(int device, std::size_t bytes, std::uint64_t identity);

  /// Holds an exported chunk as well; takes its bytes if no other process holds it any more.
  [[nodiscard]] bool hold(int device, std::size_t bytes, std::uint64_t identity);
  void let_go(std::uint64_t identity);

  /// Bytes that are taken of a device by all living processes together.
  [[nodiscard]] std::size_t used(int device);

  /// The same by the machine's number, for whoever looks from outside.
  [[nodiscard]] std::size_t physical_used(int number);

  /// Each living process's bytes of a device (the machine's number); exported chunks count for
  /// every holder.
  [[nodiscard]] std::vector<Share> physical_shares(int number);

 private:
  struct Table;
  class Locked;

  const std::vector<int> visible_;
  Table* table_ = nullptr;
  int file_ = -1;
  Mutex mutex_;  // the file's lock excludes other processes, this one the other threads
};

}  // namespace commensal::simulated_cuda
