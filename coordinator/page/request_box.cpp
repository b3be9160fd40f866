// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/request_box.h"

#include <algorithm>

namespace commensal::page {

using nlohmann::json;

RequestBox::RequestBox(std::function<void()> wake, std::size_t most)
    : wake_(std::move(wake)), most_(most) {}

std::optional<json> RequestBox::ask(json request, std::chrono::milliseconds patience) {
  Number number = 0;
  {
    const MutexLock lock{mutex_};
    if (closed_ || answers_.size() >= most_) return std::nullopt;
    number = next_++;
    arrived_.emplace_back(number, std::move(request));
    answers_.emplace(number, std::nullopt);
  }
  wake_();
  const auto end = std::chrono::steady_clock::now() + patience;
  const MutexLock lock{mutex_};
  while (!answers_.at(number) && !closed_) {
    if (answered_.wait_until(mutex_, end) == std::cv_status::timeout) break;
  }
  std::optional<json> answer = std::move(answers_.at(number));
  answers_.erase(number);
  // Not taken yet: nobody is to carry out what its sender was told has failed.
  if (!answer) std::erase_if(arrived_, [&](const Request& one) { return one.first == number; });
  return answer;
}

std::vector<RequestBox::Request> RequestBox::take() {
  const MutexLock lock{mutex_};
  return std::exchange(arrived_, {});
}

void RequestBox::answer(Number number, json answer) {
  {
    const MutexLock lock{mutex_};
    const auto waiting = answers_.find(number);
    if (waiting == answers_.end()) return;
    waiting->second = std::move(answer);
  }
  answered_.notify_all();
}

void RequestBox::close() {
  {
    const MutexLock lock{mutex_};
    closed_ = true;
  }
  answered_.notify_all();
}

}  // namespace commensal::page
