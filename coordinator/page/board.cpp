// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/board.h"

#include <fmt/format.h>

#include <iterator>

namespace commensal::page {

using std::chrono::steady_clock;

std::string Snapshot::json(std::uint64_t after) const {
  std::string text = fmt::format("{{\"version\":{}", version);
  for (const auto& [name, part] : parts) {
    if (part.version > after)
      fmt::format_to(std::back_inserter(text), ",\"{}\":{}", name, *part.text);
  }
  return text += '}';
}

Board::Board(std::function<void()> wake, int most_listeners)
    : wake_(std::move(wake)),
      most_listeners_(most_listeners),
      snapshot_(std::make_shared<const Snapshot>()) {}

void Board::put(std::map<std::string, std::string> parts) {
  {
    const MutexLock lock{mutex_};
    Snapshot next = *snapshot_;  // texts are shared
    ++next.version;
    bool news = false;
    for (auto& [name, text] : parts) {
      Part& part = next.parts[name];
      if (part.text && *part.text == text) continue;
      part = {std::make_shared<const std::string>(std::move(text)), next.version};
      news = true;
    }
    if (!news) return;
    snapshot_ = std::make_shared<const Snapshot>(std::move(next));
  }
  changed_.notify_all();
}

std::uint64_t Board::asked() const {
  const MutexLock lock{mutex_};
  return asked_;
}

void Board::answered(std::uint64_t question) {
  {
    const MutexLock lock{mutex_};
    if (question <= answered_) return;
    answered_ = question;
  }
  changed_.notify_all();
}

int Board::listeners() const {
  const MutexLock lock{mutex_};
  return listeners_;
}

std::shared_ptr<const Snapshot> Board::fresh(std::chrono::milliseconds patience) {
  std::uint64_t question = 0;
  {
    const MutexLock lock{mutex_};
    question = ++asked_;
  }
  wake_();
  const auto end = steady_clock::now() + patience;
  const MutexLock lock{mutex_};
  while (answered_ < question && !closed_) {
    if (changed_.wait_until(mutex_, end) == std::cv_status::timeout) break;
  }
  return snapshot_;
}

std::shared_ptr<const Snapshot> Board::newer(std::uint64_t after,
                                             std::chrono::milliseconds patience) {
  const auto end = steady_clock::now() + patience;
  const MutexLock lock{mutex_};
  while (snapshot_->version <= after && !closed_) {
    if (changed_.wait_until(mutex_, end) == std::cv_status::timeout) break;
  }
  return snapshot_->version > after && !closed_ ? snapshot_ : nullptr;
}

std::optional<Board::Listener> Board::listen() {
  {
    const MutexLock lock{mutex_};
    if (closed_ || listeners_ >= most_listeners_) return std::nullopt;
    ++listeners_;
  }
  wake_();
  return std::optional<Listener>{std::in_place, *this};
}

Board::Listener::~Listener() {
  if (board_ == nullptr) return;
  const MutexLock lock{board_->mutex_};
  --board_->listeners_;
}

void Board::close() {
  {
    const MutexLock lock{mutex_};
    closed_ = true;
  }
  changed_.notify_all();
}

bool Board::closed() const {
  const MutexLock lock{mutex_};
  return closed_;
}

}  // namespace commensal::page
