// SPDX-License-Identifier: Apache-2.0
// How tests steer the simulated machine: C functions of libcuda.so.1, also for Python's ctypes.
//
// Functions go by the name that programs write (cuMemAlloc, cudaMalloc). Safe from any thread,
// also where CUDA calls are not (host functions, forked children).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Lets call number `nth` of a function, counted from 1 and from now, and the `times - 1` calls
/// after it (0: all after it) fail with `error` (a CUresult or cudaError_t).
void simulated_cuda_fail(const char* function, uint64_t nth, int error, uint64_t times);

/// Calls of a function so far; those made while any capture was under way; those that failed on
/// demand.
uint64_t simulated_cuda_calls(const char* function);
uint64_t simulated_cuda_calls_while_capturing(const char* function);
uint64_t simulated_cuda_calls_refused(const char* function);

/// Argument number `index` (0 to 7) of the last call, pointers and integers as they are.
uint64_t simulated_cuda_last_argument(const char* function, unsigned index);

/// The whole log as JSON, NUL-terminated. @return the bytes needed; nothing is cut in `text` if
/// `size` is at least that.
size_t simulated_cuda_log(char* text, size_t size);

/// Forgets all counts and the failures that are still to come.
void simulated_cuda_clear(void);

/// Launches of a kernel by name, as its library registered it.
uint64_t simulated_cuda_launches(const char* kernel);

/// Launches, or captured launches, of all kernels into streams of green contexts with so many
/// multiprocessors; 0: into any other stream.
uint64_t simulated_cuda_launches_on(unsigned multiprocessors);

/// Stops all streams before their next piece of work, until let go: events pend, memory is busy.
void simulated_cuda_hold(void);
void simulated_cuda_let_go(void);

/// Speed of copies and fills (0: instantly), time of each kernel; from the next slice or kernel.
void simulated_cuda_set_copy_speed(uint64_t bytes_per_second);
void simulated_cuda_set_kernel_time(uint64_t nanoseconds);

/// Bytes taken of a device, by all processes of the machine.
uint64_t simulated_cuda_used(int device);

/// Copies between the program's memory and device memory at once, past streams and the log.
/// @return 0, or a CUresult.
int simulated_cuda_peek(void* to, uint64_t device_address, size_t bytes);
int simulated_cuda_poke(uint64_t device_address, const void* from, size_t bytes);

/// Says what a kernel does. `body` runs on the stream's thread and gets pointers to copies of the
/// `count` arguments, `sizes[i]` bytes each; it reaches device memory by peek and poke. What it
/// returns is the kernel's CUresult; anything but 0 ends all work of the process.
void simulated_cuda_define_kernel(const char* name, const size_t* sizes, size_t count,
                                  int (*body)(void** arguments));

#ifdef __cplusplus
}
#endif
