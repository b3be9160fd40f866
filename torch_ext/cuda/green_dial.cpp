// SPDX-License-Identifier: Apache-2.0
// When a thread's current stream changes, and why not.
#include "torch_ext/cuda/green_dial.h"

#include <exception>
#include <utility>

namespace commensal {
namespace {

/// What PyTorch throws has a backtrace behind the first line.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

GreenDial::GreenDial(int device, CurrentStream& streams, bool (*capturing)())
    : device_(device), streams_(streams), capturing_(capturing) {}

std::optional<MultiprocessorState> GreenDial::follow(std::optional<double> share) noexcept {
  if (capturing_()) return std::nullopt;
  if (failed_share_ && failed_share_ == share) return failed_;
  failed_share_.reset();
  try {
    return turn(share);
  } catch (const std::exception& error) {
    return refused(share.value_or(1.0), first_line(error));
  }
}

MultiprocessorState GreenDial::turn(std::optional<double> share) {
  if (green_ == nullptr) {
    if (!share) return {};
    green_ = std::make_unique<GreenStreams>(device_);
  }
  MultiprocessorState state;
  state.total = state.granted = green_->sizes().total;
  const MultiprocessorPart part = part_for(share.value_or(1.0), green_->sizes());
  state.asked = part.asked;
  auto* const now = streams_.get(device_);
  if (now != nullptr && !green_->ours(now)) {
    if (part.count) state.reason = "the program trains in a stream of its own";
    return state;
  }
  if (!part.count) {
    go_to(nullptr);
    return state;
  }
  const GreenStream green = green_->with(*part.count);
  go_to(green.stream);
  state.granted = green.multiprocessors;
  return state;
}

void GreenDial::go_to(cudaStream_t stream) {
  auto* const now = streams_.get(device_);
  if (now != stream) {
    streams_.join(device_, now, stream);
    streams_.set(device_, stream);
  }
  if (stream != nullptr && now != nullptr) streams_.join(device_, nullptr, stream);
}

MultiprocessorState GreenDial::refused(double share, std::string reason) noexcept {
  failed_share_ = share;
  failed_ = {};
  if (green_ != nullptr) {
    failed_.total = failed_.granted = green_->sizes().total;
    failed_.asked = part_for(share, green_->sizes()).asked;
  }
  failed_.reason = std::move(reason);
  try {
    auto* const now = streams_.get(device_);
    if (green_ != nullptr && green_->ours(now)) go_to(nullptr);
  } catch (const std::exception& error) {
    // The thread stays where it is, which is as right as before; the program will hear of it.
    failed_.reason += "; and the default stream: " + first_line(error);
  }
  return failed_;
}

}  // namespace commensal
