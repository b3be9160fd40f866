// SPDX-License-Identifier: Apache-2.0
// PyTorch's CUDA allocator over elastic memory; pools and captures stay with PyTorch's own.
#include "torch_ext/cuda/elastic_cuda_allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "torch_ext/cuda/device_index.h"
#include "torch_ext/cuda/mapped_ranges.h"

namespace commensal {
namespace {

using c10::CachingAllocator::format_size;

std::atomic<ElasticCudaAllocator*> g_allocator{nullptr};
std::atomic<bool> g_in_child{false};  // of a fork: locks may be held for ever, and CUDA is gone
constexpr Bytes kDelegatesUnit{512};  // of its blocks
constexpr const char* kGiveUpCache = "commensal_give_up_cache";
constexpr const char* kNoCaching = "PYTORCH_NO_CUDA_MEMORY_CACHING";  // PyTorch's own variable
constexpr const char* kTrial = "not while the program looks for what fits under the limit";
constexpr const char* kMoreThanTheCard = "not for more than the GPU's own memory in all";
constexpr const char* kTold = "a library that registers memory was told of it";

c10::Device cuda_device(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}
StreamId id_of(cudaStream_t stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream); }
void* pointer(StreamId stream) noexcept { return reinterpret_cast<void*>(stream); }

Bytes reserved(const AllocatorStats& stats) noexcept {
  return stats.device + stats.host + stats.parked;
}

// Adds what is ours to a number of the delegate's.
void merge(c10::CachingDeviceAllocator::StatArray& theirs, const MemoryCounters& ours) {
  for (std::size_t kind = 0; kind < ours.kinds.size(); ++kind) {
    const MemoryCounter::Reading mine = ours.kinds[kind].read();
    c10::CachingAllocator::Stat& all = theirs[kind];
    all.current += mine.current;
    all.allocated += mine.allocated;
    all.freed += mine.freed;
    all.peak = std::max({all.peak, mine.peak, all.current});
  }
}

}  // namespace

/// Lets PyTorch's own allocator have our unused memory before it fails. Called with its lock held.
class GiveUpCache final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    ElasticCudaAllocator* const ours = g_allocator.load(std::memory_order_acquire);
    return ours != nullptr && !off_ && !ours->give_up_cache().is_zero();
  }
  /// While it lives, the calling thread gives up nothing this way.
  struct Off {
    Off() noexcept { off_ = true; }
    ~Off() { off_ = false; }
    Off(const Off&) = delete;
    Off& operator=(const Off&) = delete;
  };

 private:
  inline static thread_local bool off_ = false;
};
struct ElasticCudaAllocator::Device {
  Device(int number, ElasticAllocator& elastic, CudaCalls& calls, ElasticCudaAllocator& all)
      : index(number),
        memory(elastic),
        history(static_cast<c10::DeviceIndex>(number)),
        uses(calls, [this, &all](void* block) { all.retire(*this, block); }) {}

  /// Whether a free is more than taking the block back.
  [[nodiscard]] bool watched() const noexcept { return history.listening() || uses.any_recorded(); }

  const int index;
  std::atomic<std::uint64_t> total{UINT64_MAX};  // bytes of the card
  std::atomic<bool> above_limit{false};          // what was live when the newest trial began
  ElasticAllocator& memory;
  AllocationHistory history;
  StreamUses uses;
  DeviceCounters counters;
  std::atomic<double> fraction{1.0};           // of the device, by the program
  std::atomic<std::uint64_t> cap{UINT64_MAX};  // the same: bytes of what ours and theirs reserve
  std::atomic<std::int64_t> out_of_memory{0};
  std::atomic<std::int64_t> retries{0};

  Mutex ranges_mutex;
  MappedRanges ranges COMMENSAL_GUARDED_BY(ranges_mutex);  // that the history has
  std::atomic<std::uint64_t> layout_told{0};               // of the memory, when it was told last

  Mutex told_mutex;
  std::set<const std::byte*> told
      COMMENSAL_GUARDED_BY(told_mutex);  // chunks, to who registers them
};

ElasticCudaAllocator::ElasticCudaAllocator(Base& native, CudaCalls& calls, MemoryProvider& memory)
    : ForwardingAllocator(native),
      calls_(calls),
      memory_(memory),
      may_cache_(std::getenv(kNoCaching) == nullptr),
      enabled_(may_cache_) {
  ElasticCudaAllocator* nobody = nullptr;
  if (!g_allocator.compare_exchange_strong(nobody, this)) {
    throw std::logic_error("there is an ElasticCudaAllocator in this process already");
  }
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { g_in_child.store(true, std::memory_order_relaxed); });
  if (registered != 0) {
    throw std::system_error(registered, std::generic_category(), "pthread_atfork");
  }
  auto* const callbacks = c10::FreeCudaMemoryCallbacksRegistry();
  if (!callbacks->Has(kGiveUpCache)) {
    callbacks->Register(kGiveUpCache, [] { return std::make_unique<GiveUpCache>(); });
  }
}

ElasticCudaAllocator::~ElasticCudaAllocator() { g_allocator.store(nullptr); }

// --- devices -------------------------------------------------------------------------------

ElasticCudaAllocator::Device* ElasticCudaAllocator::known(int device) const noexcept {
  const auto at = static_cast<std::size_t>(device);
  return at < kMostDevices ? devices_[at].load(std::memory_order_acquire) : nullptr;
}

template <typename Visit>
void ElasticCudaAllocator::each_device(Visit visit) const {
  const std::size_t end = highest_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < end; ++i) {
    if (Device* const device = devices_[i].load(std::memory_order_acquire)) visit(*device);
  }
}

// Returns the device that serves an allocation of the calling thread; null: the delegate does.
ElasticCudaAllocator::Device* ElasticCudaAllocator::serving(int device, cudaStream_t stream) {
  const auto at = static_cast<std::size_t>(device);
  if (at >= kMostDevices || refused_[at].load(std::memory_order_acquire) ||
      !enabled_.load(std::memory_order_relaxed) || by_delegate_ ||
      filters_.claims(device, stream)) {
    return nullptr;
  }
  if (Device* const found = devices_[at].load(std::memory_order_acquire)) return found;
  if (!memory_.begun()) return nullptr;
  ElasticAllocator* const elastic = memory_.of(device);  // takes its time, and locks of its own
  if (elastic == nullptr) {
    refused_[at].store(true, std::memory_order_release);
    return nullptr;
  }
  std::vector<int> users;
  Device* made = nullptr;
  {
    const MutexLock lock(mutex_);
    if (Device* const found = devices_[at].load(std::memory_order_acquire)) return found;
    made_.push_back(std::make_unique<Device>(device, *elastic, calls_, *this));
    made = made_.back().get();
    if (history_on_) made->history.record(true, history_, false);
    made->history.set_user_metadata(metadata_);
    for (const auto& tracker : trackers_) made->history.track(tracker);
    memory_.on_pressure(device, [this, made](Bytes) { return release_unused(*made); });
    const auto [first, last] = users_.equal_range(device);
    for (auto user = first; user != last; ++user) users.push_back(user->second);
    devices_[at].store(made, std::memory_order_release);
    highest_.store(std::max(highest_.load(std::memory_order_relaxed), at + 1),
                   std::memory_order_release);
  }
  made->total.store(calls_.memory_info(device).second, std::memory_order_relaxed);
  for (const int user : users) let_in(device, user);
  // By the program before, or by the setting per_process_memory_fraction.
  if (const double fraction = native().getMemoryFraction(static_cast<c10::DeviceIndex>(device));
      fraction < 1.0) {
    set_fraction(*made, fraction);
  }
  return made;
}

ElasticCudaAllocator::Device* ElasticCudaAllocator::owner(const void* block) const noexcept {
  Device* found = nullptr;
  each_device([&](Device& device) {
    if (found == nullptr && device.memory.owns(block)) found = &device;
  });
  return found;
}

// --- blocks --------------------------------------------------------------------------------

c10::DataPtr ElasticCudaAllocator::allocate(std::size_t size) {
  const int device = calls_.current_device();
  if (size != 0) {
    cudaStream_t stream = calls_.current_stream(device);
    if (Device* const own = serving(device, stream)) {
      void* const block = serve(*own, Bytes{size}, stream);
      return {block, block, &give_back, cuda_device(device)};
    }
  }
  c10::DataPtr block = native().allocate(size);
  // While caching is off the delegate's deleter is another one, which has to be that of the block
  // also once it is on again.
  if (enabled_.load(std::memory_order_relaxed)) {
    (void)block.compare_exchange_deleter(native().raw_deleter(), &give_back);
  }
  note_delegate(device);
  return block;
}

void* ElasticCudaAllocator::raw_alloc(std::size_t size) {
  const int device = calls_.current_device();
  return raw_alloc_with_stream(size, calls_.current_stream(device));
}

void* ElasticCudaAllocator::raw_alloc_with_stream(std::size_t size, cudaStream_t stream) {
  if (size == 0) return nullptr;
  const int device = calls_.current_device();
  if (Device* const own = serving(device, stream)) return serve(*own, Bytes{size}, stream);
  void* const block = native().raw_alloc_with_stream(size, stream);
  note_delegate(device);
  return block;
}

void* ElasticCudaAllocator::serve(Device& device, Bytes size, cudaStream_t stream) {
  const bool capture = capturing();
  device.uses.process(capture);
  if (!make_room(device, size)) {
    if (void* const borrowed = borrow(device, size, stream)) return borrowed;
    raise_out_of_memory(device, size, "the program's memory fraction allows no more");
  }
  AllocationContext context = memory_.context();
  context.device_only = why_device_only(device, size);
  void* block = nullptr;
  try {
    block = device.memory.allocate(size, id_of(stream), context);
  } catch (const OutOfMemory&) {
    // What only waits for other streams, and what the delegate keeps, may be enough.
    device.retries.fetch_add(1, std::memory_order_relaxed);
    device.uses.drain(capture);
    (void)release_unused(device);
    try {
      block = device.memory.allocate(size, id_of(stream), context);
    } catch (const OutOfMemory& error) {
      if (void* const borrowed = borrow(device, size, stream)) return borrowed;
      raise_out_of_memory(device, size, error.what());
    }
  }
  const Bytes rounded = device.memory.rounded(size, id_of(stream), context.tag);
  device.counters.born(size, rounded);
  memory_.served();
  if (device.history.listening()) note_birth(device, block, size, stream);
  if (c10::memoryProfilingEnabled()) report(device, block, static_cast<std::int64_t>(size.count()));
  if (const auto* const trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(block));
  }
  return block;
}

// Tells why the slower tier does not serve a new block; null: it does. A program never holds more,
// on both tiers together, than the card has: alone it would be out of memory, and who looks for the
// largest batch that fits would find none.
const char* ElasticCudaAllocator::why_device_only(const Device& device, Bytes size) const {
  if (trials_.load(std::memory_order_relaxed) > 0 &&
      !device.above_limit.load(std::memory_order_relaxed)) {
    return kTrial;
  }
  const std::uint64_t total = device.total.load(std::memory_order_relaxed);
  const auto all = device.counters.allocated_bytes.kinds[MemoryCounters::kAll].read().current;
  const Bytes held{static_cast<std::uint64_t>(std::max<std::int64_t>(all, 0))};
  if (size <= saturating_sub(Bytes{total}, held)) return nullptr;
  const AllocatorStats stats = device.memory.stats();
  Bytes away = stats.parked + stats.dropped;  // that the program has sent away to have room
  for (const TagResidency& tag : device.memory.tags()) away += tag.parked ? tag.host : Bytes{};
  return size <= saturating_sub(Bytes{total} + away, held) ? nullptr : kMoreThanTheCard;
}

void ElasticCudaAllocator::begin_trial() {
  each_device([](Device& device) {
    const AllocatorStats stats = device.memory.stats();
    device.above_limit.store(stats.live > stats.limit, std::memory_order_relaxed);
  });
  trials_.fetch_add(1, std::memory_order_relaxed);
}

void ElasticCudaAllocator::end_trial() noexcept { trials_.fetch_sub(1, std::memory_order_relaxed); }

ElasticCudaAllocator* ElasticCudaAllocator::instance() noexcept {
  return g_allocator.load(std::memory_order_acquire);
}

// Before the block: the chunks that it may lie on. Both came from here, so they have one call
// stack.
void ElasticCudaAllocator::note_birth(Device& device, const void* block, Bytes size,
                                      cudaStream_t stream) {
  const AllocationHistory::Context context = device.history.gather(AllocationHistory::Entry::ALLOC);
  note_segments(device, context);
  device.history.note(AllocationHistory::Entry::ALLOC, block, size.count(), stream, context);
}

// Tells the history which chunks came and went since it was told last, whoever moved them.
void ElasticCudaAllocator::note_segments(Device& device,
                                         const AllocationHistory::Context& context) {
  using Entry = AllocationHistory::Entry;
  if (!device.history.recording() || device.memory.layout() == device.layout_told.load()) return;
  const MutexLock lock(device.ranges_mutex);
  const std::uint64_t layout = device.memory.layout();  // what comes after it is told the next time
  for (const MappedRanges::Change& change : device.ranges.update(device.memory.memory_map(false))) {
    device.history.note(change.mapped ? Entry::SEGMENT_MAP : Entry::SEGMENT_UNMAP, change.address,
                        change.size.count(), pointer(change.stream),
                        change.mapped ? context : nullptr);
  }
  device.layout_told.store(layout);
}

// The one deleter. Called from any thread, at any time, also after exit handlers.
void ElasticCudaAllocator::give_back(void* block) {
  g_allocator.load(std::memory_order_acquire)->release(block);
}

void ElasticCudaAllocator::release(void* block) {
  if (block == nullptr || g_in_child.load(std::memory_order_relaxed)) return;  // the parent's
  const bool told = c10::memoryProfilingEnabled() || c10::impl::GPUTrace::get_trace() != nullptr;
  const std::size_t end = highest_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < end; ++i) {
    Device* const device = devices_[i].load(std::memory_order_acquire);
    if (device == nullptr) continue;
    if (told || device->watched()) {
      if (!device->memory.owns(block)) continue;
      release_watched(*device, block);
      return;
    }
    const FreedBlock freed = device->memory.take_back(block);
    if (!freed.ours) continue;
    device->counters.freed(freed.size);
    device->counters.retired(freed.asked, freed.size);
    return;
  }
  native().raw_deleter()(block);
  note_delegate();
}

// Frees a block of which somebody wants to know, or that another stream may still use.
void ElasticCudaAllocator::release_watched(Device& device, void* block) {
  if (const auto* const trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(block));
  }
  const BlockPlace place = device.memory.find(block);
  device.counters.freed(place.size);
  device.history.note(AllocationHistory::Entry::FREE_REQUESTED, block, place.asked.count(),
                      pointer(place.stream));
  if (c10::memoryProfilingEnabled()) {
    report(device, block, -static_cast<std::int64_t>(place.asked.count()));
  }
  if (!device.uses.freed(block, capturing())) retire(device, block);
}

// Nobody uses a freed block any more.
void ElasticCudaAllocator::retire(Device& device, void* block) noexcept {
  const BlockPlace place = device.memory.find(block);
  device.history.note(AllocationHistory::Entry::FREE_COMPLETED, block, place.asked.count(),
                      pointer(place.stream));
  device.counters.retired(place.asked, place.size);
  (void)device.memory.take_back(block);
}

c10::DeleterFnPtr ElasticCudaAllocator::raw_deleter() const {
  return enabled_.load(std::memory_order_relaxed) ? &give_back : native().raw_deleter();
}

void ElasticCudaAllocator::raw_delete(void* block) {
  if (block == nullptr) return;
  if (owner(block) != nullptr) {
    release(block);
  } else {
    native().raw_delete(block);
    note_delegate();
  }
}

void ElasticCudaAllocator::recordStream(const c10::DataPtr& block, c10::Stream stream) {
  recordStream(block, c10::cuda::CUDAStream(stream));
}

void ElasticCudaAllocator::recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  if (block.get() == nullptr) return;
  if (block.get_deleter() != &give_back) {
    native().recordStream(block, stream);  // not an allocator's, or from before us
    return;
  }
  Device* const own = owner(block.get());
  if (own == nullptr) {
    with_native_deleter(block,
                        [&](const c10::DataPtr& plain) { native().recordStream(plain, stream); });
    return;
  }
  if (id_of(stream.stream()) == own->memory.find(block.get()).stream) return;  // its own
  own->uses.record(block.get(), {stream.device_index(), stream.stream()});
}

void ElasticCudaAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                               std::function<bool(cudaStream_t)> filter) {
  const PoolUse use = use_of_pool(calls_, device, filter);
  if (use == PoolUse::kCapture) captured_.store(true, std::memory_order_relaxed);
  if (Device* const own = known(device)) bound_delegate(*own);
  native().beginAllocateToPool(device, pool, filter);
  filters_.begin(device, pool, use, std::move(filter));
}

void ElasticCudaAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native().endAllocateToPool(device, pool);
  filters_.end(device, pool);
}

void ElasticCudaAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool,
                                       bool use_on_oom) {
  native().setUseOnOOM(device, pool, use_on_oom);
  const MutexLock lock(lending_);
  if (use_on_oom) {
    lent_.emplace(device, pool);
  } else {
    lent_.erase({device, pool});
  }
}

void ElasticCudaAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  const MutexLock lock(lending_);
  const auto lent = lent_.find({device, pool});
  if (lent != lent_.end() && native().getPoolUseCount(device, pool) == 1) lent_.erase(lent);
  native().releasePool(device, pool);
}

int ElasticCudaAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  const MutexLock lock(lending_);  // without the use that lending it is
  return native().getPoolUseCount(device, pool);
}

ElasticCudaAllocator::CheckpointDelta ElasticCudaAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<AllocatorState> state) {
  CheckpointDelta delta = native().setCheckpointPoolState(device, std::move(state));
  for (c10::DataPtr& block : delta.dataptrs_allocd) {
    (void)block.compare_exchange_deleter(native().raw_deleter(), &give_back);
  }
  note_delegate(device);
  return delta;
}

// --- when memory is short ------------------------------------------------------------------

// Returns a block of a pool that the program lends (`use_on_oom`) and that has room, as PyTorch's
// own does before it fails; null: there is none.
void* ElasticCudaAllocator::borrow(const Device& device, Bytes size, cudaStream_t stream) {
  const auto index = static_cast<c10::DeviceIndex>(device.index);
  const MutexLock lock(lending_);
  for (const auto& [lender, pool] : lent_) {
    // What somebody allocates to now the delegate would refuse to begin a second time.
    if (lender != device.index || filters_.in_use(device.index, pool) ||
        !has_room(device, pool, size, stream)) {
      continue;
    }
    struct Use {
      Base& native;
      const c10::DeviceIndex device;
      const c10::MempoolId_t pool;
      Use(Base& of, c10::DeviceIndex at, c10::MempoolId_t lent)
          : native(of), device(at), pool(lent) {
        native.beginAllocateToPool(device, pool, [self = std::this_thread::get_id()](cudaStream_t) {
          return std::this_thread::get_id() == self;
        });
      }
      ~Use() {
        native.endAllocateToPool(device, pool);
        native.releasePool(device, pool);  // that it was begun counts as a use
      }
    };
    void* block = nullptr;
    {
      const Use use(native(), index, pool);
      block = native().raw_alloc_with_stream(size.count(), stream);
    }
    note_delegate(device.index);
    return block;
  }
  return nullptr;
}

// Whether a free block of a pool would do. In a pool without one the delegate would make a segment.
bool ElasticCudaAllocator::has_room(const Device& device, c10::MempoolId_t pool, Bytes size,
                                    cudaStream_t stream) const {
  const bool small = size <= MemoryCounters::kLargestSmall;
  const auto segments = native().snapshot(pool, false).segments;
  return std::any_of(segments.begin(), segments.end(), [&](const auto& segment) {
    return segment.device == device.index && segment.stream == stream &&
           segment.is_large != small &&
           std::any_of(segment.blocks.begin(), segment.blocks.end(), [&](const auto& block) {
             return !block.active && block.size >= round_up(size, kDelegatesUnit).count();
           });
  });
}

// Lets others free what they can. Returns whether one did.
bool ElasticCudaAllocator::run_callbacks() {
  const GiveUpCache::Off off;  // ours goes as the caller wants it
  bool freed = false;
  for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return freed;
}

Bytes ElasticCudaAllocator::reserved_by_delegate(int device) const {
  const auto stats = native().getDeviceStats(static_cast<c10::DeviceIndex>(device));
  return Bytes{static_cast<std::uint64_t>(stats.reserved_bytes[kAllPools].current)};
}

// Gives back what nobody uses: ours is given back by who asked. Returns what came of it, in words.
std::string ElasticCudaAllocator::release_unused(Device& device) {
  const bool capture = capturing();
  device.uses.process(capture);
  if (capture) return "PyTorch's own cache stays during a capture";
  const bool freed = run_callbacks();
  native().emptyCache({0, 0});
  note_delegate(device.index);
  return std::string("PyTorch's own cache emptied") + (freed ? ", callbacks freed some" : "");
}

void ElasticCudaAllocator::give_back_delegates_cache() {
  if (capturing()) return;
  bool unused = false;
  each_device([&](const Device& device) {
    const DeviceStats theirs = native().getDeviceStats(static_cast<c10::DeviceIndex>(device.index));
    unused |=
        theirs.reserved_bytes[kAllPools].current >
        theirs.active_bytes[kAllPools].current + theirs.inactive_split_bytes[kAllPools].current;
  });
  (void)run_callbacks();
  if (!unused) return;
  native().emptyCache({0, 0});
  note_delegate();
}

// Tells whether the program's own bound leaves room for a block, after unused memory has gone.
bool ElasticCudaAllocator::make_room(Device& device, Bytes size) {
  const Bytes cap{device.cap.load(std::memory_order_relaxed)};
  if (cap == Bytes{UINT64_MAX}) return true;
  const auto fits = [&] {
    const AllocatorStats stats = device.memory.stats();
    const Bytes used = reserved(stats) + reserved_by_delegate(device.index);
    return size <= stats.cached || size <= saturating_sub(cap, used);
  };
  if (fits()) return true;
  (void)give_up_cache();
  if (fits()) return true;
  give_back_delegates_cache();
  return fits();
}

// Leaves the delegate what the program's bound leaves beside ours. Before a capture begins: to
// lower its fraction during one could make it free memory then, which breaks the capture.
void ElasticCudaAllocator::bound_delegate(Device& device) {
  const double fraction = device.fraction.load(std::memory_order_relaxed);
  if (fraction >= 1.0 || capturing()) return;
  const Bytes cap{device.cap.load(std::memory_order_relaxed)};
  const Bytes left = saturating_sub(cap, reserved(device.memory.stats()));
  native().setMemoryFraction(
      fraction * (static_cast<double>(left.count()) / static_cast<double>(cap.count())),
      static_cast<c10::DeviceIndex>(device.index));
}

void ElasticCudaAllocator::raise_out_of_memory(Device& device, Bytes size, const std::string& why) {
  device.out_of_memory.fetch_add(1, std::memory_order_relaxed);
  const auto [free, total] = calls_.memory_info(device.index);
  device.history.note(AllocationHistory::Entry::OOM, pointer(free), size.count(), nullptr);
  if (c10::memoryProfilingEnabled()) {
    const auto [allocated, held] = totals(device);
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(size.count()), allocated, held,
                                     cuda_device(device.index));
  }
  std::vector<OutOfMemoryObserver> observers;
  {
    const MutexLock lock(mutex_);
    observers = observers_;
  }
  for (const OutOfMemoryObserver& observer : observers) {
    observer(device.index, size.count(), total, free);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   format_size(size.count()), ". GPU ", device.index, " has a total capacity of ",
                   format_size(total), " of which ", format_size(free),
                   " is free. commensal: ", why);
}

// Gives our unused memory back to the driver; not during a capture, which that would break.
Bytes ElasticCudaAllocator::give_up_cache() {
  Bytes gone;
  if (capturing()) return gone;
  each_device([&](Device& device) {
    device.uses.drain(false);
    gone += device.memory.release_cached();
    note_segments(device, nullptr);
  });
  return gone;
}

void ElasticCudaAllocator::emptyCache(c10::MempoolId_t pool) {
  if (pool == c10::MempoolId_t{0, 0}) {
    give_up_cache();
  }
  native().emptyCache(pool);
  note_delegate();
}

void ElasticCudaAllocator::enable(bool value) {
  native().enable(value);
  enabled_.store(value && may_cache_, std::memory_order_relaxed);
}

void ElasticCudaAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  native().setMemoryFraction(fraction, device);  // says what is wrong with it
  if (Device* const own = known(device)) set_fraction(*own, fraction);  // else when it is made
}

double ElasticCudaAllocator::getMemoryFraction(c10::DeviceIndex device) {
  const Device* const own = known(device);
  if (own == nullptr) return native().getMemoryFraction(device);
  return own->fraction.load(std::memory_order_relaxed);
}

void ElasticCudaAllocator::set_fraction(Device& device, double fraction) {
  const auto total = static_cast<double>(calls_.memory_info(device.index).second);
  device.fraction.store(fraction, std::memory_order_relaxed);
  device.cap.store(fraction < 1.0 ? static_cast<std::uint64_t>(fraction * total) : UINT64_MAX,
                   std::memory_order_relaxed);
}

std::pair<std::size_t, std::size_t> ElasticCudaAllocator::getMemoryInfo(c10::DeviceIndex device) {
  auto [free, total] = calls_.memory_info(device);
  const Device* const own = known(device);
  if (own == nullptr) return {free, total};
  const AllocatorStats stats = own->memory.stats();
  const Bytes held = stats.device + stats.host_touched + stats.outside;
  const std::uint64_t room = saturating_sub(stats.limit, held).count();
  return {std::min<std::uint64_t>(free, room), std::min<std::uint64_t>(total, stats.limit.count())};
}

void ElasticCudaAllocator::cacheInfo(c10::DeviceIndex device, std::size_t* largest_block) {
  native().cacheInfo(device, largest_block);
  if (known(device) == nullptr) return;
  *largest_block = std::max(*largest_block, getMemoryInfo(device).first);
}

// --- what PyTorch tells of memory ----------------------------------------------------------

// The delegate's numbers count for the peaks of ours.
void ElasticCudaAllocator::note_delegate() {
  each_device([this](const Device& device) { note_delegate(device.index); });
}

void ElasticCudaAllocator::note_delegate(int device) {
  Device* const own = known(device);
  if (own == nullptr) return;
  const DeviceStats theirs = native().getDeviceStats(static_cast<c10::DeviceIndex>(device));
  const auto note = [](MemoryCounters& ours, const c10::CachingDeviceAllocator::StatArray& stat) {
    for (std::size_t kind = 0; kind < stat.size(); ++kind) {
      ours.kinds[kind].note_others(stat[kind].current);
    }
  };
  note(own->counters.allocation, theirs.allocation);
  note(own->counters.allocated_bytes, theirs.allocated_bytes);
  note(own->counters.requested_bytes, theirs.requested_bytes);
  note(own->counters.active, theirs.active);
  note(own->counters.active_bytes, theirs.active_bytes);
  const std::int64_t held = theirs.reserved_bytes[kAllPools].current;
  memory_.delegated(device, Bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(held, 0))});
}

ElasticCudaAllocator::DeviceStats ElasticCudaAllocator::getDeviceStats(c10::DeviceIndex device) {
  DeviceStats all = native().getDeviceStats(device);
  Device* const own = known(device);
  if (own == nullptr) return all;
  note_delegate(device);
  merge(all.allocation, own->counters.allocation);
  merge(all.allocated_bytes, own->counters.allocated_bytes);
  merge(all.requested_bytes, own->counters.requested_bytes);
  merge(all.active, own->counters.active);
  merge(all.active_bytes, own->counters.active_bytes);
  const AllocatorStats stats = own->memory.stats();
  const auto add = [](c10::CachingAllocator::Stat& stat, std::uint64_t now, std::uint64_t peak) {
    stat.peak = std::max(stat.peak + static_cast<std::int64_t>(now),
                         stat.current + static_cast<std::int64_t>(peak));
    stat.current += static_cast<std::int64_t>(now);
    stat.allocated += static_cast<std::int64_t>(now);
  };
  add(all.reserved_bytes[kAllPools], reserved(stats).count(), stats.peak_reserved.count());
  add(all.segment[kAllPools], stats.chunks_device + stats.chunks_host,
      stats.chunks_device + stats.chunks_host);
  all.num_ooms += own->out_of_memory.load(std::memory_order_relaxed);
  all.num_alloc_retries += own->retries.load(std::memory_order_relaxed);
  return all;
}

void ElasticCudaAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  native().resetAccumulatedStats(device);
  Device* const own = known(device);
  if (own == nullptr) return;
  own->counters.each([](MemoryCounter& counter) { counter.reset_sums(); });
  own->out_of_memory.store(0, std::memory_order_relaxed);
  own->retries.store(0, std::memory_order_relaxed);
}

void ElasticCudaAllocator::resetPeakStats(c10::DeviceIndex device) {
  native().resetPeakStats(device);
  Device* const own = known(device);
  if (own == nullptr) return;
  note_delegate(device);
  own->counters.each([](MemoryCounter& counter) { counter.reset_peak(); });
  own->memory.reset_peak_reserved();
}

// Allocated and reserved, of both.
std::pair<std::size_t, std::size_t> ElasticCudaAllocator::totals(const Device& device) const {
  const DeviceStats theirs = native().getDeviceStats(static_cast<c10::DeviceIndex>(device.index));
  const auto ours = device.counters.allocated_bytes.kinds[MemoryCounters::kAll].read().current;
  return {static_cast<std::size_t>(theirs.allocated_bytes[kAllPools].current + ours),
          static_cast<std::size_t>(theirs.reserved_bytes[kAllPools].current) +
              reserved(device.memory.stats()).count()};
}

void ElasticCudaAllocator::report(const Device& device, void* block, std::int64_t change) const {
  const auto [allocated, held] = totals(device);
  c10::reportMemoryUsageToProfiler(block, change, allocated, held, cuda_device(device.index));
}

std::vector<ElasticCudaAllocator::StreamSegmentSize>
ElasticCudaAllocator::getExpandableSegmentSizes(c10::DeviceIndex device) {
  std::vector<StreamSegmentSize> all = native().getExpandableSegmentSizes(device);
  const Device* const own = known(device);
  if (own == nullptr) return all;
  for (const SegmentMap& segment : own->memory.memory_map(false)) {
    Bytes mapped;
    for (const ChunkResidency& chunk : segment.chunks) mapped += chunk.size;
    all.emplace_back(static_cast<cudaStream_t>(pointer(segment.stream)), segment.small,
                     mapped.count());
  }
  return all;
}

ElasticCudaAllocator::SnapshotInfo ElasticCudaAllocator::snapshot(c10::MempoolId_t pool,
                                                                  bool include_traces) {
  SnapshotInfo all = native().snapshot(pool, include_traces);
  if (pool != c10::MempoolId_t{0, 0}) return all;
  each_device([&](Device& device) {
    if (tracked_.load(std::memory_order_acquire)) keep_told(device);
    note_segments(device, nullptr);
    append_segments(device, all.segments);
    if (!include_traces) return;
    const auto at = static_cast<std::size_t>(device.index);
    if (all.device_traces.size() <= at) all.device_traces.resize(at + 1);
    auto& trace = all.device_traces[at];
    for (AllocationHistory::Entry& entry : device.history.entries()) trace.push_back(entry);
    std::stable_sort(trace.begin(), trace.end(), [](const auto& left, const auto& right) {
      return left.time_.t_ < right.time_.t_;
    });
  });
  return all;
}

// Who follows segments (NCCL, with TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK) registers those
// that a snapshot shows, by their addresses: what lies there must stay from now on. New segments of
// ours are not told of, so nobody registers them.
void ElasticCudaAllocator::keep_told(Device& device) {
  std::vector<AddressRange> fresh;
  for (const SegmentMap& map : device.memory.memory_map(false)) {
    for (const ChunkResidency& chunk : map.chunks) {
      const MutexLock lock(device.told_mutex);
      if (chunk.away || !device.told.insert(chunk.address).second) continue;
      fresh.push_back({const_cast<std::byte*>(chunk.address), chunk.size});
    }
  }
  for (const AddressRange& chunk : fresh) {
    device.memory.keep_in_place(chunk, kTold, KeepWhere::kWhereItIs);
  }
}

// PyTorch wants the blocks of a segment to add up to it, so each run of chunks is one.
void ElasticCudaAllocator::append_segments(
    Device& device, std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments) {
  const std::vector<void*> waiting = device.uses.waiting();
  for (const SegmentMap& map : device.memory.memory_map(true)) {
    auto block = map.blocks.begin();
    for (auto chunk = map.chunks.begin(); chunk != map.chunks.end();) {
      c10::CachingDeviceAllocator::SegmentInfo info;
      const std::byte* const begin = chunk->address;
      const std::byte* end = begin;
      for (; chunk != map.chunks.end() && chunk->address == end; ++chunk) {
        end += chunk->size.count();
      }
      info.device = static_cast<c10::DeviceIndex>(device.index);
      info.address = reinterpret_cast<std::size_t>(begin);
      info.total_size = static_cast<std::size_t>(end - begin);
      info.stream = pointer(map.stream);
      info.is_large = !map.small;
      info.is_expandable = true;
      for (; block != map.blocks.end() && block->address < end; ++block) {
        c10::CachingDeviceAllocator::BlockInfo entry;
        entry.size = block->size.count();
        entry.requested_size = block->asked.count();
        entry.active = !block->asked.is_zero();
        entry.allocated = entry.active && std::find(waiting.begin(), waiting.end(),
                                                    block->address) == waiting.end();
        if (entry.active) {
          entry.context_when_allocated = device.history.born_at(block->address);
          info.active_size += entry.size;
        }
        if (entry.allocated) {
          info.allocated_size += entry.size;
          info.requested_size += entry.requested_size;
        }
        info.blocks.push_back(std::move(entry));
      }
      segments.push_back(std::move(info));
    }
  }
}

void ElasticCudaAllocator::recordHistory(
    bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder,
    std::size_t max_entries, c10::CachingDeviceAllocator::RecordContext when, bool clear_history,
    const std::vector<std::string>& skip_actions) {
  native().recordHistory(enabled, context_recorder, max_entries, when, clear_history, skip_actions);
  AllocationHistory::Settings settings;
  settings.gather = context_recorder;
  settings.most_entries = max_entries;
  settings.when = when;
  for (const std::string& action : skip_actions) {
    settings.skipped.insert(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
  }
  // What there is when recording begins came before.
  each_device([](Device& device) {
    if (device.history.recording()) return;
    const MutexLock lock(device.ranges_mutex);
    device.layout_told.store(device.memory.layout());
    (void)device.ranges.update(device.memory.memory_map(false));
  });
  const MutexLock lock(mutex_);
  history_on_ = enabled;
  history_ = settings;
  each_device([&](Device& device) { device.history.record(enabled, settings, clear_history); });
}

void ElasticCudaAllocator::pushCompileContext(std::string& context) {
  native().pushCompileContext(context);
  AllocationHistory::push_compile_context(context);
}

void ElasticCudaAllocator::popCompileContext() {
  native().popCompileContext();
  AllocationHistory::pop_compile_context();
}

void ElasticCudaAllocator::setUserMetadata(const std::string& metadata) {
  native().setUserMetadata(metadata);
  const MutexLock lock(mutex_);
  metadata_ = metadata;
  each_device([&](Device& device) { device.history.set_user_metadata(metadata); });
}

void ElasticCudaAllocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  {
    const MutexLock lock(mutex_);
    observers_.push_back(observer);
  }
  native().attachOutOfMemoryObserver(std::move(observer));
}

void ElasticCudaAllocator::attachAllocatorTraceTracker(
    c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) {
  {
    const MutexLock lock(mutex_);
    trackers_.push_back(tracker);
    tracked_.store(true, std::memory_order_release);
    each_device([&](Device& device) { device.history.track(tracker); });
  }
  native().attachAllocatorTraceTracker(std::move(tracker));
}

// --- other processes and devices -----------------------------------------------------------

void* ElasticCudaAllocator::getBaseAllocation(void* block, std::size_t* size) {
  TORCH_CHECK(
      owner(block) == nullptr,
      "commensal: a block of elastic memory is no allocation of its own, so it has no base");
  return native().getBaseAllocation(block, size);
}

ElasticCudaAllocator::ShareableHandle ElasticCudaAllocator::shareIpcHandle(void* block) {
  TORCH_CHECK(
      owner(block) == nullptr,
      "commensal: a CUDA tensor in elastic memory cannot be shared with another process "
      "once a graph was captured; "
      "make it within torch.cuda.use_mem_pool(torch.cuda.MemPool()), or copy it to the CPU");
  return native().shareIpcHandle(block);
}

bool ElasticCudaAllocator::may_leave(const void* block) const noexcept {
  return !captured_.load(std::memory_order_relaxed) && owner(block) != nullptr;
}

void ElasticCudaAllocator::let_in(int device, int user) {
  try {
    memory_.let_in(device, user);
  } catch (const SourceError& error) {
    TORCH_CHECK(false, "commensal: GPU ", user, " gets no access to memory of GPU ", device, ": ",
                error.what());
  }
}

// PyTorch asks once for each pair, before the first copy between the two.
void ElasticCudaAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) {
  native().enablePeerAccess(device, owner);
  {
    const MutexLock lock(mutex_);
    if (known(owner) == nullptr) {
      users_.emplace(owner, device);
      return;
    }
  }
  let_in(owner, device);
}

cudaError_t ElasticCudaAllocator::memcpyAsync(void* dest, int dest_device, const void* src,
                                              int src_device, std::size_t count,
                                              cudaStream_t stream, bool p2p_enabled) {
  if (owner(dest) == nullptr && owner(src) == nullptr) {
    return native().memcpyAsync(dest, dest_device, src, src_device, count, stream, p2p_enabled);
  }
  return calls_.copy(dest, dest_device, src, src_device, count, stream, p2p_enabled);
}

}  // namespace commensal
