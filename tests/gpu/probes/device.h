// SPDX-License-Identifier: Apache-2.0
// One device with its context, the memory that a probe may take of it, and the kernels.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "timeline.h"

namespace probes {

class Answer;

constexpr std::size_t kMiB = std::size_t{1} << 20U;
constexpr std::size_t kGiB = std::size_t{1} << 30U;

/// A stream that waits for no other; destroyed with the object.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const noexcept { return stream_; }
  void wait() const;

 private:
  CUstream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = CU_EVENT_DEFAULT);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator CUevent() const noexcept { return event_; }

 private:
  CUevent event_ = nullptr;
};

/// Microseconds of device time between two events that have passed.
double us_between(const Event& start, const Event& end);

/// The first visible device. Everything that takes memory asks `claim` first.
class Device {
 public:
  /// Starts CUDA. @throws NoDevice where there is none.
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] CUdevice id() const noexcept { return id_; }
  [[nodiscard]] CUcontext context() const noexcept { return context_; }
  [[nodiscard]] int attribute(CUdevice_attribute which) const;
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::string uuid() const;
  [[nodiscard]] std::string architecture() const;  ///< "sm_90"
  [[nodiscard]] int multiprocessors() const;
  [[nodiscard]] std::size_t memory_total() const;
  [[nodiscard]] std::size_t memory_free() const;

  /// Counts bytes against half of what was free at the start.
  /// @throws NotRun if that is passed: no probe may crowd the card.
  void claim(std::size_t bytes);
  void unclaim(std::size_t bytes) noexcept;
  /// Bytes that may still be claimed.
  [[nodiscard]] std::size_t budget() const noexcept { return budget_ - claimed_; }

  /// Makes the context current in the calling thread.
  void enter() const;

  /// A kernel by its name. The first call compiles and tries them.
  /// @throws NotRun where they cannot be compiled, or where launching one does nothing.
  CUfunction kernel(const char* name);

 private:
  void load_kernels();
  CUfunction find_kernel(const char* name) const;

  CUdevice id_ = 0;
  CUcontext context_ = nullptr;
  CUlibrary library_ = nullptr;  // for every context, green ones too
  CUmodule module_ = nullptr;    // where the driver has no libraries
  bool kernels_work_ = false;
  std::size_t budget_ = 0;
  std::size_t claimed_ = 0;
};

/// Launches with arguments in the kernel's order and types.
template <typename... Arguments>
void launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
            Arguments... arguments);

/// Device memory by cuMemAlloc.
class Buffer {
 public:
  Buffer(Device& device, std::size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  Device& device_;
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
};

/// Pinned host memory by cuMemHostAlloc, usable by the device too.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  [[nodiscard]] void* data() const noexcept { return data_; }
  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// Where a chunk of physical memory lies.
enum class Place { kDevice, kHost, kHostNuma };
const char* name_of(Place place);
CUmemAllocationProp properties_of(const Device& device, Place place);

constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Smallest size of a chunk there. @throws DriverError
std::size_t granularity(const Device& device, Place place);

/// Makes sure that chunks can be made there; else notes the driver's refusal as a fact.
/// @throws NotRun if they cannot.
void need(Device& device, Place place, Answer& answer);

/// A chunk of physical memory.
class Chunk {
 public:
  Chunk(Device& device, Place place, std::size_t bytes);
  /// Owns a handle that it did not make, and claims nothing for it.
  Chunk(Device& device, CUmemGenericAllocationHandle handle, std::size_t bytes);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  [[nodiscard]] CUmemGenericAllocationHandle handle() const noexcept { return handle_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  Device& device_;
  std::size_t claimed_;
  std::size_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
};

/// A range of addresses into which chunks are mapped; unmaps what is left.
class Range {
 public:
  Range(const Device& device, std::size_t bytes);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  [[nodiscard]] CUdeviceptr at(std::size_t offset = 0) const noexcept { return start_ + offset; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  void map(const Chunk& chunk, std::size_t offset = 0);
  void unmap(std::size_t offset, std::size_t bytes);
  /// Lets the device read and write.
  void allow(std::size_t offset, std::size_t bytes);
  /// Lets the CPU read and write too (chunks on the host), or says why not.
  CUresult allow_host(std::size_t offset, std::size_t bytes, Place place);

 private:
  struct Mapped {
    std::size_t offset;
    std::size_t bytes;
  };
  const Device& device_;
  std::size_t bytes_;
  CUdeviceptr start_ = 0;
  std::vector<Mapped> mapped_;
};

/// What a kernel of arithmetic has to do: the same work for whoever queues it.
struct Load {
  unsigned rounds = 0;
  unsigned blocks = 0;
};

/// Queues it. @param work  the kernel of that name.
void queue_load(CUfunction work, Load load, CUstream stream);

/// Kernels of a known duration, which do arithmetic on every multiprocessor.
class Worker {
 public:
  /// Finds out how fast this process is now.
  /// @param blocks  of each kernel; 0: as many as fill the device.
  explicit Worker(Device& device, unsigned blocks = 0);
  /// What takes about this long when it runs alone, here: another process may be slower.
  [[nodiscard]] Load load(double us) const;
  /// Queues a kernel that takes about this long when it runs alone.
  void queue(CUstream stream, double us) { queue_load(kernel_, load(us), stream); }
  /// Microseconds that a kernel of `us` takes now, alone.
  double measure(CUstream stream, double us);

 private:
  CUfunction kernel_;
  unsigned blocks_;
  double rounds_per_us_ = 0;
};

// ----- implementation of the template

namespace detail {
void launch_raw(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
                void** arguments);
}

template <typename... Arguments>
void launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
            Arguments... arguments) {
  void* addresses[] = {static_cast<void*>(&arguments)...};
  detail::launch_raw(kernel, blocks, threads, stream, addresses);
}

}  // namespace probes
