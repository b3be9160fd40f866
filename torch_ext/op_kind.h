// SPDX-License-Identifier: Apache-2.0
// Which of the events that PyTorch reports are ops that may have to wait, decided by name.
#pragma once

#include <cstdint>
#include <string_view>

namespace commensal {

/// What the names of PyTorch's own ops begin with.
inline constexpr std::string_view kAten = "aten::";

/// What an event is to the gate.
enum class OpKind : std::uint8_t {
  kUnknown,      ///< not looked at yet
  kTransparent,  ///< not counted: what runs inside is judged as if it stood alone
  kOp,           ///< works on data: waits if it is its thread's outermost one
  kCollective,   ///< never waits, nor does anything inside: other ranks are waiting for it
  kRegion        ///< transparent, and waits at its own entry: its kernels may report nothing
};

/// Returns the kind of a FUNCTION event.
///
/// @param name           "aten::add", "c10d::allreduce_", "autograd::engine::evaluate_function: X"
/// @param is_dispatcher  the event belongs to a dispatcher op: its name begins with "aten::", or
///                       it has an operator name. Everything else wraps whole regions of ops.
///
/// Ops that touch no data (views, metadata, empty tensors) are transparent rather than exempt: a
/// composite such as `aten::reshape` that does have to copy does so in an op of its own, and that
/// one waits.
[[nodiscard]] OpKind op_kind(std::string_view name, bool is_dispatcher) noexcept;

/// Returns whether an op does nothing but allocate. Where that takes calls of a driver, it is no op
/// that touches no data: those calls take locks that the whole machine shares (C14).
[[nodiscard]] bool only_allocates(std::string_view name) noexcept;

/// Returns whether a wrapper's name is that of a compiled region.
[[nodiscard]] bool is_compiled_region(std::string_view name) noexcept;

/// Returns whether a USER_SCOPE range runs on a thread of a communication library ("gloo:...").
[[nodiscard]] bool is_communication_range(std::string_view name) noexcept;

/// Returns whether such a range is one that every rank of its group begins: not a message from one
/// rank to another ("gloo:send").
[[nodiscard]] bool is_collective_range(std::string_view name) noexcept;

}  // namespace commensal
