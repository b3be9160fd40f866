// SPDX-License-Identifier: Apache-2.0
// What the card says of itself through NVML. Reads only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace probes {

struct CardState {
  unsigned sm_clock_mhz;
  unsigned memory_clock_mhz;
  unsigned temperature_c;
  double power_w;
};

/// Version of the installed driver, "580.95.05"; empty where NVML does not tell.
std::string driver_version();

/// Clocks, power and temperature of the card with this UUID now; nothing where NVML does not tell.
std::optional<CardState> card_state(const std::string& uuid);

/// Bytes of a card: what any process could have, and what this process holds (0: it is not shown,
/// as in another PID namespace).
struct CardUse {
  std::uint64_t free;
  std::uint64_t own;
};

/// Nothing where NVML does not tell.
std::optional<CardUse> card_use(const std::string& uuid);

/// Compute mode of the card (0: default); nothing where NVML does not tell.
std::optional<unsigned> compute_mode(const std::string& uuid);

}  // namespace probes
