// SPDX-License-Identifier: Apache-2.0
// How many threads PyTorch computes with, where its user lets that follow the cores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

namespace commensal {

/// Follows the cores of a process with its number of threads. Who sets the number while it runs is
/// obeyed: from then on that is the most. Not thread safe.
class ElasticThreads {
 public:
  /// Returns the number to set; nothing if it is right.
  /// @param now  that PyTorch computes with. @param cores  that it keeps to; nothing: all its own.
  [[nodiscard]] std::optional<int> follow(int now, std::optional<std::size_t> cores) noexcept {
    if (now != set_) own_ = now;  // by its user
    const int wanted =
        cores ? std::max(1, std::min(own_, static_cast<int>(std::min<std::size_t>(*cores, 65536))))
              : own_;
    set_ = wanted;
    return wanted == now ? std::nullopt : std::optional{wanted};
  }

 private:
  int own_ = 0;
  int set_ = 0;  // as this class left it
};

}  // namespace commensal
