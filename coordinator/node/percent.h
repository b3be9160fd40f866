// SPDX-License-Identifier: Apache-2.0
// A part of something, for people to read.
#pragma once

#include <cstdio>
#include <string>

namespace commensal::node {

/// Returns a fraction as text: "12.5 %".
[[nodiscard]] inline std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", fraction * 100);
  return text;
}

}  // namespace commensal::node
