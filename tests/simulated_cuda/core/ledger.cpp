// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace commensal::simulated_cuda {
namespace {

constexpr int kDevices = 8;
constexpr std::uint64_t kMagic = 0x636d'7369'6d43'0001;

/// When a process began, in clock ticks since boot; 0 if it does not live (a zombie does not).
std::uint64_t start_of(pid_t process) {
  std::ostringstream stat;  // not an istreambuf_iterator: it throws where a process has ended
  stat << std::ifstream{"/proc/" + std::to_string(process) + "/stat"}.rdbuf();
  const std::string text = std::move(stat).str();
  const auto name_ends = text.rfind(')');  // a name may hold blanks and brackets
  if (name_ends == std::string::npos) return 0;
  std::istringstream fields{text.substr(name_ends + 1)};
  std::string state;
  fields >> state;
  if (state == "Z" || state == "X") return 0;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  std::uint64_t start = 0;
  fields >> start;
  return start;
}

}  // namespace

struct Ledger::Table {
  struct Slot {
    std::int32_t process;
    std::uint64_t start;
    std::uint64_t bytes[kDevices];
  };
  struct Exported {
    std::uint64_t identity;
    std::uint64_t bytes;
    std::uint64_t holders;  // one bit a slot
    std::int32_t device;
  };
  static constexpr std::size_t kSlots = 64;

  std::uint64_t magic;
  std::uint64_t capacity;
  Slot slots[kSlots];
  Exported exported[4096];

  void drop(std::size_t number) {
    slots[number] = Slot{};
    for (Exported& chunk : exported) {
      chunk.holders &= ~(std::uint64_t{1} << number);
      if (chunk.holders == 0) chunk = Exported{};
    }
  }

  /// @param own_too  looks at this process's number as well: another process may have had it.
  void drop_the_dead(bool own_too = false) {
    for (std::size_t number = 0; number < kSlots; ++number) {
      const Slot& slot = slots[number];
      if (slot.process == 0 || (slot.process == ::getpid() && !own_too)) continue;
      if (start_of(slot.process) != slot.start) drop(number);
    }
  }

  std::size_t own() {
    const auto process = static_cast<std::int32_t>(::getpid());
    for (std::size_t number = 0; number < kSlots; ++number) {
      if (slots[number].process != process) continue;
      return number;
    }
    for (std::size_t number = 0; number < kSlots; ++number) {
      if (slots[number].process != 0) continue;
      slots[number].process = process;
      slots[number].start = start_of(process);
      return number;
    }
    throw std::runtime_error("more than 64 processes share the simulated machine");
  }

  std::uint64_t used(int device) const {
    std::uint64_t sum = 0;
    for (const Slot& slot : slots) sum += slot.bytes[device];
    for (const Exported& chunk : exported) {
      if (chunk.holders != 0 && chunk.device == device) sum += chunk.bytes;
    }
    return sum;
  }

  Exported* find(std::uint64_t identity) {
    auto* const end = std::end(exported);
    auto* const found = std::find_if(std::begin(exported), end, [&](const Exported& chunk) {
      return chunk.identity == identity && (identity == 0 || chunk.holders != 0);
    });
    return found == end ? nullptr : found;
  }
};

namespace {

/// Takes or gives back the file's lock. It is the process's own (a forked child does not share
/// it), and ends with the process.
void lock_file(int file, short type) {
  struct ::flock whole {};
  whole.l_type = type;
  whole.l_whence = SEEK_SET;
  while (::fcntl(file, F_SETLKW, &whole) != 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "fcntl");
  }
}

}  // namespace

/// Locks the table against threads and processes, and drops the dead.
class Ledger::Locked {
 public:
  explicit Locked(Ledger& ledger) : lock_(ledger.mutex_), ledger_(ledger) {
    if (ledger_.file_ >= 0) lock_file(ledger_.file_, F_WRLCK);
    ledger_.table_->drop_the_dead();
  }
  ~Locked() {
    if (ledger_.file_ >= 0) lock_file(ledger_.file_, F_UNLCK);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  Table* operator->() const { return ledger_.table_; }

 private:
  std::lock_guard<Mutex> lock_;
  Ledger& ledger_;
};

Ledger::Ledger(const std::string& path, std::size_t capacity, std::vector<int> visible)
    : visible_(std::move(visible)) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (!path.empty()) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), path);
    lock_file(file_, F_WRLCK);
    struct ::stat status {};
    if (::fstat(file_, &status) != 0 || (status.st_size < static_cast<off_t>(sizeof(Table)) &&
                                         ::ftruncate(file_, sizeof(Table)) != 0)) {
      throw std::system_error(errno, std::generic_category(), path);
    }
    flags = MAP_SHARED;
  }
  void* mapped = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, flags, file_, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  table_ = static_cast<Table*>(mapped);
  if (table_->magic == 0) {
    table_->magic = kMagic;
    table_->capacity = capacity;
  }
  const bool known = table_->magic == kMagic;
  if (known) table_->drop_the_dead(true);
  if (file_ >= 0) lock_file(file_, F_UNLCK);
  if (!known) throw std::runtime_error("not a ledger of simulated devices: " + path);
}

Ledger::~Ledger() {
  {
    const Locked table(*this);
    table->drop(table->own());
  }
  ::munmap(table_, sizeof(Table));
  if (file_ >= 0) ::close(file_);
}

std::size_t Ledger::capacity() const noexcept { return table_->capacity; }

int Ledger::physical(int device) const {
  return visible_.empty() ? device : visible_[static_cast<std::size_t>(device)];
}

int Ledger::visible(int physical) const {
  if (visible_.empty()) return physical;
  const auto found = std::ranges::find(visible_, physical);
  return found == visible_.end() ? -1 : static_cast<int>(found - visible_.begin());
}

bool Ledger::take(int device, std::size_t bytes) {
  const int number = physical(device);
  const Locked table(*this);
  const std::uint64_t used = table->used(number);
  if (bytes > table->capacity || used > table->capacity - bytes) return false;
  table->slots[table->own()].bytes[number] += bytes;
  return true;
}

void Ledger::give_back(int device, std::size_t bytes) {
  const Locked table(*this);
  table->slots[table->own()].bytes[physical(device)] -= bytes;
}

bool Ledger::share(int device, std::size_t bytes, std::uint64_t identity) {
  const Locked table(*this);
  const std::size_t own = table->own();
  const std::uint64_t bit = std::uint64_t{1} << own;
  if (Table::Exported* chunk = table->find(identity)) return (chunk->holders & bit) != 0;
  Table::Exported* empty = table->find(0);
  if (empty == nullptr) return false;
  *empty = {identity, bytes, bit, physical(device)};
  table->slots[own].bytes[physical(device)] -= bytes;
  return true;
}

bool Ledger::hold(int device, std::size_t bytes, std::uint64_t identity) {
  const Locked table(*this);
  const std::uint64_t bit = std::uint64_t{1} << table->own();
  if (Table::Exported* chunk = table->find(identity)) {
    chunk->holders |= bit;
    return true;
  }
  Table::Exported* empty = table->find(0);
  const std::uint64_t used = table->used(physical(device));
  if (empty == nullptr || used + bytes > table->capacity) return false;
  *empty = {identity, bytes, bit, physical(device)};
  return true;
}

void Ledger::let_go(std::uint64_t identity) {
  const Locked table(*this);
  Table::Exported* chunk = table->find(identity);
  if (chunk == nullptr) return;
  chunk->holders &= ~(std::uint64_t{1} << table->own());
  if (chunk->holders == 0) *chunk = {};
}

std::size_t Ledger::used(int device) { return physical_used(physical(device)); }

std::size_t Ledger::physical_used(int number) {
  const Locked table(*this);
  return table->used(number);
}

std::vector<Ledger::Share> Ledger::physical_shares(int number) {
  const Locked table(*this);
  std::vector<Share> shares;
  for (std::size_t place = 0; place < Table::kSlots; ++place) {
    const Table::Slot& slot = table->slots[place];
    if (slot.process == 0) continue;
    std::size_t bytes = slot.bytes[number];
    for (const Table::Exported& chunk : table->exported) {
      const bool holds = (chunk.holders >> place & 1) != 0;
      if (holds && chunk.device == number) bytes += chunk.bytes;
    }
    if (bytes > 0) shares.push_back({slot.process, bytes});
  }
  return shares;
}

}  // namespace commensal::simulated_cuda
