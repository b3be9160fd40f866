// SPDX-License-Identifier: Apache-2.0
// How fast jobs are that share a GPU.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/policies/throughput_table.h"

namespace commensal::simulator {

/// Who divides a GPU's time.
enum class Sharing : std::uint8_t {
  kGate,     ///< ours: the guaranteed job first, others in its gaps
  kDefault,  ///< the driver's time slices: everybody alike
  kMps,      ///< all at once: as kDefault, but what one leaves idle is had by the others
  kPairs     ///< as a table of throughputs says of each two models
};

/// What the model goes by; the defaults are what was measured on the CPU (docs/results).
struct SharingModel {
  Sharing sharing = Sharing::kGate;
  double slo = 0.01;  ///< slowdown that guaranteed jobs accept
  double efficiency =
      0.84;           ///< of the oracle's harvest that the gate reaches: the second pair of gate.md
  double busy = 0.6;  ///< share of the time that a job keeps its GPU busy, if not recorded
  double gpu_memory_gib = 0;  ///< of each GPU; zero: all that is asked for fits
  double half_memory = 0.25;  ///< speed with half of its memory on the slower tier: the median of
                              ///< five jobs, memory.md
  double restart = 0;         ///< seconds of work that a job loses each time it is stopped or moved
};

struct SharingSpeeds {
  double guaranteed = 1;     ///< of its speed alone
  double opportunistic = 1;  ///< of each
};

/// Returns the speeds on one GPU. `guaranteed_busy`: the busy share of the guaranteed job alone, 0
/// if there is none; `others`: busy shares alone of the opportunistic ones.
///
/// The gate: the guaranteed job is slower by the SLO at most while somebody is beside it; the
/// others share efficiency x (1 - u / (1 + s)), the oracle of compute sharing, and none is faster
/// than alone. Default: n jobs that want more than the time there is get equal parts of it, and
/// idle time inside of a slice is lost. MPS: the same, without that loss.
[[nodiscard]] SharingSpeeds speeds_on_gpu(const SharingModel& model, double guaranteed_busy,
                                          std::span<const double> others);

/// Returns the part of their memory that opportunistic jobs have on a GPU: what `guaranteed` GiB
/// leave, all alike. 1 where the model knows no size.
[[nodiscard]] double part_in_memory(const SharingModel& model, double guaranteed, double others);

/// Returns the speed of a job that has `part` of its memory on the GPU and the rest on the slower
/// tier: its steps take 1 + (1 / h - 1) (2 (1 - part))^2 times as long, h being `half_memory`. What
/// rests goes first, so the first tenth costs little.
[[nodiscard]] double speed_with(const SharingModel& model, double part);

/// A job on a GPU, as a table of throughputs knows it.
struct PairedJob {
  std::uint32_t profile = 0;
  bool guaranteed = false;
};

/// Returns each job's speed on one GPU of type `type` of the table, 1 being that on the type that
/// durations refer to. Two run at a time, as they were measured together: each of the others in its
/// turn beside a guaranteed job; or, without one, every two of them equally long. What does not fit
/// beside a guaranteed job stands still; others that do not fit together take turns.
[[nodiscard]] std::vector<double> pair_speeds(const policies::ThroughputTable& table,
                                              std::uint32_t type, std::span<const PairedJob> jobs);

/// Makes a model of what a user asks for: `sharing` is gate, slices, mps or pairs (empty: gate);
/// takes slo, harvest, busy, restart, gpu-memory and half-memory out of `options`.
/// @throws std::invalid_argument for another name or a value that cannot be.
[[nodiscard]] SharingModel read_sharing(std::string_view sharing,
                                        std::map<std::string, std::string>& options);

}  // namespace commensal::simulator
