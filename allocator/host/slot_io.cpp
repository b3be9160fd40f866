// SPDX-License-Identifier: Apache-2.0
// The threads that write to the spill file and read from it.
#include "allocator/host/slot_io.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <string>

#include "allocator/host/own_descriptors.h"
#include "allocator/host/own_threads.h"
#include "allocator/memory_source.h"

namespace commensal {

SlotIo::SlotIo(const SpillFile& file) : file_(file) {
  whole_ = ::mmap(nullptr, kWhole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole_ == MAP_FAILED) {
    throw SourceError(std::string("no memory for buffers: ") + std::strerror(errno));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(whole_);
  buffers_ = static_cast<std::byte*>(whole_) + (kAll - address % kAll) % kAll;
  ::madvise(buffers_, kAll, MADV_HUGEPAGE);
  ::madvise(whole_, kWhole, MADV_DONTFORK);
}

SlotIo::~SlotIo() {
  while (!idle()) (void)collect();
  for (Worker& worker : workers_) {
    if (worker.thread == nullptr) continue;
    worker.request.size = 0;
    worker.begun.release();
    worker.thread->join();
  }
  if (whole_ != nullptr) ::munmap(whole_, kWhole);
}

void SlotIo::forget_in_child() noexcept {
  // Threads that are not here can be neither joined nor detached: their handles are never
  // destroyed.
  [[maybe_unused]] static std::array<std::thread*, kAtOnce> forgotten{};
  for (std::size_t i = 0; i < kAtOnce; ++i) forgotten[i] = workers_[i].thread.release();
  whole_ = nullptr;  // not copied into the child; others may use the addresses
}

void SlotIo::begin_threads() {
  begun_ = true;
  try {
    for (Worker& worker : workers_) {
      worker.thread = std::make_unique<std::thread>(
          own_descriptors::start_thread([this, &worker] { run(worker); }));
      worker.ended.acquire();  // it is known as our own now
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // No thread to be had: `submit` does the work itself.
  }
}

void SlotIo::run(Worker& worker) noexcept {
  const OwnThread own;
  ::pthread_setname_np(::pthread_self(), "commensal-spill");
  worker.ended.release();
  for (;;) {
    worker.begun.acquire();
    if (worker.request.size == 0) return;
    carry_out(worker.request, SpillFile::Caller::kOwnThread);
    worker.ended.release();
  }
}

void SlotIo::carry_out(Request& request, SpillFile::Caller caller) const noexcept {
  request.done.error =
      request.from != nullptr
          ? file_.write(request.slot, request.at, request.from, request.size, caller)
          : file_.read(request.slot, request.at, request.to, request.size, caller);
}

void SlotIo::submit(const Request& request) {
  if (!begun_) begin_threads();
  Worker& worker = workers_[submitted_ % kAtOnce];
  worker.request = request;
  ++submitted_;
  if (worker.thread != nullptr) {
    worker.begun.release();
  } else {
    carry_out(worker.request, SpillFile::Caller::kAnyThread);
    worker.ended.release();
  }
}

void SlotIo::write(const SpillSlot& slot, std::uint64_t at, const std::byte* bytes,
                   std::size_t size, void* owner) {
  submit(Request{slot, at, bytes, nullptr, size, Done{owner, 0}});
}

void SlotIo::read(const SpillSlot& slot, std::uint64_t at, std::byte* bytes, std::size_t size,
                  void* owner) {
  submit(Request{slot, at, nullptr, bytes, size, Done{owner, 0}});
}

SlotIo::Done SlotIo::collect() noexcept {
  Worker& worker = workers_[collected_++ % kAtOnce];
  worker.ended.acquire();
  return worker.request.done;
}

}  // namespace commensal
