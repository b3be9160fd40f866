// SPDX-License-Identifier: Apache-2.0
// Libraries that capture CUDA graphs in streams of which the driver tells nobody.
#pragma once

#include <string_view>

namespace commensal {

/// Returns the file name of a loaded library that captures graphs in non-blocking streams of its
/// own (XLA as JAX and TensorFlow bring it, ONNX Runtime, TensorRT for RTX), without its version,
/// or an empty text while there is none.
///
/// A call for the whole context ends such a capture, and `cuStreamIsCapturing` answers for a stream
/// that one knows only. So nothing is asked of the whole context while one of these is loaded.
/// Thread safety: any thread. Costs a look at the loader's counters where nothing was loaded since
/// the last call.
std::string_view capturing_library() noexcept;

}  // namespace commensal
