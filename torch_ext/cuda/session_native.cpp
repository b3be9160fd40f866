// SPDX-License-Identifier: Apache-2.0
// PyTorch's own memory of GPUs as that of a session: bound by a cap on each.
#include <array>
#include <atomic>
#include <exception>
#include <set>
#include <string>

#include "allocator/base/mutex.h"
#include "allocator/cuda/device_context.h"
#include "torch_ext/cuda/cap_only.h"
#include "torch_ext/cuda/cuda_install.h"
#include "torch_ext/cuda/elastic_install.h"
#include "torch_ext/cuda/native_allocator.h"
#include "torch_ext/cuda/session_gpu.h"
#include "torch_ext/cuda/session_memory.h"

#define COMMENSAL_EXPORT __attribute__((visibility("default")))

namespace commensal {
namespace {

constexpr int kMostDevices = 64;
// PyTorch's allocator takes memory in pieces: of 2 MiB for small blocks, of 20 for those of less
// than 10, else of whole 2 MiB (kSmallBuffer, kLargeBuffer, kMinLargeAlloc and kRoundLarge of
// c10/core/AllocatorConfig.h).
constexpr Bytes kSmallBlock = 1_MiB;
constexpr Bytes kSmallPiece = 2_MiB;
constexpr Bytes kLargeBlock = 10_MiB;
constexpr Bytes kLargePiece = 20_MiB;

Bytes piece_for(Bytes block) {
  if (block <= kSmallBlock) return kSmallPiece;
  return block < kLargeBlock ? kLargePiece : round_up(block, kSmallPiece);
}

/// The GPUs that the process uses, the first one first. Lives for ever.
class NativeMemory final : public NativeListener {
 public:
  explicit NativeMemory(Session& session) : session_(session), gpus_(session) {}

  bool used(int device) noexcept override {
    if (!session_.trains()) return false;
    if (in_use_) return false;  // by what begins a device, on this thread
    in_use_ = true;
    std::string problem;
    try {
      const MutexLock lock(mutex_);
      if (begun_.insert(device).second) begin(device, "");
    } catch (const std::exception& error) {
      problem = error.what();
    }
    in_use_ = false;
    if (!problem.empty()) session_.warn("the limit of GPU memory is not enforced: " + problem);
    return true;
  }

  /// As `used`, where this allocator does not serve, or the session's elastic memory could not be
  /// had, because of `why`.
  void begin_instead(int device, const std::string& why) {
    const MutexLock lock(mutex_);
    if (begun_.insert(device).second) begin(device, why);
  }

  void served() noexcept override { session_.touch(); }

  bool make_room(int device, Bytes size) noexcept override {
    CapOnly* const cap = cap_of(device);
    if (cap == nullptr) return false;
    if (cap->raise()) return true;  // it was granted meanwhile
    try {
      (void)session_.ask_for_memory(id_of(device), piece_for(size));
    } catch (const std::exception&) {
      return false;  // no memory for words: PyTorch says that there is no room
    }
    return cap->raise();
  }

  Bytes limit(int device) noexcept override {
    const CapOnly* const cap = cap_of(device);
    return cap != nullptr ? cap->limit() : Bytes{UINT64_MAX};
  }

 private:
  CapOnly* cap_of(int device) const noexcept {
    return device >= 0 && device < kMostDevices ? caps_.at(static_cast<std::size_t>(device)).load()
                                                : nullptr;
  }
  std::string id_of(int device) const {
    return device == first_.load() ? std::string() : DeviceContext(device).id();
  }

  void begin(int device, const std::string& why) COMMENSAL_REQUIRES(mutex_) {
    if (device < 0 || device >= kMostDevices) return;
    // Where another allocator serves, nobody knows of captures, which any call of ours could break.
    const bool watched = cuda_allocator_is_ours();
    CapOnly::Options options;
    options.device = device;
    options.may_act = &Session::between_ops;
    if (watched) options.capturing = &cuda_capturing;
    auto& allocator = *c10::cuda::CUDACachingAllocator::allocator.load();
    auto& cap = *new CapOnly(allocator, runtime_cuda_calls(), options);  // never destroyed
    const std::string id = DeviceContext(device).id();
    if (!cap.problem().empty()) {
      session_.warn("the limit of GPU memory is not enforced: " + cap.problem());
    }
    if (first_.load() < 0) {
      first_.store(device);
      if (watched) gpus_.follow_first(device);
      session_.take_device(cap, id, why);
    } else {
      if (watched) gpus_.follow_other(device, id);
      session_.add_device(cap, id);
    }
    caps_.at(static_cast<std::size_t>(device)).store(&cap);
    (void)cap.raise();
    (void)cap.safe_point();
  }

  static thread_local bool in_use_;
  Session& session_;
  Mutex mutex_;
  SessionGpus gpus_ COMMENSAL_GUARDED_BY(mutex_);
  std::set<int> begun_ COMMENSAL_GUARDED_BY(mutex_);
  std::atomic<int> first_{-1};
  std::array<std::atomic<CapOnly*>, kMostDevices> caps_{};
};

thread_local bool NativeMemory::in_use_ = false;

NativeMemory& native_memory(Session& session) {
  static NativeMemory& memory = *new NativeMemory(session);  // never destroyed
  return memory;
}

std::string install_native() {
  Session& session = session_of_gpu();
  std::string complaint = watch_native_allocator(native_memory(session));
  if (complaint.empty()) show_waits(session);
  return complaint;
}

}  // namespace

void fall_back_to_native(Session& session, int device, const std::string& why) {
  native_memory(session).begin_instead(device, why);
}

}  // namespace commensal

COMMENSAL_EXPORT const char* commensal_torch_cuda_install_native() {
  return commensal::told([] { return commensal::install_native(); });
}

COMMENSAL_EXPORT const char* commensal_torch_cuda_use(int device, const char* why) {
  return commensal::told([device, why] {
    commensal::native_memory(commensal::session_of_gpu()).begin_instead(device, why);
    return std::string();
  });
}
