// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_exchange.h"

#include <fmt/format.h>

#include <random>

namespace commensal::cluster {

std::string new_run() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace commensal::cluster
