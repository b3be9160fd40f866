// SPDX-License-Identifier: Apache-2.0
// The gate and the waits of a session on GPUs.
#include "torch_ext/cuda/session_gpu.h"

#include <exception>
#include <memory>

#include "torch_ext/cuda/elastic_install.h"
#include "torch_ext/cuda/green_dial.h"
#include "torch_ext/cuda/synchronising_ops.h"
#include "torch_ext/gate/gate.h"

namespace commensal {

CudaWorkClock& work_clock() {
  static CudaWorkClock& clock = *new CudaWorkClock(runtime_cuda_calls(), &cuda_capturing);
  return clock;
}

Session& session_of_gpu() {
  Session* const session = Session::current();
  if (session == nullptr) throw SessionError("commensal has no active session in this process");
  const SessionConfig& config = session->config();
  if (config.device != kGpu && config.later_device != kGpu) {
    throw SessionError("the session manages memory of '" + config.device + "'");
  }
  return *session;
}

void SessionGpus::follow_first(int device) {
  work_clock().watch(device);
  session_.gate().pass_while(&cuda_capturing);
  try {
    session_.follow_queue([device, this](std::atomic<std::uint64_t>& done) {
      auto made = std::make_unique<PageQueue>(device, done, &cuda_capturing);
      queue_ = made.get();
      return made;
    });
  } catch (const SourceError& error) {
    session_.note(std::string("waits are told before the GPU is idle: ") + error.what());
  }
  session_.follow_multiprocessors(
      std::make_unique<GreenDial>(device, torch_current_stream(), &cuda_capturing));
}

void SessionGpus::follow_other(int device, const std::string& id) {
  work_clock().watch(device);
  if (queue_ == nullptr) return;
  try {
    queue_->add(device);
  } catch (const std::exception& error) {
    session_.note("waits are told before " + id + " is idle: " + error.what());
  }
}

void show_waits(const Session& session) {
  if (session.config().job_class == JobClass::kGuaranteed) show_synchronising_ops();
}

}  // namespace commensal
