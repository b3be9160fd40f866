// SPDX-License-Identifier: Apache-2.0
// Kernels of aten::_local_scalar_dense and aten::copy_ that tell the session what they did.
#include "torch_ext/cuda/synchronising_ops.h"

#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/copy_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "torch_ext/runtime/session.h"

namespace commensal {
namespace {

at::Scalar scalar_of(const at::Tensor& self) {
  at::Scalar value = at::native::_local_scalar_dense_cuda(self);
  if (Session* const session = Session::current()) session->synchronised();
  return value;
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  Session* const session = Session::current();
  if (session == nullptr) return at::native::copy_(self, source, non_blocking);
  if (self.is_cuda()) session->touch();
  at::Tensor& copied = at::native::copy_(self, source, non_blocking);
  if (self.is_cpu() && !non_blocking) session->synchronised();
  return copied;
}

/// PyTorch warns once where a kernel takes another one's place. This one is no surprise.
class Unheard final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

void show_synchronising_ops() {
  static torch::Library& library =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library.impl("copy_", TORCH_FN(copy));
  Unheard unheard;
  const c10::WarningUtils::WarningHandlerGuard guard(&unheard);
  const c10::WarningUtils::WarnAlways again;  // so that the next one is still the first
  library.impl("_local_scalar_dense", TORCH_FN(scalar_of));
}

}  // namespace commensal
