// SPDX-License-Identifier: Apache-2.0
// ThreadSanitizer cannot see how the installed libzmq, which is not instrumented, orders its own
// threads: what happens inside of it is not reported. Everything of ours still is.

#if defined(__SANITIZE_THREAD__)
#define COMMENSAL_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COMMENSAL_UNDER_TSAN 1
#endif
#endif

#if defined(COMMENSAL_UNDER_TSAN)
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\nrace:libzmq.so\n";
}
#endif
