// SPDX-License-Identifier: Apache-2.0
// Physical memory of a GPU and of the host beside it.
#include "allocator/cuda/handle_store.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

namespace commensal {
namespace {

bool is_of(const CUmemAccessDesc& access, CUdevice device) noexcept {
  return access.location.type == CU_MEM_LOCATION_TYPE_DEVICE && access.location.id == device;
}

CUmemAccessDesc read_write(CUmemLocation location) {
  CUmemAccessDesc access{};
  access.location = location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

std::string name_of(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? "host memory of a NUMA node" : "host memory";
}

}  // namespace

HandleStore::HandleStore(const DeviceContext& context, HostUse host, Bytes host_keep)
    : context_(context), driver_(context.driver()), host_keep_(host_keep) {
  choose_device();
  switch (host) {
    case HostUse::kMapped: choose_host(); break;
    case HostUse::kNotMapped: host_reason_ = "host memory is not to be mapped"; break;
    case HostUse::kOff: host_reason_ = "host memory is switched off (its cap is 0 B)"; break;
  }
}

HandleStore::~HandleStore() {
  if (!abandoned_) give_back_kept();
}

Bytes HandleStore::granularity_of(const CUmemAllocationProp& properties) const {
  std::size_t granularity = 0;
  check_cuda(driver_.cuMemGetAllocationGranularity(&granularity, &properties,
                                                   CU_MEM_ALLOC_GRANULARITY_MINIMUM),
             "cuMemGetAllocationGranularity");
  if (granularity == 0) throw SourceError("cuMemGetAllocationGranularity: 0 B");
  return Bytes{granularity};
}

void HandleStore::choose_device() {
  if (context_.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
    throw SourceError("the CUDA device has no virtual memory management");
  }
  CUmemAllocationProp& made = pool(Tier::kDevice).properties;
  made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.location = {CU_MEM_LOCATION_TYPE_DEVICE, context_.device()};
  if (context_.attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0) {
    made.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if (context_.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0) {
    made.allocFlags.gpuDirectRDMACapable = 1;
  }
  granularity_ = granularity_of(made);
  access_ = {read_write(made.location)};
}

void HandleStore::choose_host() {
  // The attribute is -1 where the device is near no node in particular.
  const int node = context_.attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  const CUmemLocation numa{CU_MEM_LOCATION_TYPE_HOST_NUMA, node < 0 ? 0 : node};
  const CUmemLocation anywhere{CU_MEM_LOCATION_TYPE_HOST, 0};
  for (const CUmemLocation location : {numa, anywhere}) {
    const std::string refused = try_host(location);
    if (refused.empty()) {
      host_reason_.clear();
      return;
    }
    if (!host_reason_.empty()) host_reason_ += "; ";
    host_reason_ += "the driver gives no " + name_of(location.type) + " to map: " + refused;
  }
}

// Makes, maps and opens one granule on the host, and gives it back. Returns what was refused.
std::string HandleStore::try_host(CUmemLocation location) {
  CUmemAllocationProp tried{};
  tried.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  tried.location = location;
  Bytes unit;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  bool mapped = false;
  std::string refused;
  try {
    unit = Bytes{std::lcm(granularity_.count(), granularity_of(tried).count())};
    check_cuda(driver_.cuMemCreate(&handle, unit.count(), &tried, 0), "cuMemCreate");
    check_cuda(driver_.cuMemAddressReserve(&address, unit.count(), 0, 0, 0), "cuMemAddressReserve");
    check_cuda(driver_.cuMemMap(address, unit.count(), 0, handle, 0), "cuMemMap");
    mapped = true;
    // For the device alone. With a right of the CPU's, too, the driver copies with the CPU what
    // begins on the host and goes on in memory of the device, which the CPU cannot touch: the
    // process ends by SIGSEGV (driver 580 on an H200, docs/design/009).
    check_cuda(driver_.cuMemSetAccess(address, unit.count(), access_.data(), access_.size()),
               "cuMemSetAccess");
  } catch (const std::exception& error) {
    refused = error.what();
  }
  const auto undo = [&](const char* call, auto attempt) {
    const CUresult result = insist(attempt);
    if (result != CUDA_SUCCESS && refused.empty()) refused = call + driver_.describe(result);
  };
  if (mapped) undo("cuMemUnmap: ", [&] { return driver_.cuMemUnmap(address, unit.count()); });
  if (address != 0) {
    undo("cuMemAddressFree: ", [&] { return driver_.cuMemAddressFree(address, unit.count()); });
  }
  if (handle != 0) undo("cuMemRelease: ", [&] { return driver_.cuMemRelease(handle); });
  if (!refused.empty()) return refused;
  pool(Tier::kHost).properties = tried;
  granularity_ = unit;
  return {};
}

void HandleStore::add_user(CUdevice device) {
  access_.push_back(read_write({CU_MEM_LOCATION_TYPE_DEVICE, device}));
}

void HandleStore::drop_user(CUdevice device) noexcept {
  std::erase_if(access_, [&](const CUmemAccessDesc& access) { return is_of(access, device); });
}

bool HandleStore::has_user(CUdevice device) const noexcept {
  return std::any_of(access_.begin(), access_.end(),
                     [&](const CUmemAccessDesc& access) { return is_of(access, device); });
}

CUmemGenericAllocationHandle HandleStore::create(Tier tier, Bytes size) {
  Pool& from = pool(tier);
  CUmemGenericAllocationHandle handle = 0;
  const auto found = from.kept.find(size);
  if (found != from.kept.end() && !found->second.empty()) {
    handle = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) from.kept.erase(found);
    from.kept_bytes -= size;
  } else {
    CUresult result = driver_.cuMemCreate(&handle, size.count(), &from.properties, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !from.kept_bytes.is_zero()) {
      shrink_kept(tier, Bytes{});  // of other sizes: they may be what is missing
      result = driver_.cuMemCreate(&handle, size.count(), &from.properties, 0);
    }
    check_cuda(result, "cuMemCreate of " + to_string(size) + " on the " +
                           std::string(to_string(tier)) + " tier");
  }
  from.created += size;
  if (tier == Tier::kDevice) shrink_kept(tier, saturating_sub(lease_, from.created));
  return handle;
}

bool HandleStore::may_keep(Tier tier, Bytes size) const noexcept {
  const Pool& into = pool(tier);
  // What is released now is still among the created.
  return tier == Tier::kDevice ? into.created + into.kept_bytes <= lease_
                               : into.kept_bytes + size <= host_keep_;
}

void HandleStore::release(Tier tier, Bytes size, CUmemGenericAllocationHandle handle) {
  Pool& into = pool(tier);
  if (may_keep(tier, size)) {
    into.kept[size].push_back(handle);
    into.kept_bytes += size;
  } else {
    check_cuda(driver_.cuMemRelease(handle), "cuMemRelease of " + to_string(size));
  }
  into.created -= size;
}

void HandleStore::shrink_kept(Tier tier, Bytes most) noexcept {
  Pool& from = pool(tier);
  for (auto at = from.kept.begin(); at != from.kept.end();) {
    auto& [size, handles] = *at;
    while (from.kept_bytes > most && !handles.empty()) {
      if (driver_.cuMemRelease(handles.back()) != CUDA_SUCCESS) return;  // stays kept
      handles.pop_back();
      from.kept_bytes -= size;
    }
    if (from.kept_bytes <= most) {
      if (handles.empty()) from.kept.erase(at);
      return;
    }
    at = from.kept.erase(at);
  }
}

Bytes HandleStore::over_lease() const noexcept {
  const Pool& device = pool(Tier::kDevice);
  return saturating_sub(device.kept_bytes, saturating_sub(lease_, device.created));
}

void HandleStore::set_lease(Bytes lease) noexcept {
  lease_ = lease;
  shrink_kept(Tier::kDevice, saturating_sub(lease, created(Tier::kDevice)));
}

void HandleStore::give_back_kept() noexcept {
  shrink_kept(Tier::kDevice, Bytes{});
  shrink_kept(Tier::kHost, Bytes{});
}

}  // namespace commensal
