// SPDX-License-Identifier: Apache-2.0
// A strict memory source on plain memory.
#include "tests/allocator/fake_memory_source.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace commensal {
namespace {

std::string hex(const void* address) {
  std::ostringstream text;
  text << address;
  return text.str();
}

std::size_t index(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

}  // namespace

std::string_view to_string(FakeCall call) noexcept {
  static constexpr std::array<std::string_view, kFakeCalls> kNames = {
      "reserve", "unreserve",  "create", "release", "map",
      "unmap",   "begin_copy", "copy",   "fence",   "swap"};
  return kNames[static_cast<std::size_t>(call)];
}

// Notices two serialised calls at the same time. Hooks run outside of it.
class FakeMemorySource::Serial {
 public:
  explicit Serial(FakeMemorySource& source) : source_(source) {
    if (source_.inside_.fetch_add(1) != 0) {
      const MutexLock lock(source_.mutex_);
      source_.violation("two serialised calls at the same time");
    }
  }
  ~Serial() { source_.inside_.fetch_sub(1); }
  Serial(const Serial&) = delete;
  Serial& operator=(const Serial&) = delete;

 private:
  FakeMemorySource& source_;
};

FakeMemorySource::FakeMemorySource() : FakeMemorySource(Options{}) {}

FakeMemorySource::FakeMemorySource(Options options)
    : options_(std::move(options)), capacity_{options_.device_capacity, options_.host_capacity} {}

FakeMemorySource::~FakeMemorySource() {
  const MutexLock lock(mutex_);
  for (const auto& [begin, size] : ranges_) ::munmap(begin, size.count());
}

void FakeMemorySource::fail_at(FakeCall call, std::uint64_t n) {
  const MutexLock lock(mutex_);
  Plan& plan = plans_[static_cast<std::size_t>(call)];
  plan.fail_at = plan.calls + n;
}

void FakeMemorySource::fail_always(FakeCall call) {
  const MutexLock lock(mutex_);
  plans_[static_cast<std::size_t>(call)].always = true;
}

void FakeMemorySource::fail_never(FakeCall call) {
  const MutexLock lock(mutex_);
  Plan& plan = plans_[static_cast<std::size_t>(call)];
  plan.always = false;
  plan.fail_at = 0;
}

void FakeMemorySource::set_move_risk(std::string reason) {
  const MutexLock lock(mutex_);
  risk_ = std::move(reason);
}

void FakeMemorySource::set_touched(const std::byte* address, Touched touched) {
  const MutexLock lock(mutex_);
  const auto at = mapped_.find(address);
  if (at == mapped_.end()) misuse("set_touched", "nothing is mapped at " + hex(address));
  blocks_.at(at->second).touched = touched;
}

void FakeMemorySource::set_held_by_children(Bytes bytes) {
  const MutexLock lock(mutex_);
  held_by_children_ = bytes;
}

void FakeMemorySource::set_capacity(Tier tier, Bytes capacity) {
  const MutexLock lock(mutex_);
  capacity_[index(tier)] = capacity;
}

std::uint64_t FakeMemorySource::calls(FakeCall call) const {
  const MutexLock lock(mutex_);
  return plans_[static_cast<std::size_t>(call)].calls;
}

std::vector<FakeMemorySource::Entry> FakeMemorySource::log() const {
  const MutexLock lock(mutex_);
  return log_;
}

void FakeMemorySource::clear_log() {
  const MutexLock lock(mutex_);
  log_.clear();
}

std::vector<std::string> FakeMemorySource::violations() const {
  const MutexLock lock(mutex_);
  return violations_;
}

Bytes FakeMemorySource::sum(Tier tier, bool only_mapped) const {
  Bytes total;
  for (const auto& [id, block] : blocks_) {
    if (block.handle.tier == tier && (!only_mapped || block.address != nullptr)) {
      total += block.handle.size;
    }
  }
  return total;
}

Bytes FakeMemorySource::created(Tier tier) const {
  const MutexLock lock(mutex_);
  return sum(tier, false);
}

Bytes FakeMemorySource::mapped(Tier tier) const {
  const MutexLock lock(mutex_);
  return sum(tier, true);
}

Bytes FakeMemorySource::reserved() const {
  const MutexLock lock(mutex_);
  Bytes total;
  for (const auto& [begin, size] : ranges_) total += size;
  return total;
}

Tier FakeMemorySource::tier_at(const void* address) const {
  const MutexLock lock(mutex_);
  const Block* found = block_over(static_cast<const std::byte*>(address), Bytes{1});
  return found == nullptr ? Tier::kFree : found->handle.tier;
}

bool FakeMemorySource::fenced() const {
  const MutexLock lock(mutex_);
  return fenced_;
}

// Counts and logs a call, and says whether it has to fail.
bool FakeMemorySource::fails(FakeCall call, std::uint64_t id, const std::byte* address,
                             Bytes size) {
  Plan& plan = plans_[static_cast<std::size_t>(call)];
  ++plan.calls;
  const bool failed = plan.always || plan.calls == plan.fail_at;
  log_.push_back(Entry{call, id, address, size, failed});
  return failed;
}

void FakeMemorySource::violation(std::string text) const { violations_.push_back(std::move(text)); }

// Callers may catch it with what a source may well throw: it is remembered too.
void FakeMemorySource::misuse(std::string_view call, const std::string& what) const {
  violation(std::string(call) + ": " + what);
  throw std::logic_error(violations_.back());
}

void FakeMemorySource::check_usable(std::string_view call) const {
  if (fenced_) misuse(call, "called inside a fence");
  if (in_child_) misuse(call, "called in a forked child");
}

FakeMemorySource::Block& FakeMemorySource::block(MemoryHandle handle, std::string_view call) {
  const auto at = blocks_.find(handle.id);
  if (at == blocks_.end()) {
    misuse(call, "unknown or released handle " + std::to_string(handle.id));
  }
  if (at->second.handle.size != handle.size || at->second.handle.tier != handle.tier) {
    misuse(call, "handle " + std::to_string(handle.id) + " was altered");
  }
  return at->second;
}

bool FakeMemorySource::reserved_whole(const std::byte* address, Bytes size) const {
  for (const auto& [begin, length] : ranges_) {
    if (address >= begin && address + size.count() <= begin + length.count()) return true;
  }
  return false;
}

const FakeMemorySource::Block* FakeMemorySource::block_over(const std::byte* address,
                                                            Bytes size) const {
  auto at = mapped_.lower_bound(address + size.count());
  if (at == mapped_.begin()) return nullptr;
  const Block& found = blocks_.at((--at)->second);
  return found.address + found.handle.size.count() > address ? &found : nullptr;
}

Bytes FakeMemorySource::capacity(Tier tier) const noexcept {
  const MutexLock lock(mutex_);
  if (tier != Tier::kDevice && tier != Tier::kHost) return Bytes{};
  return capacity_[index(tier)];
}

std::string FakeMemorySource::host_tier_reason() const {
  const MutexLock lock(mutex_);
  if (!capacity_[1].is_zero()) return {};
  return options_.host_reason.empty() ? "this fake has no slower tier" : options_.host_reason;
}

AddressRange FakeMemorySource::reserve(Bytes size) {
  const Serial serial(*this);
  const MutexLock lock(mutex_);
  check_usable("reserve");
  if (size.is_zero() || size.count() % granularity().count() != 0) {
    misuse("reserve", "not a multiple of the granularity: " + std::to_string(size.count()));
  }
  if (fails(FakeCall::kReserve, 0, nullptr, size) || size > options_.address_space) {
    throw OutOfMemory("reserve: no address space for " + to_string(size));
  }
  const std::size_t step = granularity().count();
  const std::size_t wide = size.count() + step;
  void* got = ::mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) {
    throw OutOfMemory("reserve: mmap of " + to_string(size) + ": " + std::strerror(errno));
  }
  auto* raw = static_cast<std::byte*>(got);
  const std::size_t head = (step - reinterpret_cast<std::uintptr_t>(raw) % step) % step;
  std::byte* begin = raw + head;
  if (head != 0) ::munmap(raw, head);
  ::munmap(begin + size.count(), wide - head - size.count());
  ranges_.emplace(begin, size);
  return AddressRange{begin, size};
}

void FakeMemorySource::unreserve(AddressRange range) {
  const Serial serial(*this);
  if (hooks_.before_call) hooks_.before_call(FakeCall::kUnreserve);
  const MutexLock lock(mutex_);
  check_usable("unreserve");
  const auto at = ranges_.find(range.begin);
  if (at == ranges_.end() || at->second != range.size) {
    misuse("unreserve", "no such reservation: " + hex(range.begin));
  }
  if (block_over(range.begin, range.size) != nullptr) {
    misuse("unreserve", "something is still mapped in " + hex(range.begin));
  }
  if (fails(FakeCall::kUnreserve, 0, range.begin, range.size)) {
    throw SourceError("unreserve: told to fail");
  }
  ::munmap(range.begin, range.size.count());
  ranges_.erase(at);
}

MemoryHandle FakeMemorySource::create(Tier tier, Bytes size) {
  const Serial serial(*this);
  if (hooks_.before_call) hooks_.before_call(FakeCall::kCreate);
  const MutexLock lock(mutex_);
  check_usable("create");
  if (tier != Tier::kDevice && tier != Tier::kHost) {
    misuse("create", "tier " + std::string(to_string(tier)) + " has no handles");
  }
  if (size.is_zero() || size.count() % granularity().count() != 0) {
    misuse("create", "not a multiple of the granularity: " + std::to_string(size.count()));
  }
  if (fails(FakeCall::kCreate, next_id_, nullptr, size)) {
    throw SourceError("create: told to fail");
  }
  Bytes& used = created_[index(tier)];
  if (size > saturating_sub(capacity_[index(tier)], used)) {
    throw OutOfMemory("create: above capacity of tier " + std::string(to_string(tier)) + ": " +
                      to_string(used) + " + " + to_string(size) + " > " +
                      to_string(capacity_[index(tier)]));
  }
  used += size;
  const MemoryHandle handle{next_id_++, size, tier};
  Block made;
  made.handle = handle;
  blocks_.emplace(handle.id, made);
  return handle;
}

void FakeMemorySource::release(MemoryHandle handle) {
  const Serial serial(*this);
  const MutexLock lock(mutex_);
  check_usable("release");
  const Block& found = block(handle, "release");
  if (found.address != nullptr) misuse("release", "still mapped at " + hex(found.address));
  if (found.copying) misuse("release", "still part of a copy");
  if (fails(FakeCall::kRelease, handle.id, nullptr, handle.size)) {
    throw SourceError("release: told to fail");
  }
  created_[index(handle.tier)] -= handle.size;
  blocks_.erase(handle.id);
}

void FakeMemorySource::map(std::byte* address, MemoryHandle handle) {
  const Serial serial(*this);
  if (hooks_.before_call) hooks_.before_call(FakeCall::kMap);
  const MutexLock lock(mutex_);
  check_usable("map");
  Block& found = block(handle, "map");
  if (found.address != nullptr) misuse("map", "already mapped at " + hex(found.address));
  if (found.copying) misuse("map", "target of a copy");
  if (reinterpret_cast<std::uintptr_t>(address) % granularity().count() != 0) {
    misuse("map", "address is not aligned: " + hex(address));
  }
  if (!reserved_whole(address, handle.size)) misuse("map", "not reserved: " + hex(address));
  if (block_over(address, handle.size) != nullptr) {
    misuse("map", "something is mapped there: " + hex(address));
  }
  if (fails(FakeCall::kMap, handle.id, address, handle.size)) {
    throw SourceError("map: told to fail");
  }
  if (::mprotect(address, handle.size.count(), PROT_READ | PROT_WRITE) != 0) {
    throw SourceError(std::string("map: mprotect: ") + std::strerror(errno));
  }
  found.address = address;
  mapped_.emplace(address, handle.id);
}

void FakeMemorySource::unmap(std::byte* address, MemoryHandle handle) {
  const Serial serial(*this);
  if (hooks_.before_call) hooks_.before_call(FakeCall::kUnmap);
  const MutexLock lock(mutex_);
  check_usable("unmap");
  Block& found = block(handle, "unmap");
  if (found.address == nullptr || found.address != address) {
    misuse("unmap", "handle " + std::to_string(handle.id) + " is not mapped at " + hex(address));
  }
  if (found.copying) misuse("unmap", "source of a copy");
  if (fails(FakeCall::kUnmap, handle.id, address, handle.size)) {
    throw SourceError("unmap: told to fail");
  }
  if (::mmap(address, handle.size.count(), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw SourceError(std::string("unmap: mmap: ") + std::strerror(errno));
  }
  mapped_.erase(address);
  found.address = nullptr;
  found.touched = Touched{};
}

CopyTicket FakeMemorySource::begin_copy(std::byte* address, MemoryHandle from, MemoryHandle to) {
  const Serial serial(*this);
  const MutexLock lock(mutex_);
  check_usable("begin_copy");
  Block& source = block(from, "begin_copy");
  Block& target = block(to, "begin_copy");
  if (source.address == nullptr || source.address != address) {
    misuse("begin_copy", "source is not mapped at " + hex(address));
  }
  if (target.address != nullptr) misuse("begin_copy", "target is mapped");
  if (source.copying || target.copying) misuse("begin_copy", "a copy of it runs already");
  if (from.size != to.size) misuse("begin_copy", "sizes differ");
  if (fails(FakeCall::kBeginCopy, to.id, address, from.size)) {
    throw SourceError("begin_copy: told to fail");
  }
  source.copying = target.copying = true;
  Copy copy;
  copy.address = address;
  copy.from = from.id;
  copy.to = to.id;
  const std::uint64_t id = next_id_++;
  copies_.emplace(id, std::move(copy));
  return CopyTicket{id};
}

CopyState FakeMemorySource::copy_state(CopyTicket ticket) const noexcept {
  const MutexLock lock(mutex_);
  const auto at = copies_.find(ticket.id);
  return at == copies_.end() ? CopyState::kFailed : at->second.state;
}

std::string FakeMemorySource::copy_error(CopyTicket ticket) const {
  const MutexLock lock(mutex_);
  const auto at = copies_.find(ticket.id);
  if (at == copies_.end()) misuse("copy_error", "unknown ticket");
  return at->second.error;
}

CopyState FakeMemorySource::advance_copy(CopyTicket ticket, Bytes most) {
  if (most != Bytes{UINT64_MAX} && hooks_.more_turns && hooks_.more_turns()) {
    return copy_state(ticket);
  }
  return wait_copy(ticket);
}

CopyState FakeMemorySource::wait_copy(CopyTicket ticket) {
  const Serial serial(*this);
  std::byte* address = nullptr;
  Bytes size;
  {
    const MutexLock lock(mutex_);
    check_usable("wait_copy");
    const auto at = copies_.find(ticket.id);
    if (at == copies_.end()) misuse("wait_copy", "unknown ticket");
    Copy& copy = at->second;
    if (copy.state != CopyState::kRunning) return copy.state;
    address = copy.address;
    size = blocks_.at(copy.from).handle.size;
    if (fails(FakeCall::kCopy, ticket.id, address, size)) {
      copy.state = CopyState::kFailed;
      copy.error = "copy: told to fail";
      return copy.state;
    }
    copy.bytes.assign(address, address + size.count());
  }
  if (hooks_.copied) hooks_.copied(address, size);
  const MutexLock lock(mutex_);
  Copy& copy = copies_.at(ticket.id);
  copy.state = CopyState::kDone;
  return copy.state;
}

void FakeMemorySource::end_copy(CopyTicket ticket) noexcept {
  const Serial serial(*this);
  const MutexLock lock(mutex_);
  const auto at = copies_.find(ticket.id);
  if (fenced_) violation("end_copy: called inside a fence");
  if (at == copies_.end()) return violation("end_copy: unknown ticket");
  const auto from = blocks_.find(at->second.from);
  const auto to = blocks_.find(at->second.to);
  if (!at->second.swapped) {
    if (from != blocks_.end()) from->second.copying = false;
    if (to != blocks_.end()) to->second.copying = false;
  }
  copies_.erase(at);
}

MoveRisk FakeMemorySource::move_risk() {
  const MutexLock lock(mutex_);
  check_usable("move_risk");
  return MoveRisk{risk_.empty(), risk_};
}

FenceResult FakeMemorySource::fence(Duration deadline) noexcept {
  const Serial serial(*this);
  if (hooks_.before_fence) hooks_.before_fence();
  const MutexLock lock(mutex_);
  if (in_child_) violation("fence: called in a forked child");
  if (fenced_) violation("fence: called inside a fence");
  if (fails(FakeCall::kFence, 0, nullptr, Bytes{})) {
    return FenceResult{false, "a thread did not stop in time", deadline};
  }
  fenced_ = true;
  return FenceResult{true, "", Duration{1000}};
}

SwapResult FakeMemorySource::swap(CopyTicket ticket, OnChange on_change) noexcept {
  const Serial serial(*this);
  const MutexLock lock(mutex_);
  const auto at = copies_.find(ticket.id);
  if (!fenced_) {
    violation("swap: called outside a fence");
    return SwapResult::kFailed;
  }
  if (at == copies_.end() || at->second.state != CopyState::kDone || at->second.swapped) {
    violation("swap: the ticket is unknown, not done, or was swapped");
    return SwapResult::kFailed;
  }
  Copy& copy = at->second;
  Block& from = blocks_.at(copy.from);
  Block& to = blocks_.at(copy.to);
  if (fails(FakeCall::kSwap, ticket.id, copy.address, from.handle.size)) {
    return SwapResult::kFailed;
  }
  const bool changed = std::memcmp(copy.bytes.data(), copy.address, copy.bytes.size()) != 0;
  if (changed && on_change == OnChange::kLeave) return SwapResult::kChanged;
  copy.swapped = true;
  from.copying = to.copying = false;  // the old handle may be released before `end_copy`
  to.address = copy.address;
  to.touched = Touched{};
  from.address = nullptr;
  from.touched = Touched{};
  mapped_[copy.address] = to.handle.id;
  return SwapResult::kSwapped;
}

void FakeMemorySource::unfence() noexcept {
  {
    const Serial serial(*this);
    const MutexLock lock(mutex_);
    if (!fenced_) violation("unfence: called outside a fence");
    fenced_ = false;
  }
  if (hooks_.after_unfence) hooks_.after_unfence();
}

MemorySource::Touched FakeMemorySource::touched(std::byte* address,
                                                MemoryHandle handle) const noexcept {
  const MutexLock lock(mutex_);
  const auto at = blocks_.find(handle.id);
  if (at == blocks_.end() || at->second.address != address) return {};
  return at->second.touched;
}

Bytes FakeMemorySource::trim(std::byte* address, MemoryHandle handle) noexcept {
  const Serial serial(*this);
  const MutexLock lock(mutex_);
  const auto at = blocks_.find(handle.id);
  if (fenced_) violation("trim: called inside a fence");
  if (at == blocks_.end() || at->second.address != address || handle.tier != Tier::kHost) {
    violation("trim: no host handle is mapped at " + hex(address));
    return {};
  }
  Touched& now = at->second.touched;
  const Bytes dropped = saturating_sub(now.resident, now.written);
  now.resident = now.written;
  return dropped;
}

void FakeMemorySource::prepare_fork() noexcept {
  const MutexLock lock(mutex_);
  for (const auto& [id, copy] : copies_) {
    if (copy.state == CopyState::kRunning) violation("prepare_fork: a copy is running");
  }
  if (fenced_) violation("prepare_fork: called inside a fence");
}

void FakeMemorySource::after_fork_parent() noexcept {}

void FakeMemorySource::after_fork_child() noexcept {
  const MutexLock lock(mutex_);
  in_child_ = true;
}

Bytes FakeMemorySource::held_by_children() const noexcept {
  const MutexLock lock(mutex_);
  return held_by_children_;
}

}  // namespace commensal
