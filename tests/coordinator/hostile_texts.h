// SPDX-License-Identifier: Apache-2.0
// Texts that end a parser which recurses or tries again, and a stack that is soon at its end.
#pragma once

#include <pthread.h>

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>

#include "tests/sanitizers.h"

namespace commensal::testing {

inline std::string repeated(std::string_view piece, std::size_t bytes) {
  std::string text;
  text.reserve(bytes);
  while (text.size() + piece.size() <= bytes) text += piece;
  return text;
}

/// Long texts by what they are, none longer than `bytes`.
inline std::map<std::string, std::string> long_texts(std::size_t bytes) {
  const std::string open = repeated("[", bytes / 2);
  return {{"brackets", repeated("[", bytes)},
          {"brackets, closed", open + std::string(open.size(), ']')},
          {"objects", repeated(R"({"a":)", bytes)},
          {"a letter", std::string(bytes, 'x')},
          {"a letter in quotes", '"' + std::string(bytes - 2, 'x') + '"'},
          {"digits", std::string(bytes, '7')},
          {"spaces", std::string(bytes, ' ')},
          {"lines", std::string(bytes, '\n')},
          {"bars", std::string(bytes, '|')},
          {"empty elements", '[' + repeated("{},", bytes - 3) + "0]"},
          {"no UTF-8", std::string(bytes, '\xff')}};
}

/// Calls `body` on a thread with a stack of 256 KiB (of 2 MiB under a sanitizer, whose frames are
/// larger); what it throws comes out.
inline void on_a_small_stack(const std::function<void()>& body) {
  constexpr std::size_t kStack = std::size_t{kSanitized ? 2048 : 256} << 10U;
  struct Call {
    const std::function<void()>& body;
    std::exception_ptr thrown;
  } call{body, nullptr};
  const auto main = [](void* argument) -> void* {
    Call& called = *static_cast<Call*>(argument);
    try {
      called.body();
    } catch (...) {
      called.thrown = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_t thread{};
  int problem = pthread_attr_setstacksize(&attributes, kStack);
  if (problem == 0) problem = pthread_create(&thread, &attributes, main, &call);
  pthread_attr_destroy(&attributes);
  if (problem != 0) throw std::system_error(problem, std::generic_category(), "a thread");
  pthread_join(thread, nullptr);
  if (call.thrown) std::rethrow_exception(call.thrown);
}

}  // namespace commensal::testing
