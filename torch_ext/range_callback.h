// SPDX-License-Identifier: Apache-2.0
// Feeds PyTorch's USER_SCOPE ranges (optimizer steps, data fetches) to the step tracker.
#pragma once

namespace commensal {

class Session;

/// Registers the range callback, which costs ops nothing and stays on. Once a process.
void install_range_callback(Session& session);

/// In a forked child: ranges no longer reach the session.
void disarm_range_callback_in_child() noexcept;

}  // namespace commensal
