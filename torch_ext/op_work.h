// SPDX-License-Identifier: Apache-2.0
// What an op keeps busy, by its name: arithmetic or memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace commensal {

/// What bounds the speed of an op with inputs of some size.
enum class OpWork : std::uint8_t {
  kUnknown,  ///< calls other ops, touches no data, or is not known
  kCompute,  ///< products of matrices and convolutions: many operations for each byte
  kMemory    ///< all else that works through its data once: elementwise, reductions, copies
};
[[nodiscard]] std::string_view to_string(OpWork work) noexcept;

/// Returns the kind of work of a dispatcher op that does its work itself ("aten::addmm"). Ops that
/// hand it to others ("aten::linear") are unknown, so that nothing counts twice.
[[nodiscard]] OpWork op_work(std::string_view name) noexcept;

}  // namespace commensal
