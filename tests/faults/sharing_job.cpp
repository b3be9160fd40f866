// SPDX-License-Identifier: Apache-2.0
// A job of the fuzz of two processes: a real session, two threads that do random operations on
// blocks with checksums, until it is killed or told to settle.
//
//   sharing_job RUNTIME_DIR JOB_ID guaranteed|opportunistic SPILL_DIR PAGE SEED [loses_writes]
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "allocator/host/host_memory_source.h"
#include "tests/faults/sharing_job.h"
#include "torch_ext/runtime/session.h"

namespace {

using namespace commensal;
using commensal::testing::SharingPage;
using commensal::testing::SharingPhase;
using namespace std::chrono_literals;

constexpr std::size_t kMostBlocks = 700;  // of a thread

SharingPage* g_page = nullptr;

/// Blocks of one thread, each with the checksum of all its bytes.
class CheckedBlocks {
 public:
  CheckedBlocks(ElasticAllocator& allocator, std::uint64_t seed)
      : allocator_(allocator), random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }

  void allocate() {
    if (blocks_.size() >= kMostBlocks) return;
    const std::uint64_t power = 6 + (below(64) == 0 ? 12 + below(2) : below(10));  // 64 B to 1 MiB
    const std::size_t size = (std::size_t{1} << power) + below(std::uint64_t{1} << power);
    void* address = nullptr;
    try {
      address = allocator_.allocate(Bytes{size});
    } catch (const OutOfMemory& error) {
      (void)std::fprintf(stderr, "%s\n", error.what());
      ++g_page->out_of_memory;
      return;
    }
    blocks_.push_back(Block{static_cast<std::byte*>(address), size, 0});
    write(blocks_.back());
  }
  void deallocate() {
    if (blocks_.empty()) return;
    Block& block = any();
    check(block);
    if (!allocator_.deallocate(block.begin)) lost(block);
    block = blocks_.back();
    blocks_.pop_back();
  }
  void write() {
    if (!blocks_.empty()) write(any());
  }
  void check() {
    if (!blocks_.empty()) check(any());
  }
  void check_all() const {
    for (const Block& block : blocks_) check(block);
  }
  void deallocate_all() {
    while (!blocks_.empty()) deallocate();
  }

  /// Forks a child that reads some blocks while its parent goes on, writes to one and leaves.
  pid_t fork() {
    if (blocks_.empty()) return 0;
    const Block chosen[3] = {any(), any(), any()};
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    bool right = true;
    for (int round = 0; round < 3; ++round) {
      for (const Block& block : chosen) right = right && sum(block) == block.checksum;
      ::usleep(2000);
    }
    std::memset(chosen[0].begin, 1, chosen[0].size);  // its own copy
    ::_exit(right ? 0 : 9);
  }

 private:
  struct Block {
    std::byte* begin = nullptr;
    std::size_t size = 0;
    std::uint64_t checksum = 0;
  };

  Block& any() { return blocks_[below(blocks_.size())]; }
  static std::uint64_t sum(const Block& block) { return XXH3_64bits(block.begin, block.size); }
  void write(Block& block) {
    const std::uint64_t seed = random_();
    for (std::size_t at = 0; at < block.size; at += sizeof seed) {
      const std::uint64_t word = seed + at * 0x9E3779B97F4A7C15U;
      std::memcpy(block.begin + at, &word, std::min(sizeof word, block.size - at));
    }
    block.checksum = sum(block);
  }
  static void lost(const Block& block) { g_page->lost_bytes += block.size; }
  static void check(const Block& block) {
    g_page->checked_bytes += block.size;
    if (sum(block) != block.checksum) lost(block);
  }

  ElasticAllocator& allocator_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
};

// --- the twin: a writer that nobody stopped --------------------------------------------------

volatile unsigned char* g_victim = nullptr;
volatile unsigned char g_expected = 0;

// Out of the sanitizers' sight: it runs while threads are stopped that may hold their locks.
#define UNINSTRUMENTED __attribute__((no_sanitize("thread", "address", "undefined")))

UNINSTRUMENTED void write_in_the_middle(void* /*context*/) {
  if (g_victim == nullptr) return;
  g_expected = static_cast<unsigned char>(g_expected + 1);
  *g_victim = g_expected;
}
UNINSTRUMENTED bool victim_lost_a_write() { return g_victim != nullptr && *g_victim != g_expected; }
std::unique_ptr<MemorySource> losing_source(const SessionConfig& config, bool (*between_ops)()) {
  HostMemorySource::Options options;
  options.spill_folder = config.spill_dir;
  options.between_ops = between_ops;
  options.testing.before_exchange = write_in_the_middle;
  return std::make_unique<HostMemorySource>(options);
}

// --- operations ------------------------------------------------------------------------------

/// The training thread: takes steps, changes limits, parks, forks.
class Trainer {
 public:
  Trainer(Session& session, std::uint64_t seed)
      : session_(session), blocks_(session.allocator(), seed) {}

  void run() {
    while (g_page->phase == SharingPhase::kRun) {
      operate();
      const std::uint64_t done = ++g_page->operations;
      if (g_victim != nullptr && done % 512 == 0) (void)session_.allocator().park();
      if (victim_lost_a_write()) g_page->lost_bytes += 1;
    }
    reap(0);
    tell_moves();
    blocks_.check_all();
  }
  CheckedBlocks& blocks() noexcept { return blocks_; }

 private:
  void operate() {
    const std::uint64_t choice = blocks_.below(100'000);
    if (choice < 45'000) return blocks_.allocate();  // up to its cap
    if (choice < 70'000) return blocks_.deallocate();
    if (choice < 85'000) return blocks_.write();
    if (choice < 99'840) return blocks_.check();
    if (choice < 99'940) return session_.step();
    change(choice - 99'940);
  }
  void change(std::uint64_t choice) {
    ElasticAllocator& allocator = session_.allocator();
    if (choice < 14) {
      (void)session_.set_memory_limit(Bytes{(16 + blocks_.below(48)) << 20U});
    } else if (choice < 20) {
      (void)allocator.shrink(Bytes{blocks_.below(std::uint64_t{16} << 20U)});
    } else if (choice < 26) {
      (void)allocator.grow(Bytes{blocks_.below(std::uint64_t{16} << 20U)});
    } else if (choice < 32) {
      (void)allocator.park();
    } else if (choice < 36) {
      (void)allocator.release_cached();
    } else {
      reap(WNOHANG);
      const pid_t child = blocks_.fork();
      if (child > 0) children_.push_back(child);
    }
    tell_moves();
  }
  void tell_moves() {
    const AllocatorStats stats = session_.allocator().stats();
    g_page->moved_bytes += (stats.moved_out + stats.moved_in - told_).count();
    told_ = stats.moved_out + stats.moved_in;
  }
  void reap(int how) {
    std::erase_if(children_, [&](pid_t child) {
      int status = 0;
      if (::waitpid(child, &status, how) != child) return false;
      ++g_page->forks;
      if (status != 0) g_page->lost_bytes += 1;
      return true;
    });
  }

  Session& session_;
  CheckedBlocks blocks_;
  std::vector<pid_t> children_;
  Bytes told_;
};

/// A thread beside it, as of a loader: writes while chunks move.
void load(CheckedBlocks& blocks) {
  while (g_page->phase == SharingPhase::kRun) {
    const std::uint64_t choice = blocks.below(100);
    if (choice < 40) {
      blocks.allocate();
    } else if (choice < 60) {
      blocks.deallocate();
    } else if (choice < 80) {
      blocks.write();
    } else {
      blocks.check();
    }
    ++g_page->operations;
  }
  blocks.check_all();
}

void settle(Session& session) {
  while (g_page->phase == SharingPhase::kSettle) {
    session.step();
    const AllocatorStats stats = session.allocator().stats();
    g_page->live_bytes = stats.live.count();
    g_page->device_bytes = stats.device.count();
    g_page->settled = true;
    std::this_thread::sleep_for(5ms);
  }
}

SharingPage* open_page(const char* path) {
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* page = ::mmap(nullptr, sizeof(SharingPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return page == MAP_FAILED ? nullptr : static_cast<SharingPage*>(page);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7 || (g_page = open_page(argv[5])) == nullptr) {
    std::fputs("sharing_job RUNTIME_DIR JOB_ID CLASS SPILL_DIR PAGE SEED [loses_writes]\n", stderr);
    return 2;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  SessionConfig config;
  config.job_id = JobId{argv[2]};
  config.name = argv[2];
  config.runtime_dir = argv[1];
  config.spill_dir = argv[4];
  config.terms.idle_class = false;  // a busy machine would starve it
  config.connect_timeout = 20s;
  if (std::string(argv[3]) == "guaranteed") {
    config.job_class = JobClass::kGuaranteed;
    config.terms.memory = MemoryRange{16_MiB, 40_MiB};
  }
  const std::uint64_t seed = std::stoull(argv[6]);
  const bool loses = argc > 7 && std::string(argv[7]) == "loses_writes";
  Session& session = Session::start(config, loses ? &losing_source : nullptr);
  if (loses) {
    g_victim = static_cast<unsigned char*>(session.allocator().allocate(64_B));
    *g_victim = g_expected;
  }
  Trainer trainer(session, seed);
  CheckedBlocks loaded(session.allocator(), seed + 1);
  std::thread loader([&] { load(loaded); });
  trainer.run();
  loader.join();
  settle(session);
  trainer.blocks().deallocate_all();
  loaded.deallocate_all();
  const bool all_freed = session.allocator().stats().live.is_zero();
  session.shutdown();
  return all_freed || loses ? 0 : 3;
}
