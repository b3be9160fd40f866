// SPDX-License-Identifier: Apache-2.0
// What a session does on a GPU, whosever memory serves there. Internal to torch_ext/cuda.
#pragma once

#include <exception>
#include <string>

#include "torch_ext/cuda/cuda_work_clock.h"
#include "torch_ext/cuda/page_queue.h"
#include "torch_ext/runtime/session.h"

namespace commensal {

/// The name under which sessions know GPUs.
inline constexpr const char* kGpu = "cuda";

/// The time of the process's GPUs. Lives for ever.
[[nodiscard]] CudaWorkClock& work_clock();

/// The active session, which must be one that may use a GPU. @throws SessionError
[[nodiscard]] Session& session_of_gpu();

/// The GPUs of a session, as far as its gate and its waits go. Lives for ever. Thread safety: all,
/// one call at a time.
class SessionGpus {
 public:
  explicit SessionGpus(Session& session) : session_(session) {}

  /// Has the gate go by the time of the session's first GPU, and waits of the job count once that
  /// is idle.
  void follow_first(int device);
  /// The same of another one. @param id  its name, for people.
  void follow_other(int device, const std::string& id);

 private:
  Session& session_;
  PageQueue* queue_ = nullptr;  // null: waits cannot be told so
};

/// Shows the host's waits for a GPU: of a guaranteed job, for another one's ops pass its gate.
void show_waits(const Session& session);

/// Elastic memory of the session's first GPU cannot be had: PyTorch's own is bound by the limit
/// there. @param why  for people.
void fall_back_to_native(Session& session, int device, const std::string& why);

/// Runs `work`, and returns null, or what it or an exception complains of, for Python: valid until
/// the thread's next call.
template <typename Work>
const char* told(Work work) {
  static thread_local std::string complaint;
  try {
    complaint = work();
  } catch (const std::exception& error) {
    complaint = error.what();
    complaint = complaint.substr(0, complaint.find('\n'));  // PyTorch's errors go on with a trace
  }
  return complaint.empty() ? nullptr : complaint.c_str();
}

}  // namespace commensal
