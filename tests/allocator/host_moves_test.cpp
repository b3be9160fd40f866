// SPDX-License-Identifier: Apache-2.0
// Law 2 on a host: whatever writes to a chunk while it moves, no write is lost.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "allocator/host/host_memory_source.h"
#include "tests/allocator/kernel_sigaction.h"

#define UNINSTRUMENTED __attribute__((no_sanitize("thread", "address", "undefined")))

namespace commensal::host_moves_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class HostMoves : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSize = 2U << 20U;

  void make(HostMemorySource::Testing testing = {}) {
    HostMemorySource::Options options;
    options.host_cap = 64_MiB;
    options.testing = testing;
    source_ = std::make_unique<HostMemorySource>(options);
    ASSERT_EQ(source_->host_tier_reason(), "");
    chunk_ = source_->reserve(Bytes{kSize}).begin;
    handle_ = source_->create(Tier::kDevice, Bytes{kSize});
    source_->map(chunk_, handle_);
  }

  // Tries once to move the chunk to the other tier. Says whether it moved.
  SwapResult move(OnChange on_change) {
    const Tier tier = handle_.tier == Tier::kDevice ? Tier::kHost : Tier::kDevice;
    const MemoryHandle to = source_->create(tier, Bytes{kSize});
    const CopyTicket ticket = source_->begin_copy(chunk_, handle_, to);
    if (source_->watches(tier) && source_->fence(2s).stopped) {
      source_->watch(std::span(&ticket, 1));
      source_->unfence();
    }
    EXPECT_EQ(source_->wait_copy(ticket), CopyState::kDone) << source_->copy_error(ticket);
    SwapResult result = SwapResult::kFailed;
    if (source_->fence(2s).stopped) {
      result = source_->swap(ticket, on_change);
      source_->unfence();
    }
    source_->end_copy(ticket);
    const bool swapped = result == SwapResult::kSwapped;
    source_->release(swapped ? handle_ : to);
    if (swapped) handle_ = to;
    return result;
  }

  // Moves to and fro while writers run, with both answers to a change.
  void move_often(int wanted) {
    int moved = 0;
    for (int tries = 0; moved < wanted; ++tries) {
      ASSERT_LT(tries, wanted * 20) << "moved " << moved << " times";
      const SwapResult result = move(tries % 3 == 0 ? OnChange::kLeave : OnChange::kCopyInside);
      if (result == SwapResult::kSwapped) ++moved;
    }
  }

  std::unique_ptr<HostMemorySource> source_;
  std::byte* chunk_ = nullptr;
  MemoryHandle handle_;
};

/// Writes are found by the kernel's notes where it keeps some, and by fingerprints.
class HostMovesBothWays : public HostMoves, public ::testing::WithParamInterface<bool> {
 protected:
  static HostMemorySource::Testing testing() {
    HostMemorySource::Testing testing;
    testing.watch = GetParam();
    return testing;
  }
};
INSTANTIATE_TEST_SUITE_P(Finding, HostMovesBothWays, ::testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "ByTheKernel" : "ByFingerprints");
});

// Writes a growing number to every cell of its part and checks each before it is overwritten.
class Storer {
 public:
  Storer(std::byte* part, std::size_t size)
      : cells_(reinterpret_cast<volatile std::uint64_t*>(part)), count_(size / 8) {
    for (std::size_t i = 0; i < count_; ++i) cells_[i] = 0;
  }
  // Returns how many cells had lost what was written.
  std::uint64_t run(const std::atomic<bool>& end) {
    std::uint64_t lost = 0;
    std::uint64_t round = 0;
    for (; !end.load(std::memory_order_relaxed); ++round) {
      for (std::size_t i = 0; i < count_; i += kStride) {
        if (cells_[i] != round) ++lost;
        cells_[i] = round + 1;
      }
    }
    for (std::size_t i = 0; i < count_; i += kStride) {
      if (cells_[i] != round) ++lost;
    }
    return lost;
  }

 private:
  static constexpr std::size_t kStride = 8;  // one in each cache line
  volatile std::uint64_t* cells_;
  std::size_t count_;
};

void block_all_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// One of the writers blocks all signals, and the others are called what they are not.
TEST_P(HostMovesBothWays, Law2_NoStoreIsLost) {
  make(testing());
  std::atomic<bool> end{false};
  std::vector<std::future<std::uint64_t>> lost;
  for (const char* name : {"commensal-loader", "ZMQbg/IO/0", "blocks signals"}) {
    std::byte* part = chunk_ + lost.size() * (kSize / 4);
    lost.push_back(std::async(std::launch::async, [&end, part, name] {
      pthread_setname_np(pthread_self(), name);
      if (std::string(name) == "blocks signals") block_all_signals();
      return Storer(part, 64U << 10U).run(end);
    }));
  }
  move_often(40);
  end = true;
  for (auto& each : lost) EXPECT_EQ(each.get(), 0U);
}

TEST_F(HostMoves, Law2_NoStoreIsLostOnThePlainPath) {
  HostMemorySource::Testing plain;
  plain.direct_io = plain.page_scan = plain.remap = plain.mirror = false;
  make(plain);
  std::atomic<bool> end{false};
  auto lost = std::async(std::launch::async, [&] { return Storer(chunk_, 256U << 10U).run(end); });
  move_often(30);
  end = true;
  EXPECT_EQ(lost.get(), 0U);
  EXPECT_EQ(source_->remaps(), 0U);
  EXPECT_GT(source_->copies_inside(), 0U);
}

// Feeds numbers into a pipe that a reader takes straight into the chunk, by read or readv.
std::uint64_t read_into(std::byte* part, bool vectors, const std::atomic<bool>& end) {
  constexpr std::size_t kRecord = 2048;
  int ends[2];
  if (::pipe(ends) != 0) return UINT64_MAX;
  std::thread feeder([&] {
    std::array<std::uint64_t, kRecord / 8> record{};
    for (std::uint64_t n = 1; !end.load(std::memory_order_relaxed); ++n) {
      record.fill(n);
      if (::write(ends[1], record.data(), kRecord) != static_cast<ssize_t>(kRecord)) break;
    }
    ::close(ends[1]);
  });
  std::uint64_t lost = 0;
  const auto check = [&](std::byte* at, std::uint64_t number) {
    const auto* words = reinterpret_cast<volatile std::uint64_t*>(at);
    for (std::size_t i = 0; i < kRecord / 8; ++i) lost += words[i] != number ? 1 : 0;
  };
  constexpr std::size_t kPlaces = 16;
  for (std::uint64_t n = 1;; ++n) {
    std::byte* at = part + n % kPlaces * 4096 + 64;
    std::size_t filled = 0;
    while (filled < kRecord) {
      ssize_t got = 0;
      if (vectors) {
        const std::size_t half = (kRecord - filled + 1) / 2;
        const iovec pieces[2] = {{at + filled, half},
                                 {at + filled + half, kRecord - filled - half}};
        got = ::readv(ends[0], pieces, 2);
      } else {
        got = ::read(ends[0], at + filled, kRecord - filled);
      }
      if (got <= 0) break;
      filled += static_cast<std::size_t>(got);
    }
    if (filled < kRecord) {
      lost += filled;  // the feeder writes whole records
      break;
    }
    check(at, n);
    // And one that was read a while ago.
    if (n > kPlaces / 2) check(part + (n - kPlaces / 2) % kPlaces * 4096 + 64, n - kPlaces / 2);
  }
  feeder.join();
  ::close(ends[0]);
  return lost;
}

TEST_P(HostMovesBothWays, Law2_NoReadFromAPipeIsLost) {
  make(testing());
  std::atomic<bool> end{false};
  auto read = std::async(std::launch::async, [&] { return read_into(chunk_, false, end); });
  auto readv = std::async(std::launch::async, [&] {
    block_all_signals();
    return read_into(chunk_ + kSize / 2, true, end);
  });
  move_often(40);
  end = true;
  EXPECT_EQ(read.get(), 0U);
  EXPECT_EQ(readv.get(), 0U);
}

// Reads blocks of a file straight from the disk into the chunk and checks each.
std::uint64_t read_directly(int fd, std::byte* part, const std::atomic<bool>& end) {
  std::uint64_t lost = 0;
  for (std::uint64_t n = 0; !end.load(std::memory_order_relaxed); ++n) {
    const std::uint64_t block = n % 8;
    std::byte* at = part + n % 4 * 4096;
    if (::pread(fd, at, 4096, static_cast<off_t>(block * 4096)) != 4096) return UINT64_MAX;
    const auto* words = reinterpret_cast<volatile std::uint64_t*>(at);
    for (std::size_t i = 0; i < 512; ++i) lost += words[i] != block * 512 + i ? 1 : 0;
  }
  return lost;
}

TEST_P(HostMovesBothWays, Law2_NoDirectReadIsLost) {
  make(testing());
  std::string path = "/var/tmp/commensal-test-XXXXXX";
  const int plain = ::mkostemp(path.data(), O_CLOEXEC);
  ASSERT_GE(plain, 0);
  std::vector<std::uint64_t> numbers(8 * 512);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  ASSERT_EQ(::write(plain, numbers.data(), numbers.size() * 8), 8 * 4096);
  ASSERT_EQ(::fsync(plain), 0);
  const int direct = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  ::unlink(path.c_str());
  if (direct < 0) GTEST_SKIP() << "/var/tmp has no direct I/O";
  std::atomic<bool> end{false};
  auto first = std::async(std::launch::async, [&] { return read_directly(direct, chunk_, end); });
  auto second = std::async(std::launch::async, [&] {
    block_all_signals();
    return read_directly(direct, chunk_ + 65536, end);
  });
  move_often(40);
  end = true;
  EXPECT_EQ(first.get(), 0U);
  EXPECT_EQ(second.get(), 0U);
  ::close(direct);
  ::close(plain);
}

// A writer cuts in exactly between the comparison and the exchange. No atomics: the hook runs
// while threads are stopped that may hold a sanitizer's locks.
struct CutIn {
  volatile int compared = 0;
  volatile int written = 0;
  int patience = 0;  // tenths of a millisecond
};
UNINSTRUMENTED void wait_for_writer(void* context) {
  auto* cut = static_cast<CutIn*>(context);
  cut->compared = 1;
  // Without the stop the writer comes at once. A stopped one never does.
  for (int i = 0; i < cut->patience && cut->written == 0; ++i) {
    const timespec pause{0, 100'000};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
}
UNINSTRUMENTED void write_when_compared(CutIn* cut, volatile std::uint64_t* cell) {
  while (cut->compared == 0) ::syscall(SYS_sched_yield);
  *cell = 2;
  cut->written = 1;
}

class Law2 : public HostMoves {
 protected:
  // Returns what is in the cell after a write of 2 between comparison and exchange.
  std::uint64_t value_after_cutting_in(bool stop_threads, Tier from, bool block_signals = false) {
    CutIn cut;
    HostMemorySource::Testing testing;
    testing.stop_threads = stop_threads;
    testing.before_exchange = wait_for_writer;
    testing.context = &cut;
    cut.written = 1;  // the hook does not wait yet
    cut.patience = stop_threads ? 100 : 100'000;
    make(testing);
    auto* cell = reinterpret_cast<volatile std::uint64_t*>(chunk_ + 4096);
    *cell = 1;
    if (from == Tier::kHost) {
      EXPECT_EQ(move(OnChange::kCopyInside), SwapResult::kSwapped);
    }
    cut.compared = 0;
    cut.written = 0;
    std::thread writer([&] {
      if (block_signals) block_all_signals();
      write_when_compared(&cut, cell);
    });
    SwapResult result = SwapResult::kFailed;
    // The first tries may find the new thread still being made.
    for (int i = 0; i < 20 && result != SwapResult::kSwapped; ++i) result = move(OnChange::kLeave);
    EXPECT_EQ(result, SwapResult::kSwapped);
    if (stop_threads) {
      EXPECT_EQ(cut.compared, 1);
    }
    writer.join();
    return *cell;
  }
};

TEST_F(Law2, Law2_WritesAreLostWithoutStoppingThreads) {
  EXPECT_EQ(value_after_cutting_in(false, Tier::kDevice), 1U) << "the write went to the old pages";
  EXPECT_EQ(value_after_cutting_in(false, Tier::kHost), 1U);
}

TEST_F(Law2, P42_Law2_TheSameWriteIsKeptWithThreadsStopped) {
  EXPECT_EQ(value_after_cutting_in(true, Tier::kDevice), 2U);
  EXPECT_EQ(value_after_cutting_in(true, Tier::kHost), 2U);
}

TEST_F(Law2, Law2_TheSameWriteIsKeptWhereItsThreadBlocksSignals) {
  EXPECT_EQ(value_after_cutting_in(true, Tier::kDevice, true), 2U);
  EXPECT_EQ(value_after_cutting_in(true, Tier::kHost, true), 2U);
}

TEST_F(HostMoves, WhereThreadsCannotBeStoppedTheMoveIsDeferred) {
  make();
  std::memset(chunk_, 5, kSize);
  const testing::KernelSigaction none;
  testing::KernelSigaction ours;
  const int signal = ThreadStopper::instance().signal_number();
  ASSERT_EQ(testing::kernel_sigaction(signal, &none, &ours), 0);
  const MoveRisk risk = source_->move_risk();
  EXPECT_FALSE(risk.safe);
  EXPECT_THAT(risk.reason, HasSubstr("changed the handler"));
  const MemoryHandle to = source_->create(Tier::kHost, Bytes{kSize});
  const CopyTicket ticket = source_->begin_copy(chunk_, handle_, to);
  ASSERT_EQ(source_->wait_copy(ticket), CopyState::kDone);
  const FenceResult fence = source_->fence(50ms);
  EXPECT_FALSE(fence.stopped);
  EXPECT_THAT(fence.reason, HasSubstr("changed the handler"));
  EXPECT_EQ(source_->swap(ticket, OnChange::kCopyInside), SwapResult::kFailed) << "no fence";
  source_->unfence();  // does nothing
  EXPECT_EQ(chunk_[kSize / 2], std::byte{5});
  ASSERT_EQ(testing::kernel_sigaction(signal, &ours, nullptr), 0);
  EXPECT_TRUE(source_->move_risk().safe) << source_->move_risk().reason;
  ASSERT_TRUE(source_->fence(2s).stopped);
  EXPECT_EQ(source_->swap(ticket, OnChange::kLeave), SwapResult::kSwapped);
  source_->unfence();
  source_->end_copy(ticket);
  EXPECT_EQ(chunk_[kSize / 2], std::byte{5});
}

}  // namespace
}  // namespace commensal::host_moves_test
