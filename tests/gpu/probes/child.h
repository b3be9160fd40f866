// SPDX-License-Identifier: Apache-2.0
// Second processes: this program again, in another role, with a page of memory in common.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace probes {

/// What a probe and its child share. All zero at the start.
struct Page {
  std::atomic<std::uint32_t> ready;  ///< the child waits for `go`
  std::atomic<std::uint32_t> go;
  std::atomic<std::uint32_t> stop;
  std::atomic<std::uint32_t> done;
  std::atomic<std::uint64_t> progress;
  std::atomic<std::uint32_t> rounds;  ///< of the kernels that the child shall queue: see `give`
  std::atomic<std::uint32_t> blocks;
  std::atomic<std::uint32_t> count;                     ///< of `values`
  std::array<char, 256> error;                          ///< why the child failed
  alignas(4096) std::array<std::uint32_t, 1024> words;  ///< for the device, a page of its own
  alignas(4096) std::array<std::uint64_t, 65536> values;

  /// Tells the child what its kernels have to do; before its start, or while it rests.
  void give(Load load) {
    rounds.store(load.rounds);
    blocks.store(load.blocks);
  }
  /// @throws std::runtime_error if nothing was told.
  [[nodiscard]] Load load() const;
};

/// In `values`: a chunk that a probe has exported and its child imports.
struct SharedChunk {
  static constexpr std::uint32_t kMakers = 0x600DCAFEU;     ///< content from the maker
  static constexpr std::uint32_t kImporters = 0x600DF00DU;  ///< and from the child

  std::uint64_t file;  ///< the descriptor, the same number in the child
  std::uint64_t bytes;
  std::uint64_t result;  ///< of the import; its time, and that of mapping with access
  std::uint64_t imported_ns;
  std::uint64_t mapped_ns;
};

/// Memory that other processes map too, and that the driver can register (a memfd).
class SharedPage {
 public:
  SharedPage();
  explicit SharedPage(int file);  ///< maps one that was handed down
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  Page* operator->() const noexcept { return page_; }
  Page& operator*() const noexcept { return *page_; }
  [[nodiscard]] int file() const noexcept { return file_; }

 private:
  int file_;
  Page* page_;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// A process of this program in a role of `run_role`; killed, if it still runs, with the object.
class Child {
 public:
  Child(const std::string& role, const SharedPage& page, const Environment& more = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  /// @throws std::runtime_error with the child's own words if it ends or does not come in time.
  void wait_ready();
  /// Tells it to stop and waits for its end. @throws std::runtime_error if it failed.
  void finish();

 private:
  [[nodiscard]] bool ended();
  [[noreturn]] void fail(const std::string& what) const;

  const SharedPage& page_;
  pid_t pid_ = -1;
  int status_ = 0;
};

/// Starts a program and waits for it; kills it at the deadline.
/// @return its exit code, or -signal.
int run_program(const std::vector<std::string>& command, const Environment& more,
                std::chrono::seconds deadline);

/// Does what a child does. @return the exit code of the process.
int run_role(const std::string& role, int page_file);

}  // namespace probes
