// SPDX-License-Identifier: Apache-2.0
// Memory of a machine without a GPU.
#include "allocator/host/host_memory_source.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "allocator/host/kernel_io.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

// For code between `fence` and `unfence`: a stopped thread may hold the sanitizer's locks.
#define COMMENSAL_IN_FENCE __attribute__((no_sanitize("thread")))

namespace commensal {
namespace {

constexpr Bytes kGranularity = 2_MiB;       // a huge page
constexpr std::size_t kPiece = 64U << 10U;  // copied and fingerprinted while it is in the cache
constexpr std::size_t kPiecesInBuffer = SlotIo::kBuffer / kPiece;
constexpr std::size_t kPiecesAtOnce = (std::size_t{4} << 20U) / kPiece;  // in one request

std::string hex(const void* address) {
  std::ostringstream text;
  text << address;
  return text.str();
}

[[noreturn]] void misuse(std::string_view call, const std::string& what) {
  throw std::logic_error(std::string(call) + ": " + what);
}

[[noreturn]] void refused(const std::string& call, int error) {
  throw SourceError(call + ": " + std::strerror(error));
}

Bytes physical_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return Bytes{UINT64_MAX};
  return Bytes{static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)};
}

// Memory that appears when it is touched, over whatever is there. No call that could be
// intercepted: also used inside a fence.
COMMENSAL_IN_FENCE bool put_anonymous(std::byte* address, std::size_t size) noexcept {
  const long got = ::syscall(SYS_mmap, address, size, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0L);
  if (got == -1) return false;
  // The same advice everywhere, or neighbours do not merge. Kernels without huge pages refuse.
  ::syscall(SYS_madvise, address, size, MADV_HUGEPAGE);
  return true;
}

}  // namespace

HostMemorySource::HostMemorySource() : HostMemorySource(Options{}) {}

HostMemorySource::HostMemorySource(Options options)
    : options_(std::move(options)),
      device_capacity_(options_.device_capacity == Bytes{UINT64_MAX} ? physical_memory()
                                                                     : options_.device_capacity) {
  open_host_tier();
}

void HostMemorySource::open_host_tier() {
  try {
    ThreadStopper::instance();
    pages_ = std::make_unique<PageMap>(options_.testing.page_scan);
  } catch (const std::exception& error) {
    host_reason_ = error.what();
    return;
  }
  SpillFile::Options file;
  file.folder = options_.spill_folder;
  file.cap = options_.host_cap;
  file.step = kGranularity;
  file.direct_io = options_.testing.direct_io;
  std::unique_ptr<SpillFile> spill = SpillFile::open(file, watch_, host_reason_);
  if (!spill) return;
  try {
    io_ = std::make_unique<SlotIo>(*spill);
    if (options_.testing.watch) watch_writes_ = WriteWatch::open(*pages_);
    spill_ = std::move(spill);
  } catch (const SourceError& error) {
    host_reason_ = error.what();
  }
}

HostMemorySource::~HostMemorySource() {
  if (in_child_) return;  // the child's views stay as they are
  if (fenced_) unfence();
  io_.reset();
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, copy] : copies_) drop_staging(*copy);
  }
  for (const auto& [begin, range] : ranges_) ::munmap(range.whole, range.whole_size);
}

Bytes HostMemorySource::granularity() const noexcept { return kGranularity; }

Bytes HostMemorySource::capacity(Tier tier) const noexcept {
  if (tier == Tier::kDevice) return device_capacity_;
  return tier == Tier::kHost && spill_ ? spill_->capacity() : Bytes{};
}

void HostMemorySource::check_usable(std::string_view call) const {
  if (fenced_) misuse(call, "called inside a fence");
  if (in_child_) misuse(call, "called in a forked child");
}

void HostMemorySource::check_size(std::string_view call, Bytes size) const {
  if (size.is_zero() || size.count() % kGranularity.count() != 0) {
    misuse(call, "not a multiple of " + to_string(kGranularity) + ": " +
                     std::to_string(size.count()) + " B");
  }
}

HostMemorySource::Block& HostMemorySource::block(MemoryHandle handle, std::string_view call) {
  const auto at = blocks_.find(handle.id);
  if (at == blocks_.end()) {
    misuse(call, "unknown or released handle " + std::to_string(handle.id));
  }
  if (at->second.handle.size != handle.size || at->second.handle.tier != handle.tier) {
    misuse(call, "handle " + std::to_string(handle.id) + " was altered");
  }
  return at->second;
}

const HostMemorySource::Range* HostMemorySource::range_of(const std::byte* address,
                                                          Bytes size) const {
  for (const auto& [begin, range] : ranges_) {
    if (address >= begin && address + size.count() <= begin + range.size.count()) return &range;
  }
  return nullptr;
}

bool HostMemorySource::mapped_in(const std::byte* address, Bytes size) const {
  auto at = mapped_.lower_bound(address + size.count());
  if (at == mapped_.begin()) return false;
  --at;
  return at->first + blocks_.at(at->second).handle.size.count() > address;
}

AddressRange HostMemorySource::reserve(Bytes size) {
  check_usable("reserve");
  check_size("reserve", size);
  const std::size_t step = kGranularity.count();
  Range range;
  range.size = size;
  void* got = MAP_FAILED;
  std::byte* begin = nullptr;
  // A range of the same size at a constant distance is where chunks come back from: then what has
  // come back merges into one mapping again. It can be done without.
  for (const bool mirror : {true, false}) {
    if (mirror && (!options_.testing.mirror || size.count() > SIZE_MAX / 4)) continue;
    range.mirror = mirror ? static_cast<std::ptrdiff_t>(size.count() + step) : 0;
    range.whole_size = size.count() + step + static_cast<std::size_t>(range.mirror);
    got = ::mmap(nullptr, range.whole_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (got == MAP_FAILED) continue;
    range.whole = static_cast<std::byte*>(got);
    const std::size_t head = (step - reinterpret_cast<std::uintptr_t>(got) % step) % step;
    begin = range.whole + head;
    // Under strict overcommit (vm.overcommit_memory=2) this is where the limit is.
    if (put_anonymous(begin, size.count()) &&
        (!mirror || put_anonymous(begin + range.mirror, size.count()))) {
      break;
    }
    const int error = errno;
    ::munmap(range.whole, range.whole_size);
    got = MAP_FAILED;
    errno = error;
  }
  if (got == MAP_FAILED) {
    throw OutOfMemory("no address space for " + to_string(size) + ": " + std::strerror(errno));
  }
  ranges_.emplace(begin, range);
  return AddressRange{begin, size};
}

void HostMemorySource::unreserve(AddressRange range) {
  check_usable("unreserve");
  const auto at = ranges_.find(range.begin);
  if (at == ranges_.end() || at->second.size != range.size) {
    misuse("unreserve", "no such reservation: " + hex(range.begin));
  }
  if (mapped_in(range.begin, range.size)) {
    misuse("unreserve", "something is still mapped in " + hex(range.begin));
  }
  if (::munmap(at->second.whole, at->second.whole_size) != 0) refused("unreserve: munmap", errno);
  ranges_.erase(at);
}

MemoryHandle HostMemorySource::create(Tier tier, Bytes size) {
  check_usable("create");
  check_size("create", size);
  Block made;
  if (tier == Tier::kDevice) {
    if (size > saturating_sub(device_capacity_, device_used_)) {
      throw OutOfMemory("above the device's capacity: " + to_string(device_used_) + " + " +
                        to_string(size) + " > " + to_string(device_capacity_));
    }
    device_used_ += size;
  } else if (tier == Tier::kHost) {
    if (!spill_) throw OutOfMemory("no slower tier: " + host_reason_);
    made.slot = spill_->allocate(size);
  } else {
    misuse("create", "tier " + std::string(to_string(tier)) + " has no handles");
  }
  made.handle = MemoryHandle{next_id_++, size, tier};
  blocks_.emplace(made.handle.id, made);
  return made.handle;
}

void HostMemorySource::release(MemoryHandle handle) {
  check_usable("release");
  const Block& found = block(handle, "release");
  if (found.address != nullptr) misuse("release", "still mapped at " + hex(found.address));
  if (found.copying) misuse("release", "still part of a copy");
  if (handle.tier == Tier::kDevice) {
    device_used_ -= handle.size;
  } else {
    spill_->free(found.slot);
  }
  blocks_.erase(handle.id);
}

void HostMemorySource::map(std::byte* address, MemoryHandle handle) {
  check_usable("map");
  Block& found = block(handle, "map");
  if (found.address != nullptr) misuse("map", "already mapped at " + hex(found.address));
  if (found.copying) misuse("map", "target of a copy");
  if (reinterpret_cast<std::uintptr_t>(address) % kGranularity.count() != 0) {
    misuse("map", "address is not aligned: " + hex(address));
  }
  if (range_of(address, handle.size) == nullptr) misuse("map", "not reserved: " + hex(address));
  if (mapped_in(address, handle.size)) misuse("map", "something is mapped there: " + hex(address));
  // The memory is there already: pages appear when they are touched.
  mapped_.emplace(address, handle.id);
  found.address = address;
  found.mapped_at = watch_.forks();
}

HostMemorySource::Block& HostMemorySource::check_unmap(std::byte* address, MemoryHandle handle) {
  Block& found = block(handle, "unmap");
  if (found.address == nullptr || found.address != address) {
    misuse("unmap", "handle " + std::to_string(handle.id) + " is not mapped at " + hex(address));
  }
  if (found.copying) misuse("unmap", "source of a copy");
  return found;
}

void HostMemorySource::unmap(std::byte* address, MemoryHandle handle) {
  check_usable("unmap");
  Block& found = check_unmap(address, handle);
  if (!found.in_slot) {
    drop_pages(address, handle.size);
  } else if (!put_anonymous(address, handle.size.count())) {
    refused("unmap: mmap of " + to_string(handle.size), errno);
  }
  forget_mapping(found);
}

// Memory that lies together is dropped by one call.
MemorySource::UnmappedRun HostMemorySource::unmap_run(std::byte* address,
                                                      std::span<const MemoryHandle> handles) {
  UnmappedRun run;
  try {
    check_usable("unmap");
    while (run.unmapped < handles.size()) {
      std::vector<Block*> together;
      Bytes bytes;
      for (const MemoryHandle& handle : handles.subspan(run.unmapped)) {
        Block& found = check_unmap(address + bytes.count(), handle);
        if (found.in_slot) break;
        together.push_back(&found);
        bytes += handle.size;
      }
      if (together.empty()) {
        unmap(address, handles[run.unmapped]);
        bytes = handles[run.unmapped++].size;
      } else {
        drop_pages(address, bytes);
        for (Block* found : together) forget_mapping(*found);
        run.unmapped += together.size();
      }
      address += bytes.count();
    }
  } catch (const std::exception& error) {
    run.error = error.what();
  }
  return run;
}

// Keeps the mapping, which saves a map call and keeps neighbours merged.
void HostMemorySource::drop_pages(std::byte* address, Bytes size) {
  if (::madvise(address, size.count(), MADV_DONTNEED) != 0) {
    refused("unmap: madvise(MADV_DONTNEED) of " + to_string(size), errno);
  }
}

void HostMemorySource::forget_mapping(Block& block) noexcept {
  if (!block.in_slot) given_back(block.handle.size, block.mapped_at);
  block.in_slot = false;
  mapped_.erase(block.address);
  block.address = nullptr;
}

void HostMemorySource::given_back(Bytes bytes, ForkCount made) noexcept {
  const ForkCount gone = watch_.forks();
  if (gone == made || !watch_.child_saw(made, gone)) return;
  if (!held_.empty() && held_.back().made == made && held_.back().gone == gone) {
    held_.back().bytes += bytes;
    return;
  }
  try {
    held_.push_back(Held{bytes, made, gone});
  } catch (const std::bad_alloc&) {
    // Without memory for an entry of its own it ends with the last one's children.
    if (!held_.empty()) held_.back().bytes += bytes;
  }
}

// What was made on the slower tier and never saved there is anonymous memory like any other.
bool HostMemorySource::rename(std::byte* address, MemoryHandle from, MemoryHandle to) {
  check_usable("rename");
  Block& source = block(from, "rename");
  Block& target = block(to, "rename");
  if (source.address == nullptr || source.address != address) {
    misuse("rename", "source is not mapped at " + hex(address));
  }
  if (target.address != nullptr) misuse("rename", "target is mapped");
  if (source.copying || target.copying) misuse("rename", "part of a copy");
  if (from.size != to.size) misuse("rename", "sizes differ");
  if (source.in_slot || to.tier != Tier::kDevice) return false;
  target.address = std::exchange(source.address, nullptr);
  target.mapped_at = source.mapped_at;
  mapped_.find(address)->second = to.id;
  return true;
}

CopyTicket HostMemorySource::begin_copy(std::byte* address, MemoryHandle from, MemoryHandle to) {
  check_usable("begin_copy");
  Block& source = block(from, "begin_copy");
  Block& target = block(to, "begin_copy");
  if (source.address == nullptr || source.address != address) {
    misuse("begin_copy", "source is not mapped at " + hex(address));
  }
  if (target.address != nullptr) misuse("begin_copy", "target is mapped");
  if (source.copying || target.copying) misuse("begin_copy", "a copy of it runs already");
  if (from.size != to.size) misuse("begin_copy", "sizes differ");
  if (from.tier == Tier::kDevice && to.tier == Tier::kDevice && !pages_) {
    throw SourceError("begin_copy: " + host_reason_);
  }
  auto copy = std::make_unique<Copy>();
  copy->address = address;
  copy->size = from.size;
  copy->from = &source;
  copy->to = &target;
  copy->from_mapped_at = source.mapped_at;
  copy->from_slot = source.in_slot;
  copy->stays = !source.in_slot && to.tier == Tier::kDevice;
  copy->pieces.resize(from.size.count() / kPiece);
  copy->written.resize(from.size.count() / kPiece, 1);
  copy->watchable = watches(to.tier) && !source.in_slot &&
                    watch_writes_->prepare(copy->address, copy->size.count());
  const CopyTicket ticket{next_id_++};
  {
    const MutexLock lock(mutex_);
    copies_.emplace(ticket.id, std::move(copy));
  }
  source.copying = target.copying = true;
  return ticket;
}

// Only for calls that the caller serialises: they alone change the table.
COMMENSAL_IN_FENCE HostMemorySource::Copy* HostMemorySource::find(CopyTicket ticket) const noexcept
    COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  const auto at = copies_.find(ticket.id);
  return at == copies_.end() ? nullptr : at->second.get();
}

CopyState HostMemorySource::copy_state(CopyTicket ticket) const noexcept {
  const MutexLock lock(mutex_);
  const auto at = copies_.find(ticket.id);
  return at == copies_.end() ? CopyState::kFailed : at->second->state.load();
}

std::string HostMemorySource::copy_error(CopyTicket ticket) const {
  const Copy* copy = find(ticket);
  if (copy == nullptr) misuse("copy_error", "unknown ticket");
  return copy->error;
}

CopyState HostMemorySource::wait_copy(CopyTicket ticket) {
  return advance_copy(ticket, Bytes{UINT64_MAX});
}

CopyState HostMemorySource::advance_copy(CopyTicket ticket, Bytes most) {
  check_usable("wait_copy");
  Copy* copy = find(ticket);
  if (copy == nullptr) misuse("wait_copy", "unknown ticket");
  if (copy->state.load() != CopyState::kRunning) return copy->state.load();
  const std::size_t pieces = std::max<std::size_t>(1, most.count() / kPiece);
  bool done = copy->stays;
  try {
    if (!done) done = copy_on(*copy, pieces);
    if (done) copy->state.store(CopyState::kDone);
  } catch (const SourceError& error) {
    drop_staging(*copy);
    copy->error = error.what();
    copy->state.store(CopyState::kFailed);
  }
  return copy->state.load();
}

COMMENSAL_IN_FENCE void HostMemorySource::watch(std::span<const CopyTicket> tickets) noexcept {
  if (!fenced_) return;
  for (const CopyTicket& ticket : tickets) {
    Copy* const copy = find(ticket);
    if (copy == nullptr || !copy->watchable || copy->staged != 0) continue;
    copy->watched = watch_writes_->arm(copy->address, copy->size.count());
  }
}

// Where the chunk stays in memory. A page that was written meanwhile has split its huge page.
void HostMemorySource::end_watch(Copy& copy) noexcept {
  if (!copy.watchable) return;
  const std::size_t size = copy.size.count();
  const bool told =
      copy.watched && watch_writes_->changed(copy.address, size, kPiece, copy.written.data());
  watch_writes_->forget(copy.address, size);
  const bool written = std::find(copy.written.begin(), copy.written.end(), 1) != copy.written.end();
  if (told && written) ::madvise(copy.address, size, MADV_COLLAPSE);  // old kernels refuse
}

// Makes the place from which a chunk comes back to the device.
void HostMemorySource::prepare_staging(Copy& copy) {
  const std::size_t size = copy.size.count();
  const Range* range = range_of(copy.address, copy.size);
  if (range->mirror != 0) {
    copy.staging = copy.address + range->mirror;
    return;
  }
  const std::size_t step = kGranularity.count();
  void* got =
      ::mmap(nullptr, size + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) refused("no addresses to bring back " + to_string(copy.size), errno);
  auto* raw = static_cast<std::byte*>(got);
  const std::size_t head = (step - reinterpret_cast<std::uintptr_t>(raw) % step) % step;
  if (head != 0) ::munmap(raw, head);
  ::munmap(raw + head + size, step - head);
  copy.staging = raw + head;
  copy.own_staging = true;
  if (!put_anonymous(copy.staging, size)) {
    refused("no memory to bring back " + to_string(copy.size), errno);
  }
}

void HostMemorySource::drop_staging(Copy& copy) noexcept {
  if (copy.staging == nullptr) return;
  if (copy.own_staging) {
    ::munmap(copy.staging, copy.size.count());
  } else {
    ::madvise(copy.staging, copy.size.count(), MADV_DONTNEED);
  }
  copy.staging = nullptr;
}

// Copies live pieces while threads run, and fingerprints what arrived unless the kernel notes
// writes.
void HostMemorySource::copy_pieces(Copy& copy, std::size_t first, std::size_t end, std::byte* out) {
  for (std::size_t i = first; i < end; ++i) {
    std::byte* const here = out + (i - first) * kPiece;
    copy_live(here, copy.address + i * kPiece, kPiece);
    copy.pieces[i] = Piece{copy.watched ? Fingerprint{} : fingerprint(here, kPiece), true};
  }
}

// Copies about `most` more pieces. When all of this copy is under way the next one begins,
// whichever way it goes, so that the disk need not wait for the fence or the caller. True: that was
// the last.
bool HostMemorySource::copy_on(Copy& copy, std::size_t most) {
  for (std::size_t done = 0; copy.staged < copy.pieces.size() || copy.under_way > 0;) {
    if (done >= most) return false;
    Copy* const next = io_->room() ? to_stage(copy) : nullptr;
    if (next != nullptr) {
      done += stage(*next, most);
    } else {
      collect();
    }
  }
  const bool out = copy.to->handle.tier == Tier::kHost;
  if (!copy.error.empty()) throw SourceError(copy.error);
  if (copy.io_error != 0) {
    refused(out ? "writing the spill file" : "reading the spill file", copy.io_error);
  }
  if (out) {
    if (const int error = spill_->settle(copy.to->slot); error != 0) {
      refused("syncing the spill file", error);
    }
  }
  return true;
}

// Returns the copy that goes on next: the one that is waited for, else a later
// one. Only for calls that the caller serialises: they alone change the table.
HostMemorySource::Copy* HostMemorySource::to_stage(Copy& waited) const noexcept
    COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  const auto open = [](const Copy& copy) { return copy.staged < copy.pieces.size(); };
  if (open(waited)) return &waited;
  for (const auto& [id, copy] : copies_) {
    if (!copy->stays && open(*copy) && copy->state.load() == CopyState::kRunning) {
      return copy.get();
    }
  }
  return nullptr;
}

// Copies some pieces, or begins to. Returns how many. A copy that fails is staged no further.
std::size_t HostMemorySource::stage(Copy& copy, std::size_t most) {
  try {
    return copy.to->handle.tier == Tier::kHost ? stage_out(copy, most) : stage_back(copy);
  } catch (const SourceError& error) {
    copy.error = error.what();
    copy.staged = copy.pieces.size();
    return 1;
  }
}

// Where the kernel notes writes, the disk takes the bytes from where they are: a piece that is
// written meanwhile is copied again or stays. Else they go through a buffer and are fingerprinted
// there, so that what the file holds is what was compared.
std::size_t HostMemorySource::stage_out(Copy& copy, std::size_t most) {
  const std::size_t first = copy.staged;
  const std::size_t at_once =
      copy.watched ? std::clamp(most, kPiecesInBuffer, kPiecesAtOnce) : kPiecesInBuffer;
  const std::size_t end = std::min(first + at_once, copy.pieces.size());
  const std::byte* from = copy.address + first * kPiece;
  if (!copy.watched) {
    std::byte* const buffer = io_->buffer();
    copy_pieces(copy, first, end, buffer);
    from = buffer;
  }
  copy.staged = end;
  ++copy.under_way;
  io_->write(copy.to->slot, first * kPiece, from, (end - first) * kPiece, &copy);
  return end - first;
}

// Pieces of a slot that nobody wrote come from the file and are not fingerprinted: if they are
// written later, their pages show it.
std::size_t HostMemorySource::stage_back(Copy& copy) {
  if (copy.staging == nullptr) prepare_staging(copy);
  const std::size_t first = copy.staged;
  if (copy.from_slot && first == 0) {
    // If the kernel does not tell, every piece counts as written and is read through the mapping.
    static_cast<void>(
        pages_->mark_written(copy.address, copy.size.count(), kPiece, copy.written.data()));
  }
  const bool live = copy.written[first] != 0;
  std::size_t end = first;
  while (end < copy.pieces.size() && end - first < kPiecesAtOnce &&
         (copy.written[end] != 0) == live) {
    ++end;
  }
  std::byte* const to = copy.staging + first * kPiece;
  copy.staged = end;
  if (live) {
    copy_pieces(copy, first, end, to);
  } else {
    ++copy.under_way;
    io_->read(copy.from->slot, first * kPiece, to, (end - first) * kPiece, &copy);
  }
  return end - first;
}

// Waits for the oldest request.
void HostMemorySource::collect() noexcept {
  const SlotIo::Done done = io_->collect();
  Copy& copy = *static_cast<Copy*>(done.owner);
  --copy.under_way;
  if (done.error == 0) return;
  copy.staged = copy.pieces.size();
  copy.io_error = done.error;
}

void HostMemorySource::end_copy(CopyTicket ticket) noexcept {
  Copy* copy = find(ticket);
  if (copy == nullptr || in_child_) return;
  while (copy->under_way > 0) collect();
  drop_staging(*copy);
  if (!copy->swapped) {
    end_watch(*copy);
    copy->from->copying = copy->to->copying = false;
  } else if (!copy->from_slot && !copy->stays) {
    given_back(copy->size, copy->from_mapped_at);
  }
  const MutexLock lock(mutex_);
  copies_.erase(ticket.id);
}

StopPoint HostMemorySource::stop_point() const noexcept {
  const bool between = options_.between_ops == nullptr || options_.between_ops();
  return between ? StopPoint::kBetweenOps : StopPoint::kAnywhere;
}

MoveRisk HostMemorySource::move_risk() {
  check_usable("move_risk");
  MoveRisk risk;
  try {
    risk.reason = asynchronous_kernel_io();
    if (risk.reason.empty() && options_.testing.stop_threads) {
      risk.reason = ThreadStopper::instance().obstacle(stop_point());
    }
  } catch (const SourceError& error) {
    risk.reason = error.what();
  }
  risk.safe = risk.reason.empty();
  return risk;
}

FenceResult HostMemorySource::fence(Duration deadline) noexcept {
  if (in_child_) return FenceResult{false, "called in a forked child", {}};
  if (fenced_) return FenceResult{false, "called inside a fence", {}};
  if (!pages_) return FenceResult{false, "threads cannot be stopped here", {}};
  // `swap` may need a buffer, and nobody is to wait inside.
  while (io_ && !io_->idle()) collect();
  if (!options_.testing.stop_threads) {
    fenced_ = true;
    return FenceResult{true, "", {}};
  }
  const ThreadStopper::Result result = ThreadStopper::instance().stop(deadline, stop_point());
  fenced_ = result.stopped;
  return FenceResult{result.stopped, result.reason, result.held};
}

void HostMemorySource::unfence() noexcept {
  if (!fenced_) return;
  fenced_ = false;
  if (options_.testing.stop_threads) ThreadStopper::instance().resume();
}

COMMENSAL_IN_FENCE SwapResult HostMemorySource::swap(CopyTicket ticket,
                                                     OnChange on_change) noexcept {
  Copy* found = find(ticket);
  if (!fenced_ || found == nullptr || found->swapped || found->state.load() != CopyState::kDone) {
    return SwapResult::kFailed;
  }
  Copy& copy = *found;
  SwapResult answer = SwapResult::kFailed;
  if (!copy.stays && !renew(copy, on_change, answer)) return answer;
  if (options_.testing.before_exchange != nullptr) {
    options_.testing.before_exchange(options_.testing.context);
  }
  if (!copy.stays && !exchange(copy)) return SwapResult::kFailed;
  copy.swapped = true;
  copy.from->address = nullptr;
  copy.from->in_slot = false;
  copy.to->in_slot = copy.to->handle.tier == Tier::kHost;
  copy.from->copying = copy.to->copying = false;
  copy.to->address = copy.address;
  copy.to->mapped_at = copy.stays ? copy.from_mapped_at : watch_.forks();
  mapped_.find(copy.address)->second = copy.to->handle.id;
  return SwapResult::kSwapped;
}

// Compares live bytes with what was copied, and copies again what differs. False: `answer` says
// why the chunk stays.
COMMENSAL_IN_FENCE bool HostMemorySource::renew(Copy& copy, OnChange on_change,
                                                SwapResult& answer) noexcept {
  const bool to_slot = copy.to->handle.tier == Tier::kHost;
  const std::size_t count = copy.size.count() / kPiece;
  Piece* const pieces = copy.pieces.data();
  std::uint8_t* const written = copy.written.data();
  if (copy.from_slot) {
    static_cast<void>(pages_->mark_written(copy.address, copy.size.count(), kPiece, written));
  } else if (copy.watched) {
    static_cast<void>(watch_writes_->changed(copy.address, copy.size.count(), kPiece, written));
    for (std::size_t i = 0; i < count && !options_.testing.heed_watch; ++i) written[i] = 0;
  }
  std::byte* const buffer = to_slot ? io_->buffer() : nullptr;
  std::size_t run = 0;  // changed pieces in the buffer, the last of them before `i`
  for (std::size_t i = 0; i <= count; ++i) {
    const std::byte* live = copy.address + i * kPiece;
    const bool changed =
        i < count && written[i] != 0 &&
        (copy.watched || !pieces[i].live || !same(fingerprint(live, kPiece), pieces[i].print));
    if (run != 0 && (!changed || run == kPiecesInBuffer)) {
      if (spill_->write(copy.to->slot, (i - run) * kPiece, buffer, run * kPiece) != 0) {
        answer = SwapResult::kFailed;
        return false;
      }
      run = 0;
    }
    if (!changed) continue;
    if (on_change == OnChange::kLeave) {
      answer = SwapResult::kChanged;
      return false;
    }
    std::byte* target = to_slot ? buffer + run * kPiece : copy.staging + i * kPiece;
    copy_live(target, live, kPiece);
    pieces[i].print = fingerprint(target, kPiece);
    pieces[i].live = true;
    if (to_slot) ++run;
  }
  return true;
}

// One call replaces the mapping; there is no moment without one.
COMMENSAL_IN_FENCE bool HostMemorySource::exchange(Copy& copy) noexcept {
  const std::size_t size = copy.size.count();
  if (copy.to->handle.tier == Tier::kHost) {
    return spill_->map(copy.address, copy.to->slot);
  }
  if (options_.testing.remap &&
      ::syscall(SYS_mremap, copy.staging, size, size,
                MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, copy.address) != -1) {
    ++remaps_;
    return true;
  }
  if (!put_anonymous(copy.address, size)) return false;
  copy_live(copy.address, copy.staging, size);
  ++copies_inside_;
  return true;
}

MemorySource::Touched HostMemorySource::touched(std::byte* address,
                                                MemoryHandle handle) const noexcept {
  PageMap::Counts counts;
  if (handle.tier != Tier::kHost || !pages_ ||
      !pages_->count(address, handle.size.count(), counts)) {
    return {};
  }
  return Touched{counts.resident, counts.written};
}

Bytes HostMemorySource::trim(std::byte* address, MemoryHandle handle) noexcept {
  const auto at = blocks_.find(handle.id);
  if (in_child_ || fenced_ || at == blocks_.end() || at->second.address != address ||
      !at->second.in_slot) {
    return {};
  }
  const Bytes before = touched(address, handle).resident;
  // MADV_DONTNEED would discard written copies. Where the kernel does nothing, nothing is counted.
  ::madvise(address, handle.size.count(), MADV_PAGEOUT);
  spill_->drop_cache(at->second.slot);
  return saturating_sub(before, touched(address, handle).resident);
}

void HostMemorySource::prepare_fork() noexcept { watch_.prepare(); }

void HostMemorySource::after_fork_parent() noexcept {}

void HostMemorySource::after_fork_child() noexcept {
  // The mappings are the child's own snapshot; descriptors and threads it has none.
  in_child_ = true;
  fenced_ = false;
  if (pages_) {
    pages_->forget_in_child();
    ThreadStopper::instance().forget_in_child();
  }
  if (spill_) spill_->forget_in_child();
  if (io_) io_->forget_in_child();
  if (watch_writes_) watch_writes_->forget_in_child();
  watch_.forget_in_child();
  held_.clear();
}

Bytes HostMemorySource::held_by_children() const noexcept {
  std::erase_if(held_, [&](const Held& held) { return !watch_.child_saw(held.made, held.gone); });
  Bytes total;
  for (const Held& held : held_) total += held.bytes;
  return total;
}

}  // namespace commensal
