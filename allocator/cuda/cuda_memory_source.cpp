// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU.
#include "allocator/cuda/cuda_memory_source.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "allocator/cuda/capturing_library.h"

namespace commensal {
namespace {

constexpr const char* kKept = "the chunk is registered and must stay where it is";
constexpr const char* kCapturing = "a CUDA graph is being captured";
constexpr const char* kMayCapture = "a library is loaded that captures CUDA graphs unseen";

// Why the fence did not drain the context.
const char* capture_reason() noexcept {
  return capturing_library().empty() ? kCapturing : kMayCapture;
}

std::string hex(const void* address) {
  std::ostringstream text;
  text << address;
  return text.str();
}

[[noreturn]] void misuse(std::string_view call, const std::string& what) {
  throw std::logic_error(std::string(call) + ": " + what);
}

Bytes half_of_physical_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return Bytes{UINT64_MAX};
  return Bytes{static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) / 2};
}

}  // namespace

// What each call that the caller serialises does first.
class CudaMemorySource::Entry {
 public:
  Entry(CudaMemorySource& source, std::string_view call) : scope_(source.context_) {
    scope_.check();
    if (!source.addresses_->mend()) {
      throw SourceError(std::string(call) + ": " + source.addresses_->trouble());
    }
  }

 private:
  const DeviceContext::Scope scope_;
};

// --- life ----------------------------------------------------------------------------------

CudaMemorySource::CudaMemorySource() : CudaMemorySource(Options{}) {}

CudaMemorySource::CudaMemorySource(const Options& options)
    : options_(options), context_(options.device) {
  const DeviceContext::Scope scope(context_);
  scope.check();
  try {
    start(options);
  } catch (...) {
    stop();
    throw;
  }
}

void CudaMemorySource::start(const Options& options) {
  std::size_t total = 0;
  check_cuda(context_.driver().cuDeviceTotalMem(&total, context_.device()), "cuDeviceTotalMem");
  device_capacity_ = std::min(options.device_capacity, Bytes{total});
  const HostUse use = options.host_cap.is_zero() ? HostUse::kOff
                      : options.map_host         ? HostUse::kMapped
                                                 : HostUse::kNotMapped;
  handles_ = std::make_unique<HandleStore>(context_, use, options.host_keep);
  if (use != HostUse::kOff) {
    host_capacity_ = std::min(options.host_cap, half_of_physical_memory());
    if (!handles_->host_reason().empty()) {
      arena_ = std::make_unique<PinnedArena>(
          context_, PinnedArena::Options{.most = host_capacity_,
                                         .keep = options.host_keep,
                                         .capturing = options.capturing,
                                         .in_background = options.testing.pin_in_background});
    }
  }
  addresses_ = std::make_unique<AddressMap>(context_.driver(), *handles_);
  queue_ = std::make_unique<CopyQueue>(context_);
  fence_ = std::make_unique<DeviceFence>(context_);
}

// Lets go of everything that needs the context to be current.
void CudaMemorySource::stop() noexcept {
  fence_.reset();
  queue_.reset();
  addresses_.reset();
  arena_.reset();
  handles_.reset();
}

CudaMemorySource::~CudaMemorySource() {
  if (in_child_) return;  // the memory is the parent's
  if (fenced_) unfence();
  const DeviceContext::Scope scope(context_);
  // Whoever still uses the memory must not see it go.
  (void)fence_->drain(std::chrono::steady_clock::now() + std::chrono::seconds{1});
  std::map<std::uint64_t, std::shared_ptr<Copy>> copies;
  {
    const MutexLock lock(mutex_);
    copies.swap(copies_);
  }
  const CudaDriver& driver = context_.driver();
  (void)addresses_->mend();
  for (const auto& [id, copy] : copies) {
    queue_->end(copy->transfer);
    give_window(copy->window, copy->transfer.size);
  }
  copies.clear();
  for (const auto& [id, block] : blocks_) {
    if (block.parked()) continue;  // the arena's
    if (block.address != nullptr) {
      (void)insist([&, at = block.address, size = block.handle.size.count()] {
        return driver.cuMemUnmap(to_cuda(at), size);
      });
    }
    (void)insist([&, physical = block.physical] { return driver.cuMemRelease(physical); });
  }
  const auto unreserve = [&](CUdeviceptr address, Bytes size) {
    (void)insist([&] { return driver.cuMemAddressFree(address, size.count()); });
  };
  for (const auto& [begin, size] : ranges_) unreserve(to_cuda(begin), size);
  for (const auto& [size, windows] : windows_) {
    for (const CUdeviceptr window : windows) unreserve(window, size);
  }
  stop();
}

void CudaMemorySource::after_fork_child() noexcept {
  in_child_ = true;
  fenced_ = false;
  context_.abandon();
  handles_->abandon();
  [[maybe_unused]] PinnedArena* const kept =
      arena_.release();  // its thread does not exist here, and may have held its lock
  queue_->abandon();
  fence_->abandon();
}

// --- checks --------------------------------------------------------------------------------

Bytes CudaMemorySource::capacity(Tier tier) const noexcept {
  if (tier == Tier::kDevice) return device_capacity_;
  const Tier slower = arena_ == nullptr ? Tier::kHost : Tier::kParked;
  return tier == slower ? host_capacity_ : Bytes{};
}

std::string CudaMemorySource::host_tier_reason() const {
  const std::string reason = handles_->host_reason();
  return arena_ == nullptr ? reason : reason + "; what is parked is kept in pinned memory";
}

Bytes CudaMemorySource::kept(Tier tier) const noexcept {
  if (tier == Tier::kParked) return arena_ == nullptr ? Bytes{} : arena_->unused();
  return handles_->kept(tier);
}

Bytes CudaMemorySource::created(Tier tier) const noexcept {
  return tier == Tier::kParked ? parked_ : handles_->created(tier);
}

void CudaMemorySource::check_usable(std::string_view call) const {
  if (fenced_) misuse(call, "called inside a fence");
  if (in_child_) misuse(call, "called in a forked child");
}

void CudaMemorySource::check_size(std::string_view call, Bytes size) const {
  if (size.is_zero() || size.count() % granularity().count() != 0) {
    misuse(call, "not a multiple of " + to_string(granularity()) + ": " +
                     std::to_string(size.count()) + " B");
  }
}

CudaMemorySource::Block& CudaMemorySource::block(MemoryHandle handle, std::string_view call) {
  const auto at = blocks_.find(handle.id);
  if (at == blocks_.end()) {
    misuse(call, "unknown or released handle " + std::to_string(handle.id));
  }
  if (at->second.handle.size != handle.size || at->second.handle.tier != handle.tier) {
    misuse(call, "handle " + std::to_string(handle.id) + " was altered");
  }
  return at->second;
}

// Returns the start of the reservation that has all of these addresses; null: none has.
const std::byte* CudaMemorySource::range_over(const std::byte* address, Bytes size) const noexcept {
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return nullptr;
  --at;
  const auto offset = static_cast<std::uint64_t>(address - at->first);
  const bool inside = offset < at->second.count() && size.count() <= at->second.count() - offset;
  return inside ? at->first : nullptr;
}

bool CudaMemorySource::mapped_in(const std::byte* address, Bytes size) const {
  auto at = mapped_.lower_bound(address + size.count());
  if (at == mapped_.begin()) return false;
  --at;
  return at->first + blocks_.at(at->second).handle.size.count() > address;
}

CudaMemorySource::Block& CudaMemorySource::check_map(std::string_view call,
                                                     const std::byte* address,
                                                     MemoryHandle handle) {
  Block& found = block(handle, call);
  if (found.address != nullptr) misuse(call, "already mapped at " + hex(found.address));
  if (found.copying) misuse(call, "target of a copy");
  if (found.parked()) misuse(call, "what is parked cannot be mapped");
  if (to_cuda(address) % granularity().count() != 0) {
    misuse(call, "address is not aligned: " + hex(address));
  }
  if (range_over(address, handle.size) == nullptr) misuse(call, "not reserved: " + hex(address));
  if (mapped_in(address, handle.size)) misuse(call, "something is mapped there: " + hex(address));
  return found;
}

Placed CudaMemorySource::placed(const Block& block, const std::byte* address) noexcept {
  return Placed{to_cuda(address), block.handle.size, block.handle.tier, block.physical};
}

// --- addresses and handles -----------------------------------------------------------------

AddressRange CudaMemorySource::reserve(Bytes size) {
  check_usable("reserve");
  check_size("reserve", size);
  const Entry entry(*this, "reserve");
  const CUdeviceptr address = addresses_->reserve(size);
  try {
    ranges_.emplace(from_cuda(address), size);
  } catch (...) {
    (void)insist([&] { return context_.driver().cuMemAddressFree(address, size.count()); });
    throw;
  }
  return AddressRange{from_cuda(address), size};
}

void CudaMemorySource::unreserve(AddressRange range) {
  check_usable("unreserve");
  const auto at = ranges_.find(range.begin);
  if (at == ranges_.end() || at->second != range.size) {
    misuse("unreserve", "no such reservation: " + hex(range.begin));
  }
  if (mapped_in(range.begin, range.size)) {
    misuse("unreserve", "something is still mapped in " + hex(range.begin));
  }
  const Entry entry(*this, "unreserve");
  addresses_->unreserve(to_cuda(range.begin), range.size);
  ranges_.erase(at);
}

MemoryHandle CudaMemorySource::create(Tier tier, Bytes size) {
  check_usable("create");
  if (tier != Tier::kDevice && tier != Tier::kHost &&
      (tier != Tier::kParked || arena_ == nullptr)) {
    misuse("create", "tier " + std::string(to_string(tier)) + " has no handles");
  }
  check_size("create", size);
  const Bytes used = created(tier);
  if (size > saturating_sub(capacity(tier), used)) {
    throw OutOfMemory("create: above capacity of tier " + std::string(to_string(tier)) + ": " +
                      to_string(used) + " + " + to_string(size) + " > " +
                      to_string(capacity(tier)));
  }
  const Entry entry(*this, "create");
  Block made;
  made.handle = MemoryHandle{next_id_, size, tier};
  const auto at = blocks_.emplace(next_id_, made).first;
  try {
    make_physical(at->second);
  } catch (...) {
    blocks_.erase(at);
    throw;
  }
  ++next_id_;
  return at->second.handle;
}

void CudaMemorySource::release(MemoryHandle handle) {
  check_usable("release");
  const Block& found = block(handle, "release");
  if (found.address != nullptr) misuse("release", "still mapped at " + hex(found.address));
  if (found.copying) misuse("release", "still part of a copy");
  const Entry entry(*this, "release");
  let_go(found);
  blocks_.erase(handle.id);
}

void CudaMemorySource::make_physical(Block& block) {
  const auto& [id, size, tier] = block.handle;
  if (!block.parked()) {
    block.physical = handles_->create(tier, size);
    return;
  }
  if (capturing()) throw SourceError(std::string("create: ") + kCapturing);
  block.pinned = arena_->take(size);
  parked_ += size;
}

void CudaMemorySource::let_go(const Block& block) {
  if (!block.parked())
    return handles_->release(block.handle.tier, block.handle.size, block.physical);
  arena_->give(block.pinned);
  parked_ -= block.handle.size;
}

void CudaMemorySource::set_lease(Bytes lease) noexcept {
  if (fenced_ || in_child_) return;
  // Without the context the driver refuses each handle: then they stay, above the lease.
  const DeviceContext::Scope scope(context_);
  handles_->set_lease(lease);
}

void CudaMemorySource::map(std::byte* address, MemoryHandle handle) {
  check_usable("map");
  Block& found = check_map("map", address, handle);
  const Entry entry(*this, "map");
  const auto at = mapped_.emplace(address, handle.id).first;
  try {
    addresses_->map(placed(found, address));
  } catch (...) {
    mapped_.erase(at);
    throw;
  }
  found.address = address;
}

MemorySource::MappedRun CudaMemorySource::map_run(std::byte* address,
                                                  std::span<const MemoryHandle> handles) {
  check_usable("map_run");
  std::vector<Placed> run;
  std::vector<Block*> noted;
  MappedRun result;
  try {
    run.reserve(handles.size());
    noted.reserve(handles.size());
    std::byte* at = address;
    for (const MemoryHandle& handle : handles) {
      Block& found = check_map("map_run", at, handle);
      mapped_.emplace(at, handle.id);
      found.address = at;
      noted.push_back(&found);
      run.push_back(placed(found, at));
      at += handle.size.count();
    }
    const Entry entry(*this, "map_run");
    if (!run.empty()) addresses_->map(run);
    result.mapped = handles.size();
  } catch (const std::exception& error) {
    for (Block* found : noted) mapped_.erase(std::exchange(found->address, nullptr));
    result.error = error.what();
  }
  return result;
}

CudaMemorySource::Block& CudaMemorySource::check_unmap(std::byte* address, MemoryHandle handle) {
  Block& found = block(handle, "unmap");
  if (found.address == nullptr || found.address != address) {
    misuse("unmap", "handle " + std::to_string(handle.id) + " is not mapped at " + hex(address));
  }
  if (found.copying) misuse("unmap", "source of a copy");
  return found;
}

void CudaMemorySource::let_in(int device) {
  check_usable("let_in");
  const Entry entry(*this, "let_in");
  CUdevice user = 0;
  check_cuda(context_.driver().cuDeviceGet(&user, device),
             "cuDeviceGet of device " + std::to_string(device));
  if (handles_->has_user(user)) return;
  std::vector<Placed> all;
  all.reserve(mapped_.size());
  for (const auto& [address, id] : mapped_) {
    const Block& block = blocks_.at(id);
    if (!block.parked()) all.push_back(placed(block, address));
  }
  handles_->add_user(user);  // from now on
  try {
    addresses_->let_in(user, all);
  } catch (...) {
    handles_->drop_user(user);
    throw;
  }
}

// Blocks are freed while work that uses them may still be in a queue, and the driver unmaps at
// once: that work would end the context.
void CudaMemorySource::wait_for_work() {
  if (!options_.testing.drain_before_unmap) return;
  if (capturing()) throw SourceError(std::string("unmap: ") + kCapturing);
  const CUresult result = fence_->drain(std::chrono::steady_clock::now() + options_.unmap_deadline);
  if (result == CUDA_ERROR_NOT_READY) throw SourceError("unmap: the device is still working");
  if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
    throw SourceError(std::string("unmap: ") + capture_reason());
  }
  check_cuda(result, "waiting for the device before cuMemUnmap");
}

void CudaMemorySource::unmap(std::byte* address, MemoryHandle handle) {
  check_usable("unmap");
  Block& found = check_unmap(address, handle);
  const Entry entry(*this, "unmap");
  if (!found.parked()) {
    wait_for_work();
    addresses_->unmap(to_cuda(address), handle.size);
  }
  mapped_.erase(address);
  found.address = nullptr;
}

MemorySource::UnmappedRun CudaMemorySource::unmap_run(std::byte* address,
                                                      std::span<const MemoryHandle> handles) {
  check_usable("unmap");
  UnmappedRun result;
  if (handles.empty()) return result;
  try {
    std::vector<Block*> run;
    Bytes size;
    for (const MemoryHandle& handle : handles) {
      run.push_back(&check_unmap(address + size.count(), handle));
      size += handle.size;
    }
    const Entry entry(*this, "unmap");
    while (result.unmapped < run.size()) {
      // As far as it is all mapped, or all parked.
      const std::span<Block*> rest = std::span(run).subspan(result.unmapped);
      const bool parked = rest.front()->parked();
      std::size_t count = 0;
      Bytes together;
      for (; count < rest.size() && rest[count]->parked() == parked; ++count) {
        together += rest[count]->handle.size;
      }
      if (!parked) {
        wait_for_work();
        addresses_->unmap(to_cuda(rest.front()->address), together);
      }
      for (Block* found : rest.first(count)) mapped_.erase(std::exchange(found->address, nullptr));
      result.unmapped += count;
    }
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

// --- what must stay ------------------------------------------------------------------------

bool CudaMemorySource::kept_in_place(const std::byte* address, Bytes size) const {
  return std::any_of(kept_in_place_.begin(), kept_in_place_.end(), [&](const AddressRange& kept) {
    return kept.begin < address + size.count() && address < kept.begin + kept.size.count();
  });
}

void CudaMemorySource::keep_in_place(AddressRange range) {
  const MutexLock lock(mutex_);
  kept_in_place_.push_back(range);
  while (swapping_) swap_ended_.wait(mutex_);
}

void CudaMemorySource::may_move(AddressRange range) {
  const MutexLock lock(mutex_);
  const auto at = std::find_if(kept_in_place_.begin(), kept_in_place_.end(), [&](const auto& kept) {
    return kept.begin == range.begin && kept.size == range.size;
  });
  if (at == kept_in_place_.end()) misuse("may_move", "not kept in place: " + hex(range.begin));
  kept_in_place_.erase(at);
}

// --- copies --------------------------------------------------------------------------------

// Returns addresses where a copy may arrive.
CUdeviceptr CudaMemorySource::take_window(Bytes size) {
  std::vector<CUdeviceptr>& windows = windows_[size];
  if (!windows.empty()) {
    const CUdeviceptr window = windows.back();
    windows.pop_back();
    return window;
  }
  windows.reserve(++windows_made_[size]);  // `give_window` has room for each
  return addresses_->reserve(size);
}

// Unmaps what arrived there and keeps the addresses.
void CudaMemorySource::give_window(CUdeviceptr window, Bytes size) noexcept {
  if (window == 0) return;
  addresses_->unmap_at_last(window, size);
  windows_.find(size)->second.push_back(window);
}

CopyTicket CudaMemorySource::begin_copy(std::byte* address, MemoryHandle from, MemoryHandle to) {
  check_usable("begin_copy");
  Block& source = block(from, "begin_copy");
  Block& target = block(to, "begin_copy");
  if (source.address == nullptr || source.address != address) {
    misuse("begin_copy", "source is not mapped at " + hex(address));
  }
  if (target.address != nullptr) misuse("begin_copy", "target is mapped");
  if (source.copying || target.copying) misuse("begin_copy", "a copy of it runs already");
  if (from.size != to.size) misuse("begin_copy", "sizes differ");
  if (source.parked() && target.parked()) misuse("begin_copy", "both are parked");
  if (capturing()) throw SourceError(std::string("begin_copy: ") + kCapturing);
  const Entry entry(*this, "begin_copy");
  const CopyTicket ticket{next_id_++};
  auto copy = std::make_shared<Copy>();
  copy->address = address;
  copy->from = &source;
  copy->to = &target;
  copy->transfer.from = to_cuda(source.parked() ? source.pinned : address);
  copy->transfer.size = from.size;
  copy->transfer.target = to.tier;
  std::size_t running = 1;
  {
    const MutexLock lock(mutex_);
    if (kept_in_place(address, from.size)) throw SourceError(std::string("begin_copy: ") + kKept);
    copies_.emplace(ticket.id, nullptr);  // nobody finds it before it runs
    running = copies_.size();
  }
  CUdeviceptr window = 0;
  bool mapped = false;
  try {
    batch_.reserve(running);
    leaving_.reserve(running);
    coming_.reserve(running);
    addresses_->expect(2 * running);
    copy->transfer.to = to_cuda(target.pinned);
    if (!target.parked()) {
      window = take_window(from.size);
      addresses_->map(Placed{window, to.size, to.tier, target.physical});
      mapped = true;
      copy->transfer.to = copy->window = window;
    }
    queue_->start(copy->transfer);
  } catch (...) {
    if (mapped) {
      give_window(window, from.size);
    } else if (window != 0) {
      windows_.find(from.size)->second.push_back(window);
    }
    const MutexLock lock(mutex_);
    copies_.erase(ticket.id);
    throw;
  }
  source.copying = target.copying = true;
  const MutexLock lock(mutex_);
  copies_.find(ticket.id)->second = std::move(copy);
  return ticket;
}

std::shared_ptr<CudaMemorySource::Copy> CudaMemorySource::find(CopyTicket ticket) const noexcept {
  const MutexLock lock(mutex_);
  const auto at = copies_.find(ticket.id);
  return at == copies_.end() ? nullptr : at->second;
}

CopyState CudaMemorySource::copy_state(CopyTicket ticket) const noexcept {
  const std::shared_ptr<Copy> copy = find(ticket);
  if (copy == nullptr || in_child_) return CopyState::kFailed;
  const DeviceContext::Scope scope(context_);
  return scope.result() == CUDA_SUCCESS ? queue_->poll(copy->transfer)
                                        : copy->transfer.state.load();
}

std::string CudaMemorySource::copy_error(CopyTicket ticket) const {
  const std::shared_ptr<Copy> copy = find(ticket);
  if (copy == nullptr) misuse("copy_error", "unknown ticket");
  if (copy->transfer.state.load() != CopyState::kFailed) return {};
  return "copying " + to_string(copy->transfer.size) + " to the " +
         std::string(to_string(copy->transfer.target)) +
         " tier: " + context_.driver().describe(copy->transfer.error.load());
}

CopyState CudaMemorySource::wait_copy(CopyTicket ticket) {
  check_usable("wait_copy");
  const std::shared_ptr<Copy> copy = find(ticket);
  if (copy == nullptr) misuse("wait_copy", "unknown ticket");
  const Entry entry(*this, "wait_copy");
  return queue_->wait(copy->transfer);
}

void CudaMemorySource::end_copy(CopyTicket ticket) noexcept {
  const std::shared_ptr<Copy> copy = find(ticket);
  if (copy == nullptr || in_child_) return;
  const DeviceContext::Scope scope(context_);
  queue_->end(copy->transfer);
  give_window(copy->window, copy->transfer.size);
  if (!copy->swapped) copy->from->copying = copy->to->copying = false;
  const MutexLock lock(mutex_);
  copies_.erase(ticket.id);
}

// --- moves ---------------------------------------------------------------------------------

MoveRisk CudaMemorySource::move_risk() {
  check_usable("move_risk");
  MoveRisk risk;
  if (capturing()) {
    risk.reason = kCapturing;
  } else if (const std::string_view library = capturing_library(); !library.empty()) {
    risk.reason = std::string(kMayCapture) + ": " + std::string(library);
  } else {
    const DeviceContext::Scope scope(context_);
    if (!addresses_->mend()) risk.reason = addresses_->trouble();
  }
  risk.safe = risk.reason.empty();
  return risk;
}

FenceResult CudaMemorySource::refused(const char* why, TimePoint begin) const noexcept {
  return FenceResult{false, why, std::chrono::steady_clock::now() - begin};
}

FenceResult CudaMemorySource::fence(Duration deadline) noexcept {
  const TimePoint begin = std::chrono::steady_clock::now();
  if (in_child_) return refused("called in a forked child", begin);
  if (fenced_) return refused("called inside a fence", begin);
  if (capturing()) return refused(kCapturing, begin);
  const DeviceContext::Scope scope(context_);
  if (scope.result() != CUDA_SUCCESS) return refused("the CUDA context cannot be entered", begin);
  if (!addresses_->mend()) return refused("the driver refuses to mend a mapping", begin);
  if (options_.gate != nullptr && !options_.gate->close(deadline)) {
    return refused(options_.gate->reason(), begin);
  }
  // A capture may have begun before the gate closed.
  const bool captures = capturing();
  const CUresult drained =
      captures ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : fence_->drain(begin + deadline);
  if (drained == CUDA_SUCCESS) {
    fenced_ = true;
    return FenceResult{true, "", std::chrono::steady_clock::now() - begin};
  }
  if (options_.gate != nullptr) options_.gate->open();
  if (drained == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return refused(capture_reason(), begin);
  return refused(drained == CUDA_ERROR_NOT_READY ? "the device is still working"
                                                 : "the driver refuses to watch the device",
                 begin);
}

void CudaMemorySource::unfence() noexcept {
  if (!fenced_) return;
  fenced_ = false;
  if (addresses_->has_holes()) {
    const DeviceContext::Scope scope(context_);
    (void)addresses_->mend();
  }
  if (options_.gate != nullptr) options_.gate->open();
}

SwapResult CudaMemorySource::swap(CopyTicket ticket, OnChange on_change) noexcept {
  Exchange one{ticket};
  swap_all(std::span(&one, 1), on_change);
  return one.result;
}

// The batch shrinks: what is dropped from it keeps the answer that it has.
void CudaMemorySource::swap_all(std::span<Exchange> exchanges, OnChange on_change) noexcept {
  for (Exchange& exchange : exchanges) exchange.result = SwapResult::kFailed;
  if (!fenced_) return;
  const DeviceContext::Scope scope(context_);
  if (scope.result() != CUDA_SUCCESS || !addresses_->mend()) return;
  batch_.clear();
  {
    const MutexLock lock(mutex_);
    swapping_ = true;
    for (Exchange& exchange : exchanges) {
      const auto at = copies_.find(exchange.ticket.id);
      Copy* const copy = at == copies_.end() ? nullptr : at->second.get();
      if (copy == nullptr || copy->swapped || copy->spoilt || copy->exchange != nullptr ||
          copy->transfer.state.load() != CopyState::kDone ||
          kept_in_place(copy->address, copy->transfer.size)) {
        continue;
      }
      copy->exchange = &exchange;
      batch_.push_back(copy);  // `begin_copy` made room
    }
  }
  if (compare_all() && renew_all(on_change)) {
    std::sort(batch_.begin(), batch_.end(),
              [](const Copy* a, const Copy* b) { return a->address < b->address; });
    for (std::size_t begin = 0; begin < batch_.size();) {
      const Copy& first = *batch_[begin];
      const std::byte* const range = range_over(first.address, first.transfer.size);
      std::size_t end = begin + 1;
      for (const std::byte* next = first.address + first.transfer.size.count();
           end < batch_.size() && batch_[end]->address == next &&
           range_over(next, batch_[end]->transfer.size) == range &&
           batch_[end]->from->parked() == first.from->parked() &&
           batch_[end]->to->parked() == first.to->parked();
           ++end) {
        next += batch_[end]->transfer.size.count();
      }
      exchange_run(std::span(batch_).subspan(begin, end - begin));
      if (addresses_->has_holes()) break;  // the driver refuses even to undo
      begin = end;
    }
  }
  for (Exchange& exchange : exchanges) {
    if (const std::shared_ptr<Copy> copy = find(exchange.ticket)) copy->exchange = nullptr;
  }
  const MutexLock lock(mutex_);
  swapping_ = false;
  swap_ended_.notify_all();
}

// Fingerprints every chunk of the batch as it is now; nobody can have written to what is parked.
// False: that failed.
bool CudaMemorySource::compare_all() noexcept {
  if (!queue_->fingerprint_reason().empty()) return true;
  std::erase_if(batch_, [this](Copy* copy) {
    return !copy->from->parked() && queue_->begin_compare(copy->transfer) != CUDA_SUCCESS;
  });
  return queue_->finish() == CUDA_SUCCESS;
}

// Drops chunks that changed, or copies them once more. False: that failed.
bool CudaMemorySource::renew_all(OnChange on_change) noexcept {
  const bool tells = queue_->fingerprint_reason().empty();
  std::erase_if(batch_, [&](Copy* copy) {
    if (copy->from->parked() || (tells && queue_->unchanged(copy->transfer))) return false;
    if (on_change == OnChange::kLeave) {
      copy->exchange->result = SwapResult::kChanged;
      return true;
    }
    copy->spoilt = true;  // until it has arrived
    return queue_->begin_renew(copy->transfer) != CUDA_SUCCESS;
  });
  if (queue_->finish() != CUDA_SUCCESS) return false;
  for (Copy* copy : batch_) copy->spoilt = false;
  return true;
}

// Exchanges the mappings of chunks that lie together: all of them or none.
void CudaMemorySource::exchange_run(std::span<Copy* const> run) noexcept {
  leaving_.clear();
  coming_.clear();
  for (const Copy* copy : run) {
    if (!copy->from->parked()) leaving_.push_back(placed(*copy->from, copy->address));
    if (!copy->to->parked()) coming_.push_back(placed(*copy->to, copy->address));
  }
  if (addresses_->replace(leaving_, coming_) != CUDA_SUCCESS) return;
  for (Copy* copy : run) {
    copy->exchange->result = SwapResult::kSwapped;
    copy->swapped = true;
    copy->from->address = nullptr;
    copy->to->address = copy->address;
    copy->from->copying = copy->to->copying = false;
    mapped_.find(copy->address)->second = copy->to->handle.id;
  }
}

}  // namespace commensal
