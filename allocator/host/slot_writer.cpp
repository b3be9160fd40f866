// SPDX-License-Identifier: Apache-2.0
// The thread that writes to the spill file.
#include "allocator/host/slot_writer.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <string>

#include "allocator/memory_source.h"

namespace commensal {

SlotWriter::SlotWriter(const SpillFile& file) : file_(file) {
  whole_ = ::mmap(nullptr, kWhole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole_ == MAP_FAILED) {
    throw SourceError(std::string("no memory for buffers: ") + std::strerror(errno));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(whole_);
  buffers_ = static_cast<std::byte*>(whole_) + (kAll - address % kAll) % kAll;
  ::madvise(buffers_, kAll, MADV_HUGEPAGE);
  ::madvise(whole_, kWhole, MADV_DONTFORK);
}

SlotWriter::~SlotWriter() {
  while (!idle()) (void)collect();
  if (thread_ != nullptr) {
    jobs_[submitted_ % kBuffers].size = 0;
    to_write_.release();
    thread_->join();
  }
  if (whole_ != nullptr) ::munmap(whole_, kWhole);
}

void SlotWriter::forget_in_child() noexcept {
  // A thread that is not here can be neither joined nor detached: its handle is never destroyed.
  [[maybe_unused]] static std::thread* forgotten = nullptr;
  forgotten = thread_.release();
  whole_ = nullptr;  // not copied into the child; others may use the addresses
}

void SlotWriter::begin_thread() {
  begun_ = true;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  if (::pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return;
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::exception&) {
    // No thread to be had: `submit` writes itself.
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (thread_ != nullptr) done_.acquire();  // it has its name now
}

void SlotWriter::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "commensal-spill");
  done_.release();
  for (std::uint64_t number = 0;; ++number) {
    to_write_.acquire();
    Job& job = jobs_[number % kBuffers];
    if (job.size == 0) return;
    job.written.error = file_.write(job.slot, job.at, buffer_of(number), job.size);
    done_.release();
  }
}

void SlotWriter::submit(const SpillSlot& slot, std::uint64_t at, std::size_t size, void* owner) {
  if (!begun_) begin_thread();
  Job& job = jobs_[submitted_ % kBuffers];
  job = Job{slot, at, size, Written{owner, 0}};
  const std::byte* const bytes = buffer_of(submitted_);
  ++submitted_;
  if (thread_ != nullptr) {
    to_write_.release();
  } else {
    job.written.error = file_.write(slot, at, bytes, size);
    done_.release();
  }
}

SlotWriter::Written SlotWriter::collect() noexcept {
  done_.acquire();
  return jobs_[collected_++ % kBuffers].written;
}

}  // namespace commensal
