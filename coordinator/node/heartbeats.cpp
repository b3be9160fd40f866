// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/heartbeats.h"

#include <fmt/format.h>

#include <stdexcept>

namespace commensal::node {

void Heartbeats::check(std::uint64_t beat) const {
  if (beat <= sent_ && beat > answered_) return;
  throw std::invalid_argument(
      fmt::format("it answers heartbeat {}, not one of {} to {}: it is old, or sent again", beat,
                  answered_ + 1, sent_));
}

}  // namespace commensal::node
