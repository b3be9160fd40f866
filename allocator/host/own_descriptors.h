// SPDX-License-Identifier: Apache-2.0
// A table of file descriptors that is ours alone, beside the program's.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

/// The numbers of descriptors belong to the program: it may close all of them, open others in their
/// place, and start with 0, 1 and 2 closed. A number that was kept may be a file of the user's by
/// the time it is used, and no check before the use can exclude that. So what this project opens in
/// a process lives in a second table, that of two threads of ours and of those that they start
/// (the kernel keeps a table a thread; threads share one unless they ask not to). No call of the
/// program reaches it, its numbers mean nothing there, and a forked child inherits none of it.
///
/// Whoever works with a descriptor does so on a thread of the table: in `run`, in `quick`, or on a
/// thread begun by `start_thread`. In that table 0, 1 and 2 lead nowhere: what is written to
/// standard error there is lost (`write_line`).
namespace commensal::own_descriptors {

/// Makes the table and its threads if this process has none yet; a forked child has none.
/// @throws std::system_error without memory for a thread.
void begin();

/// Returns why the table is the program's own after all, or an empty text. Begins.
[[nodiscard]] const std::string& refusal();

/// Does `work` on a thread of the table and waits; whatever it throws comes back. Calls wait for
/// each other. Must not be called while threads are stopped. Begins.
void run_there(const std::function<void()>& work);

template <typename Work>
std::invoke_result_t<Work> run(Work&& work) {
  if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
    run_there(std::forward<Work>(work));
  } else {
    std::invoke_result_t<Work> result{};
    run_there([&] { result = work(); });
    return result;
  }
}

/// Writes a line to the program's standard error; a thread of ours keeps the program's table for
/// it. Writes nothing rather than elsewhere: where the process began without a standard error, or
/// where its number is by now another regular file, not opened for appending. Does not wait for a
/// reader. Begins.
void write_line(const std::string& line);

/// Starts a thread of the table. It blocks all signals. Begins.
/// @throws std::system_error without memory for one.
[[nodiscard]] std::thread start_thread(std::function<void()> body);

/// Does `work` on a thread of the table and returns its result. `work` makes system calls that end
/// soon, takes no lock and allocates nothing: also for use while threads are stopped. -EBADF where
/// nobody has begun: then no descriptor is in the table either.
long quick(long (*work)(void* context) noexcept, void* context) noexcept;

template <typename Work>
long quick(Work work) noexcept {
  return quick([](void* context) noexcept -> long { return (*static_cast<Work*>(context))(); },
               &work);
}

long call_words(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                long f = 0) noexcept;

template <typename Argument>
long word(Argument argument) noexcept {
  if constexpr (std::is_pointer_v<Argument>) {
    return reinterpret_cast<long>(argument);
  } else {
    return static_cast<long>(argument);
  }
}

/// Makes one system call in the table, under the conditions of `quick`. Returns what the kernel
/// returns: a negative errno for an error.
template <typename... Arguments>
long call(long number, Arguments... arguments) noexcept {
  return call_words(number, word(arguments)...);
}

/// Closes a descriptor of the table. Does nothing for a number below 0, and in a process that has
/// no table: a forked child.
void close(int fd) noexcept;

/// For tests, and for `begin`: gives the calling thread an empty table of its own.
/// @param at_once  false: as on kernels before 5.9.
/// @return 0 or an errno.
[[nodiscard]] int leave_shared_table(bool at_once = true) noexcept;

}  // namespace commensal::own_descriptors
