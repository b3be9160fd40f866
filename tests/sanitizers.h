// SPDX-License-Identifier: Apache-2.0
// Whether this build is one of a sanitizer.
#pragma once

namespace commensal::testing {

/// With AddressSanitizer or ThreadSanitizer, by GCC or Clang: everything takes several times as
/// long, and freed memory is kept for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace commensal::testing
