// SPDX-License-Identifier: Apache-2.0
// The variables that a rank starts with.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {

using Environment = std::map<std::string, std::string>;

/// Where a rank stands among all of them, as torchrun counts.
struct RankNumbers {
  std::size_t rank = 0;
  std::size_t world = 1;
  std::size_t local_rank = 0;
  std::size_t local_world = 1;
  std::size_t group = 0;   ///< number of its node among those of the placement, in their order
  std::size_t groups = 1;  ///< nodes of the placement
  bool operator==(const RankNumbers&) const = default;
};
[[nodiscard]] std::vector<RankNumbers> number_ranks(const std::vector<DevicePlace>& devices);

/// What all ranks of an attempt have in common.
struct RankContext {
  Attempt attempt;
  const HeldJob& held;
  const Placed& placed;
  int port = 0;        ///< where the ranks meet
  std::string keeper;  ///< of the mark
};

/// NAME=value of the variable by which processes of an attempt are known when their keeper is gone.
[[nodiscard]] std::string keeper_mark(const std::string& keeper);

/// Returns a rank's variables: those of `base` without what belongs to the one who started us, then
/// those of its node, then the job's own, then those that say who the rank is. Pure.
///
/// One rank gets none of torchrun's; several, and the one of a gang's pre-run, get all, whatever
/// the job's own say.
/// CUDA_VISIBLE_DEVICES is the rank's device; of a rank without a GPU it is the job's own, or
/// absent.
[[nodiscard]] Environment rank_environment(Environment base, const RankContext& context,
                                           const RankNumbers& numbers);

}  // namespace commensal::cluster::local
