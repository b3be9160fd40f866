// SPDX-License-Identifier: Apache-2.0
// Sums of sampled ops.
#include "torch_ext/runtime/op_samples.h"

#include <algorithm>
#include <cmath>

namespace commensal {
namespace {

Duration estimate(Duration sampled) noexcept {
  return Duration{std::llround(static_cast<double>(sampled.count()) / kSampleProbability)};
}

}  // namespace

void OpSamples::note(const OpSample& sample) noexcept {
  const bool compute = sample.work == "compute";
  const MutexLock lock(mutex_);
  ++samples_;
  if (!compute && sample.work != "memory") {
    ++unclassified_;
    return;
  }
  (compute ? compute_ : memory_) += sample.took;
  ran_ += std::min(sample.ran, sample.took);
  const std::string_view name = sample.name.substr(0, std::tuple_size_v<decltype(Named::name)> - 1);
  const auto end = named_.begin() + static_cast<std::ptrdiff_t>(names_);
  auto known = std::find_if(named_.begin(), end,
                            [&](const Named& entry) { return name == entry.name.data(); });
  if (known == end) {
    if (names_ == kMostNames) return;
    ++names_;
    std::copy(name.begin(), name.end(), known->name.begin());
    known->compute = compute;
  }
  ++known->samples;
  known->time += sample.took;
}

OpSampleSums OpSamples::sums() const {
  OpSampleSums sums;
  const MutexLock lock(mutex_);
  sums.samples = samples_;
  sums.unclassified = unclassified_;
  sums.compute = estimate(compute_);
  sums.memory = estimate(memory_);
  sums.ran = estimate(ran_);
  for (std::size_t i = 0; i < names_; ++i) {
    const Named& entry = named_[i];
    sums.top.push_back({entry.name.data(), entry.compute ? "compute" : "memory", entry.samples,
                        estimate(entry.time)});
  }
  std::stable_sort(sums.top.begin(), sums.top.end(),
                   [](const auto& one, const auto& other) { return one.time > other.time; });
  if (sums.top.size() > kTop) sums.top.resize(kTop);
  return sums;
}

}  // namespace commensal
