// SPDX-License-Identifier: Apache-2.0
// Everything that the simulated driver keeps for a process: settings, memory, contexts, handles.
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "allocator/base/mutex.h"
#include "tests/simulated_cuda/core/address_space.h"
#include "tests/simulated_cuda/core/call_log.h"
#include "tests/simulated_cuda/core/capture.h"
#include "tests/simulated_cuda/core/event.h"
#include "tests/simulated_cuda/core/graph.h"
#include "tests/simulated_cuda/core/ledger.h"
#include "tests/simulated_cuda/core/settings.h"
#include "tests/simulated_cuda/core/stream.h"

namespace commensal::simulated_cuda {

/// Objects behind opaque handles; a handle that is not (any more) in the table is refused.
template <typename Object, typename Handle>
class HandleTable {
 public:
  Handle add(std::shared_ptr<Object> object) {
    const MutexLock lock(mutex_);
    const auto handle = reinterpret_cast<Handle>(object.get());
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<Object> find(Handle handle) {
    const MutexLock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> remove(Handle handle) {
    const MutexLock lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  Mutex mutex_;
  std::map<Handle, std::shared_ptr<Object>> objects_ COMMENSAL_GUARDED_BY(mutex_);
};

/// A device's primary context, or a green context that was converted to one; `CUcontext` is its
/// address. It lives as long as the process.
class Context {
 public:
  Context(int device, Brake& brake, Fate& fate);
  /// On a part of the device. What waits for all work of `primary` waits for its work too; its
  /// default stream waits for nobody.
  Context(Context& primary, std::shared_ptr<GreenPart> part);

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] const std::shared_ptr<Stream>& legacy() const { return legacy_; }
  [[nodiscard]] const std::shared_ptr<Stream>& marker() const { return marker_; }

  /// The calling thread's own default stream.
  std::shared_ptr<Stream> per_thread();
  std::shared_ptr<Stream> make_stream(unsigned flags, int priority);

  /// Adds work, ordered against the legacy default stream by its rules.
  Ticket push(const std::shared_ptr<Stream>& stream, std::vector<Ticket> after, Body body);

  /// Waits for all work of all streams.
  void synchronize();
  /// Adds work that begins when all work of all streams, as it is now, is done.
  Ticket push_after_all(Body body);
  /// Lets this device's work use memory of another device.
  CUresult enable_peer(int device);
  /// Whether any stream has work that is not done.
  [[nodiscard]] bool busy();

  std::atomic<int> retained{0};
  std::atomic<bool> charged{false};     ///< whether the ledger counts this context
  std::atomic<unsigned> scheduling{0};  ///< flags as a program set them

 private:
  std::vector<Ticket> outstanding(bool only_blocking) COMMENSAL_REQUIRES(mutex_);
  void adopt(const std::shared_ptr<Stream>& stream);

  const int device_;
  Brake& brake_;
  Fate& fate_;
  Context* const primary_ = nullptr;  // of a converted one
  const std::shared_ptr<GreenPart> part_;
  const std::shared_ptr<Stream> legacy_;
  const std::shared_ptr<Stream> marker_;  // for `push_after_all`; programs do not see it
  Mutex mutex_;
  std::set<int> peers_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Stream>> streams_ COMMENSAL_GUARDED_BY(mutex_);
};

/// The driver's state. Made by the first call into the driver, never destroyed.
class Process {
 public:
  static Process& get();

  Settings settings;
  CallLog log;
  Ledger ledger;
  AddressSpace memory;
  Captures captures;
  Brake brake;
  Fate fate{CUDA_SUCCESS};
  std::vector<std::unique_ptr<Context>> contexts;
  HandleTable<Stream, CUstream> streams;
  HandleTable<Event, CUevent> events;
  HandleTable<Graph, CUgraph> graphs;
  HandleTable<Executable, CUgraphExec> executables;
  std::atomic<std::size_t> copy_bytes_per_second;
  std::atomic<std::size_t> kernel_nanoseconds;
  std::atomic<bool> initialized{false};
  std::atomic<bool> forked{false};  ///< a child of the process that used the driver: unusable

  /// Takes a reference to a device's context and charges it to the device.
  CUresult retain(int device, Context** context);

  /// Gives a reference back. The last one returns what the context itself takes of the device;
  /// streams and memory stay (what a program does with them afterwards is undefined).
  CUresult release(int device);

  [[nodiscard]] Context* current() const;
  void set_current(Context* context);
  /// The calling thread's stack of contexts; its last is current.
  static std::vector<Context*>& stack();

  /// Finds a stream by handle: 0 and CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, or a made one.
  CUresult find_stream(CUstream handle, std::shared_ptr<Stream>* stream);

  /// Puts work into a stream, or records it if the stream is capturing.
  CUresult submit(const std::shared_ptr<Stream>& stream, CUgraphNodeType type, std::string label,
                  Body body, std::vector<Ticket> after = {});

 private:
  Process();
};

/// Whether the program sees a device of this number.
inline bool known(CUdevice device) {
  return device >= 0 && device < static_cast<int>(Process::get().contexts.size());
}

inline AddressSpace& memory() { return Process::get().memory; }

}  // namespace commensal::simulated_cuda
