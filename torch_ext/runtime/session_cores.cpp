// SPDX-License-Identifier: Apache-2.0
// Which of the machine's CPUs the session's threads keep to, and with how many threads ops compute.
#include <exception>

#include "allocator/base/relaxed.h"
#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

/// Where no step ends for so long, the client's thread moves the threads itself: that is right
/// anywhere, a step's border is only the best moment.
constexpr Duration kWithoutStep = std::chrono::seconds{1};

}  // namespace

void Session::Impl::follow_cores(TimePoint now) {
  const auto word = observer.cores_left(now);
  if (!word) return;  // it is being written: the next look sees it
  CoreWish wish;
  wish.coordinator_alive = word->coordinator_alive;
  wish.guaranteed_present = word->guaranteed_present;
  wish.left = word->left;
  {
    const MutexLock lock(mutex);
    wish.wanted = terms.affinity;
    wish.opportunistic = job_class == JobClass::kOpportunistic;
  }
  bool late = false;
  {
    const MutexLock lock(cores_mutex);
    wish.own = keeper.own();
    CoreChoice choice = choose_cores(wish);
    cores_reason = std::move(choice.reason);
    if (choice.cores && *choice.cores != cores_wanted) {
      cores_wanted = *choice.cores;
      cores_due_since = now;
      cores_due.store(true, kRelaxed);
    }
    late = cores_due.load(kRelaxed) && now - cores_due_since >= kWithoutStep;
  }
  if (late) apply_cores();
}

void Session::Impl::apply_cores() noexcept {
  try {
    CoreKeeper::Result result;
    {
      const MutexLock lock(cores_mutex);
      cores_due.store(false, kRelaxed);
      if (cores_wanted == keeper.now()) return;
      result = keeper.apply(cores_wanted);
      threads_left_alone = result.left_alone;
    }
    if (result.failed > 0) note("not all threads changed their CPUs: " + result.reason);
  } catch (const std::exception& error) {
    note(std::string("changing CPUs failed: ") + error.what());
  }
}

void Session::Impl::follow_thread_count() noexcept {
  if (!config.elastic_threads) return;
  auto* const get = get_thread_count.load(std::memory_order_acquire);
  auto* const set = set_thread_count.load(std::memory_order_acquire);
  if (get == nullptr || set == nullptr) return;
  if (cores_due.load(kRelaxed)) apply_cores();
  const int now = get();
  std::optional<int> count;
  {
    const MutexLock lock(cores_mutex);
    count =
        elastic.follow(now, keeper.confined() ? std::optional{keeper.now().count()} : std::nullopt);
    if (count) thread_count = *count;
  }
  if (count) set(*count);
}

StatisticsView::Cores Session::Impl::cores_view() const {
  const MutexLock lock(cores_mutex);
  return {keeper.now().to_string(), keeper.own().to_string(), cores_reason,
          threads_left_alone,       config.elastic_threads,   thread_count};
}

}  // namespace commensal
