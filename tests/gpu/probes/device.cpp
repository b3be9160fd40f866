// SPDX-License-Identifier: Apache-2.0
// One device with its context, the memory that a probe may take of it, and the kernels.
#include "device.h"

#include <algorithm>
#include <array>

#include "driver.h"
#include "kernels.h"
#include "report.h"

namespace probes {
namespace {

constexpr unsigned kThreads = 256;

CUmemLocation location(CUmemLocationType type, int id) {
  CUmemLocation made{};
  made.type = type;
  made.id = id;
  return made;
}

int host_node(const Device& device) {
  const int node = device.attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  return std::max(node, 0);
}

}  // namespace

Stream::Stream() { CU(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING); }
Stream::~Stream() { (void)Driver::get().cuStreamDestroy(stream_); }
void Stream::wait() const { CU(cuStreamSynchronize, stream_); }

Event::Event(unsigned flags) { CU(cuEventCreate, &event_, flags); }
Event::~Event() { (void)Driver::get().cuEventDestroy(event_); }

double us_between(const Event& start, const Event& end) {
  float ms = 0;
  CU(cuEventElapsedTime, &ms, static_cast<CUevent>(start), static_cast<CUevent>(end));
  return static_cast<double>(ms) * 1000.0;
}

Device::Device() {
  if (const CUresult started = TRY_CU(cuInit, 0U); started != CUDA_SUCCESS) {
    throw NoDevice("the CUDA driver does not start: " + probes::name_of(started));
  }
  int count = 0;
  CU(cuDeviceGetCount, &count);
  if (count == 0) throw NoDevice("the CUDA driver shows no device");
  CU(cuDeviceGet, &id_, 0);
  CU(cuDevicePrimaryCtxRetain, &context_, id_);
  enter();
  budget_ = memory_free() / 2;
}

Device::~Device() { (void)Driver::get().cuDevicePrimaryCtxRelease(id_); }

int Device::attribute(CUdevice_attribute which) const {
  int value = 0;
  CU(cuDeviceGetAttribute, &value, which, id_);
  return value;
}

std::string Device::name() const {
  std::array<char, 256> text{};
  CU(cuDeviceGetName, text.data(), static_cast<int>(text.size()), id_);
  return text.data();
}

std::string Device::uuid() const {
  CUuuid uuid{};
  CU(cuDeviceGetUuid, &uuid, id_);
  std::string text = "GPU-";
  for (std::size_t index = 0; index < sizeof(uuid.bytes); ++index) {
    std::array<char, 4> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned char>(uuid.bytes[index]));
    if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    text += hex.data();
  }
  return text;
}

std::string Device::architecture() const {
  return "sm_" + std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) +
         std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

int Device::multiprocessors() const { return attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); }

std::size_t Device::memory_total() const {
  std::size_t bytes = 0;
  CU(cuDeviceTotalMem, &bytes, id_);
  return bytes;
}

std::size_t Device::memory_free() const {
  std::size_t free = 0;
  std::size_t total = 0;
  CU(cuMemGetInfo, &free, &total);
  return free;
}

void Device::claim(std::size_t bytes) {
  if (bytes > budget_ - claimed_) {
    throw NotRun("it needs " + std::to_string(bytes / kMiB) + " MiB more than half of the " +
                 "memory that was free (" + std::to_string(budget_ / kMiB) + " MiB)");
  }
  claimed_ += bytes;
}

void Device::unclaim(std::size_t bytes) noexcept { claimed_ -= bytes; }

void Device::enter() const { CU(cuCtxSetCurrent, context_); }

CUfunction Device::find_kernel(const char* name) const {
  CUfunction function = nullptr;
  if (library_ == nullptr) {
    CU(cuModuleGetFunction, &function, module_, name);
    return function;
  }
  CUkernel kernel = nullptr;
  CU(cuLibraryGetKernel, &kernel, library_, name);
  return reinterpret_cast<CUfunction>(kernel);  // cuLaunchKernel takes both
}

void Device::load_kernels() {
  const std::string image = compile_kernels(architecture());
  const void* const code = image.data();
  if (Driver::get().cuLibraryLoadData != nullptr) {
    CU(cuLibraryLoadData, &library_, code, nullptr, nullptr, 0U, nullptr, nullptr, 0U);
  } else {
    CU(cuModuleLoadData, &module_, code);
  }
  const Stream stream;
  const Pinned word(sizeof(unsigned));
  *word.as<volatile unsigned>() = 0;
  CUdeviceptr address = 0;
  CU(cuMemHostGetDevicePointer, &address, word.data(), 0U);
  launch(find_kernel("put"), 1, 1, stream, address, 42U);
  stream.wait();
  kernels_work_ = *word.as<volatile unsigned>() == 42U;
  if (kernels_work_) return;
  if (driver_is_simulated()) throw NotRun("not simulated: kernels do nothing on this driver");
  throw std::runtime_error("a kernel ran and did not write what it was told to");
}

CUfunction Device::kernel(const char* name) {
  if (!kernels_work_) load_kernels();
  return find_kernel(name);
}

void detail::launch_raw(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
                        void** arguments) {
  CU(cuLaunchKernel, kernel, blocks, 1U, 1U, threads, 1U, 1U, 0U, stream, arguments, nullptr);
}

Buffer::Buffer(Device& device, std::size_t bytes) : device_(device), bytes_(bytes) {
  device_.claim(bytes_);
  CU(cuMemAlloc, &address_, bytes_);
}

Buffer::~Buffer() {
  (void)Driver::get().cuMemFree(address_);
  device_.unclaim(bytes_);
}

Pinned::Pinned(std::size_t bytes) {
  CU(cuMemHostAlloc, &data_, bytes, static_cast<unsigned>(CU_MEMHOSTALLOC_DEVICEMAP));
}

Pinned::~Pinned() { (void)Driver::get().cuMemFreeHost(data_); }

const char* name_of(Place place) {
  switch (place) {
    case Place::kDevice: return "device";
    case Place::kHost: return "host";
    case Place::kHostNuma: return "host_numa";
  }
  return "unknown";
}

CUmemAllocationProp properties_of(const Device& device, Place place) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  switch (place) {
    case Place::kDevice:
      properties.location = location(CU_MEM_LOCATION_TYPE_DEVICE, device.id());
      properties.requestedHandleTypes = kDescriptor;
      break;
    case Place::kHost: properties.location = location(CU_MEM_LOCATION_TYPE_HOST, 0); break;
    case Place::kHostNuma:
      properties.location = location(CU_MEM_LOCATION_TYPE_HOST_NUMA, host_node(device));
      break;
  }
  return properties;
}

std::size_t granularity(const Device& device, Place place) {
  const CUmemAllocationProp properties = properties_of(device, place);
  std::size_t bytes = 0;
  CU(cuMemGetAllocationGranularity, &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return bytes;
}

void need(Device& device, Place place, Answer& answer) {
  try {
    const Chunk chunk(device, place, granularity(device, place));
  } catch (const DriverError& error) {
    answer.fact(std::string{name_of(place)} + "_refused", error.what());
    throw NotRun(std::string{"the driver makes no memory of the kind "} + name_of(place));
  }
}

Chunk::Chunk(Device& device, Place place, std::size_t bytes)
    : device_(device), claimed_(place == Place::kDevice ? bytes : 0), bytes_(bytes) {
  device_.claim(claimed_);
  const CUmemAllocationProp properties = properties_of(device, place);
  const CUresult created = TRY_CU(cuMemCreate, &handle_, bytes_, &properties, 0ULL);
  if (created == CUDA_SUCCESS) return;
  device_.unclaim(claimed_);
  throw DriverError(
      std::string{"cuMemCreate of "} + std::to_string(bytes_ / kMiB) + " MiB on " + name_of(place),
      created);
}

Chunk::Chunk(Device& device, CUmemGenericAllocationHandle handle, std::size_t bytes)
    : device_(device), claimed_(0), bytes_(bytes), handle_(handle) {}

Chunk::~Chunk() {
  (void)Driver::get().cuMemRelease(handle_);
  device_.unclaim(claimed_);
}

Range::Range(const Device& device, std::size_t bytes) : device_(device), bytes_(bytes) {
  CU(cuMemAddressReserve, &start_, bytes_, std::size_t{0}, CUdeviceptr{0}, 0ULL);
}

Range::~Range() {
  for (const Mapped& piece : mapped_) {
    (void)Driver::get().cuMemUnmap(at(piece.offset), piece.bytes);
  }
  (void)Driver::get().cuMemAddressFree(start_, bytes_);
}

void Range::map(const Chunk& chunk, std::size_t offset) {
  CU(cuMemMap, at(offset), chunk.bytes(), std::size_t{0}, chunk.handle(), 0ULL);
  mapped_.push_back({offset, chunk.bytes()});
}

void Range::unmap(std::size_t offset, std::size_t bytes) {
  CU(cuMemUnmap, at(offset), bytes);
  std::erase_if(mapped_, [=](const Mapped& piece) {
    return piece.offset >= offset && piece.offset + piece.bytes <= offset + bytes;
  });
}

void Range::allow(std::size_t offset, std::size_t bytes) {
  const CUmemAccessDesc access{location(CU_MEM_LOCATION_TYPE_DEVICE, device_.id()),
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU(cuMemSetAccess, at(offset), bytes, &access, std::size_t{1});
}

CUresult Range::allow_host(std::size_t offset, std::size_t bytes, Place place) {
  const CUmemAccessDesc access{properties_of(device_, place).location,
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return TRY_CU(cuMemSetAccess, at(offset), bytes, &access, std::size_t{1});
}

void queue_load(CUfunction work, Load load, CUstream stream) {
  launch(work, load.blocks, kThreads, stream, load.rounds, CUdeviceptr{0});
}

Worker::Worker(Device& device, unsigned blocks)
    : kernel_(device.kernel("work")),
      blocks_(blocks != 0 ? blocks : static_cast<unsigned>(device.multiprocessors()) * 8U) {
  const Stream stream;
  rounds_per_us_ = 100;
  (void)measure(stream, 1000);  // clocks up, code loaded
  for (int round = 0; round < 3; ++round) rounds_per_us_ *= 1000 / measure(stream, 1000);
}

Load Worker::load(double us) const {
  return {static_cast<unsigned>(std::max(1.0, us * rounds_per_us_)), blocks_};
}

double Worker::measure(CUstream stream, double us) {
  const Event start;
  const Event end;
  CU(cuEventRecord, static_cast<CUevent>(start), stream);
  queue(stream, us);
  CU(cuEventRecord, static_cast<CUevent>(end), stream);
  CU(cuEventSynchronize, static_cast<CUevent>(end));
  return us_between(start, end);
}

}  // namespace probes
