// SPDX-License-Identifier: Apache-2.0
// How much of a model is in its largest tensor, by the name of the model.
#pragma once

#include <string_view>

namespace commensal::simulator {

/// Largest tensor as a part of all parameters (Tiresias' skew), 0..1, computed from the layers that
/// the model was published with; -1 for a name that is not known.
[[nodiscard]] double model_skew(std::string_view model);

}  // namespace commensal::simulator
