// SPDX-License-Identifier: Apache-2.0
// An op callback that does nothing: what PyTorch itself takes for calling one.
#include <ATen/record_function.h>

#include <cstdint>
#include <memory>

namespace {
std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) { return nullptr; }
void end(const at::RecordFunction&, at::ObserverContext*) {}
}  // namespace

extern "C" {
/// Adds the callback for all threads; returns its handle for `remove_empty_callback`.
std::uint64_t add_empty_callback() {
  return at::addGlobalCallback(
      at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
}
void remove_empty_callback(std::uint64_t handle) { at::removeCallback(handle); }
}
