// SPDX-License-Identifier: Apache-2.0
// Feeds PyTorch's USER_SCOPE ranges (optimizer steps, data fetches) to the step tracker.
#include "torch_ext/range_callback.h"

#include <ATen/record_function.h>

#include <atomic>
#include <utility>

#include "torch_ext/op_kind.h"
#include "torch_ext/runtime/session.h"
#include "torch_ext/thread_shield.h"

namespace commensal {
namespace {

std::atomic<Session*> g_ranges_of{nullptr};  // null before installation and in a forked child

// Keeps a communication range's thread out of the gate until the range ends, wherever it does.
class ShieldedRange final : public at::ObserverContext {
 public:
  ShieldedRange(ShieldCount count, Session* counts) : count_(std::move(count)), counts_(counts) {
    count_->fetch_add(1, std::memory_order_relaxed);
    if (counts_ != nullptr) counts_->collective_begin();
  }
  ~ShieldedRange() override {
    count_->fetch_sub(1, std::memory_order_relaxed);
    if (counts_ != nullptr) counts_->collective_end();
  }

 private:
  ShieldCount count_;
  Session* counts_;  // the session that counts it; null: it is no collective
};

std::unique_ptr<at::ObserverContext> on_range_begin(const at::RecordFunction& range) {
  Session* const session = g_ranges_of.load(std::memory_order_acquire);
  if (is_communication_range(range.name())) {
    Session* const counts = is_collective_range(range.name()) ? session : nullptr;
    return std::make_unique<ShieldedRange>(this_thread_shield(), counts);
  }
  if (session != nullptr && !range.isAsync()) session->range_begin(range.name());
  return nullptr;
}

void on_range_end(const at::RecordFunction& range, at::ObserverContext* shielded) {
  if (shielded != nullptr) return;  // its owner destroys it now, which ends the shield
  Session* const session = g_ranges_of.load(std::memory_order_acquire);
  if (session != nullptr && !range.isAsync()) session->range_end(range.name());
}

}  // namespace

const ShieldCount& this_thread_shield() {
  struct Own {
    ShieldCount count = std::make_shared<std::atomic<int>>(0);
    Own() { t_shield_count = count.get(); }
    ~Own() { t_shield_count = nullptr; }
  };
  thread_local const Own own;
  return own.count;
}

void install_range_callback(Session& session) {
  g_ranges_of.store(&session, std::memory_order_release);
  at::addGlobalCallback(at::RecordFunctionCallback(&on_range_begin, &on_range_end)
                            .scopes({at::RecordScope::USER_SCOPE}));
}

void disarm_range_callback_in_child() noexcept {
  g_ranges_of.store(nullptr, std::memory_order_release);
}

}  // namespace commensal
