// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/process.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace commensal::simulated_cuda {

Context::Context(int device, Brake& brake, Fate& fate)
    : device_(device),
      brake_(brake),
      fate_(fate),
      legacy_(std::make_shared<Stream>(device, CU_STREAM_DEFAULT, 0, brake, fate)),
      marker_(std::make_shared<Stream>(device, CU_STREAM_NON_BLOCKING, 0, brake, fate)) {}

Context::Context(Context& primary, std::shared_ptr<GreenPart> part)
    : device_(primary.device_),
      brake_(primary.brake_),
      fate_(primary.fate_),
      primary_(&primary),
      part_(std::move(part)),
      legacy_(std::make_shared<Stream>(device_, CU_STREAM_NON_BLOCKING, 0, brake_, fate_, part_)),
      marker_(std::make_shared<Stream>(device_, CU_STREAM_NON_BLOCKING, 0, brake_, fate_, part_)) {
  primary.adopt(legacy_);
}

void Context::adopt(const std::shared_ptr<Stream>& stream) {
  const MutexLock lock(mutex_);
  std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
  streams_.push_back(stream);
}

std::shared_ptr<Stream> Context::make_stream(unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>(device_, flags, priority, brake_, fate_, part_);
  adopt(stream);
  if (primary_ != nullptr) primary_->adopt(stream);
  return stream;
}

std::shared_ptr<Stream> Context::per_thread() {
  struct Own {
    std::shared_ptr<Stream> stream;
    ~Own() {
      if (stream != nullptr) stream->close();
    }
  };
  thread_local std::map<const Context*, Own> streams;
  Own& own = streams[this];
  if (own.stream == nullptr) own.stream = make_stream(CU_STREAM_DEFAULT, 0);
  return own.stream;
}

std::vector<Ticket> Context::outstanding(bool only_blocking) {
  std::vector<Ticket> tickets;
  for (const auto& weak : streams_) {
    const std::shared_ptr<Stream> stream = weak.lock();
    if (stream == nullptr || (only_blocking && !stream->blocking())) continue;
    if (Ticket last = stream->last(); last.stream != nullptr) tickets.push_back(std::move(last));
  }
  return tickets;
}

Ticket Context::push(const std::shared_ptr<Stream>& stream, std::vector<Ticket> after, Body body) {
  const MutexLock lock(mutex_);
  if (stream == legacy_) {
    for (Ticket& ticket : outstanding(true)) after.push_back(std::move(ticket));
  } else if (stream->blocking()) {
    if (Ticket last = legacy_->last(); last.stream != nullptr) after.push_back(std::move(last));
  }
  return stream->push(std::move(after), std::move(body));
}

void Context::synchronize() {
  std::vector<Ticket> tickets;
  {
    const MutexLock lock(mutex_);
    tickets = outstanding(false);
    tickets.push_back(legacy_->last());
  }
  for (const Ticket& ticket : tickets) ticket.wait();
}

Ticket Context::push_after_all(Body body) {
  const MutexLock lock(mutex_);
  std::vector<Ticket> after = outstanding(false);
  if (Ticket last = legacy_->last(); last.stream != nullptr) after.push_back(std::move(last));
  return marker_->push(std::move(after), std::move(body));
}

CUresult Context::enable_peer(int device) {
  if (device == device_) return CUDA_ERROR_INVALID_DEVICE;
  if (!Process::get().settings.peer_access) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const MutexLock lock(mutex_);
  return peers_.insert(device).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

bool Context::busy() {
  const MutexLock lock(mutex_);
  return legacy_->last().stream != nullptr || !outstanding(false).empty();
}

Process::Process()
    : settings(Settings::from_environment()),
      ledger(settings.ledger, settings.memory, settings.visible),
      memory(settings, ledger),
      copy_bytes_per_second(settings.copy_bytes_per_second),
      kernel_nanoseconds(settings.kernel_nanoseconds) {
  log.fail_from_text(settings.fail);
  log.trace(settings.trace);
  for (int device = 0; device < static_cast<int>(settings.visible.size()); ++device) {
    contexts.push_back(std::make_unique<Context>(device, brake, fate));
  }
  ::pthread_atfork(nullptr, nullptr, [] { get().forked = get().initialized.load(); });
  if (!settings.log.empty()) {
    std::atexit([] {
      if (get().forked) return;
      std::ofstream{get().settings.log} << get().log.json() << '\n';
    });
  }
}

Process& Process::get() {
  static Process* const process = [] {
    try {
      return new Process;
    } catch (const std::exception& error) {
      // The driver's functions have no way to say why; a test must not go on without its machine.
      std::fprintf(stderr, "simulated CUDA: %s\n", error.what());
      std::abort();
    }
  }();
  return *process;
}

CUresult Process::retain(int device, Context** context) {
  if (device < 0 || device >= static_cast<int>(contexts.size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  Context& found = *contexts[static_cast<std::size_t>(device)];
  if (!found.charged.exchange(true) && settings.context_memory > 0) {
    if (!ledger.take(device, settings.context_memory)) {
      found.charged = false;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  ++found.retained;
  *context = &found;
  return CUDA_SUCCESS;
}

CUresult Process::release(int device) {
  Context& context = *contexts[static_cast<std::size_t>(device)];
  if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context.retained == 0 && context.charged.exchange(false)) {
    ledger.give_back(device, settings.context_memory);
  }
  return CUDA_SUCCESS;
}

std::vector<Context*>& Process::stack() {
  thread_local std::vector<Context*> contexts;
  return contexts;
}

Context* Process::current() const { return stack().empty() ? nullptr : stack().back(); }

void Process::set_current(Context* context) {
  auto& contexts_of_thread = stack();
  if (!contexts_of_thread.empty()) contexts_of_thread.pop_back();
  if (context != nullptr) contexts_of_thread.push_back(context);
}

CUresult Process::find_stream(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    Context* context = current();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = handle == CU_STREAM_PER_THREAD ? context->per_thread() : context->legacy();
    return CUDA_SUCCESS;
  }
  *stream = streams.find(handle);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto& part = (*stream)->part();
  return part != nullptr && part->gone ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult Process::submit(const std::shared_ptr<Stream>& stream, CUgraphNodeType type,
                         std::string label, Body body, std::vector<Ticket> after) {
  if (const auto recorded = captures.record(stream, type, std::move(label), body)) {
    return *recorded;
  }
  Context& context = *contexts[static_cast<std::size_t>(stream->device())];
  if (stream == context.legacy()) {
    if (const CUresult error = captures.check_legacy_stream(); error != CUDA_SUCCESS) {
      return error;
    }
  }
  context.push(stream, std::move(after), std::move(body));
  return CUDA_SUCCESS;
}

}  // namespace commensal::simulated_cuda
