// SPDX-License-Identifier: Apache-2.0
// Which of the events that PyTorch reports are ops that may have to wait, decided by name.
#include "torch_ext/op_kind.h"

#include <algorithm>
#include <array>

namespace commensal {
namespace {

// Sorted, for binary search. Why each group touches no data:
// - views share their base's storage, and arrive with Python's lock held from indexing;
// - composites (reshape, contiguous, to, item, ...) call another op when they do have to copy or
//   read, and that op waits;
// - metadata queries and setters read or write the tensor object alone;
// - empty tensors only allocate: holding them back would stop the allocator, not the cores.
constexpr auto kTouchNoData = std::to_array<std::string_view>({
    "_conj",
    "_efficientzerotensor",
    "_fw_primal",
    "_has_compatible_shallow_copy_type",
    "_is_zerotensor",
    "_make_dual",
    "_neg_view",
    "_reshape_alias",
    "_unpack_dual",
    "_unsafe_view",
    "_version",
    "adjoint",
    "alias",
    "align_to",
    "as_strided",
    "as_strided_",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_tensors",
    "broadcast_to",
    "can_cast",
    "chunk",
    "conj",
    "contiguous",
    "data",
    "dense_dim",
    "detach",
    "detach_",
    "diagonal",
    "dim",
    "dsplit",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "expand",
    "expand_as",
    "flatten",
    "hsplit",
    "imag",
    "is_coalesced",
    "is_complex",
    "is_conj",
    "is_contiguous",
    "is_distributed",
    "is_floating_point",
    "is_inference",
    "is_leaf",
    "is_neg",
    "is_nonzero",
    "is_pinned",
    "is_same_size",
    "is_set_to",
    "is_signed",
    "item",
    "lift",
    "lift_fresh",
    "linalg_diagonal",
    "mH",
    "mT",
    "matrix_H",
    "moveaxis",
    "movedim",
    "narrow",
    "new_empty",
    "new_empty_strided",
    "numel",
    "numpy_T",
    "output_nr",
    "permute",
    "positive",
    "promote_types",
    "ravel",
    "real",
    "refine_names",
    "rename",
    "rename_",
    "requires_grad_",
    "reshape",
    "reshape_as",
    "resolve_conj",
    "resolve_neg",
    "result_type",
    "retain_grad",
    "retains_grad",
    "select",
    "set_",
    "set_data",
    "size",
    "slice",
    "sparse_dim",
    "split",
    "split_with_sizes",
    "squeeze",
    "squeeze_",
    "storage_offset",
    "stride",
    "swapaxes",
    "swapdims",
    "sym_is_contiguous",
    "sym_numel",
    "sym_size",
    "sym_storage_offset",
    "sym_stride",
    "t",
    "t_",
    "tensor_split",
    "to",
    "transpose",
    "transpose_",
    "type_as",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "unsqueeze_",
    "view",
    "view_as",
    "view_as_complex",
    "view_as_real",
    "vsplit",
});
static_assert(std::ranges::is_sorted(kTouchNoData));

// `new_empty` and the like make one of these, which is an event of its own.
constexpr auto kOnlyAllocate =
    std::to_array<std::string_view>({"empty", "empty_like", "empty_permuted", "empty_strided"});
static_assert(std::ranges::is_sorted(kOnlyAllocate));

// A rank that waits inside a collective would stop every other rank of its job.
constexpr auto kCollectiveNamespaces =
    std::to_array<std::string_view>({"c10d::", "_c10d_functional::", "_c10d_functional_autograd::",
                                     "c10d_functional::", "_dtensor::", "symm_mem::"});

// The profiler's own bookkeeping.
constexpr std::string_view kProfiler = "profiler::";

bool touches_no_data(std::string_view aten_op) noexcept {
  return std::ranges::binary_search(kTouchNoData, aten_op);
}

}  // namespace

OpKind op_kind(std::string_view name, bool is_dispatcher) noexcept {
  if (!is_dispatcher) {
    return is_compiled_region(name) ? OpKind::kRegion : OpKind::kTransparent;
  }
  if (name.starts_with(kAten)) {
    return touches_no_data(name.substr(kAten.size())) ? OpKind::kTransparent : OpKind::kOp;
  }
  if (name.starts_with(kProfiler)) return OpKind::kTransparent;
  const bool is_collective = std::ranges::any_of(
      kCollectiveNamespaces, [&](std::string_view prefix) { return name.starts_with(prefix); });
  return is_collective ? OpKind::kCollective : OpKind::kOp;
}

bool only_allocates(std::string_view name) noexcept {
  return name.starts_with(kAten) &&
         std::ranges::binary_search(kOnlyAllocate, name.substr(kAten.size()));
}

bool is_compiled_region(std::string_view name) noexcept {
  // The second is the backward half of a compiled region, which has no region event of its own.
  return name.starts_with("Torch-Compiled Region") ||
         name == "autograd::engine::evaluate_function: CompiledFunctionBackward";
}

bool is_communication_range(std::string_view name) noexcept {
  return name.starts_with("gloo:") || name.starts_with("nccl:") || name.starts_with("mpi:") ||
         name.starts_with("ucc:");
}

bool is_collective_range(std::string_view name) noexcept {
  if (!is_communication_range(name)) return false;
  const std::string_view what = name.substr(name.find(':') + 1);
  // "recvAnySource", "send 0->1"
  return !what.starts_with("send") && !what.starts_with("recv");
}

}  // namespace commensal
