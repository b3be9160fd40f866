// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/node_status.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/wire/json_text.h"

namespace commensal::page {

using nlohmann::json;

NodeStatus::NodeStatus(Board& board, Ask ask, Duration period, std::string name)
    : board_(board), ask_(std::move(ask)), period_(period), name_(std::move(name)) {}

void NodeStatus::refresh(TimePoint now) {
  {
    const MutexLock lock{mutex_};
    if (asking_ || (asked_ && now < last_ + period_)) return;
    asking_ = asked_ = true;
    last_ = now;
  }
  json part{{"name", name_}, {"status", nullptr}, {"problem", ""}};
  try {
    part["status"] = wire::parse_json(ask_());
  } catch (const std::exception& error) {
    part["problem"] = error.what();
  }
  board_.put({{"node", part.dump(-1, ' ', false, json::error_handler_t::replace)}});
  const MutexLock lock{mutex_};
  asking_ = false;
}

}  // namespace commensal::page
