// SPDX-License-Identifier: Apache-2.0
// Which threads of the process are this project's own, by their numbers.
#pragma once

namespace commensal {

/// Makes a thread known as one of this project's own while this object lives. Own threads write no
/// managed memory while threads are stopped, so nobody waits for them (thread_stopper.h); what a
/// thread is called decides nothing, since others may choose that. It leaves the idle scheduling
/// class, into which it may have been started, where the kernel allows that: others wait for what
/// it does.
///
/// Its number may be another thread's after it has ended: this object must end before. Where there
/// is no room for its number (256 threads), it counts as any other thread. A forked child knows
/// none of its parent's. Thread safety: any thread.
class OwnThread {
 public:
  /// The calling thread.
  OwnThread() noexcept;
  /// @param tid  number of a thread of this process.
  explicit OwnThread(int tid) noexcept;
  ~OwnThread();
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

 private:
  int slot_ = -1;
};

/// Tells whether a thread of this process is such a one. Takes no lock, so it may be asked while
/// threads are stopped.
[[nodiscard]] bool is_own_thread(int tid) noexcept;

}  // namespace commensal
