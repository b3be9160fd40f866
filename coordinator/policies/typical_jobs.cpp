// SPDX-License-Identifier: Apache-2.0
// Fragments as FGD (ATC'23) defines them, in whole numbers; source:
// hkust-adsl/kubernetes-scheduler-simulator, typical pods with its experiments' threshold of 95 %.
#include "coordinator/policies/typical_jobs.h"

#include <algorithm>
#include <array>
#include <functional>
#include <tuple>

namespace commensal::policies {
namespace {

constexpr std::int64_t kPopularPercent = 95;

auto order_of(const TypicalRequest& request) {
  return std::tuple(request.cpu_milli, request.gpu_milli, request.gpus, request.gpu_types);
}

}  // namespace

TypicalRequest request_of(const ClusterJob& job) noexcept {
  if (job.gpus == 0) return {.cpu_milli = job.cpu_milli};
  return {job.cpu_milli, job.gpu_milli, job.gpus, job.gpu_types};
}

TypicalJobs::TypicalJobs(std::vector<std::pair<TypicalRequest, std::int64_t>> requests) {
  std::sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.second, order_of(a.first)) > std::tuple(b.second, order_of(b.first));
  });
  std::int64_t all = 0;
  for (const auto& [request, count] : requests) all += count;
  std::size_t kept = 0;
  for (; kept < requests.size() && weight_ * 100 < all * kPopularPercent; ++kept) {
    weight_ += requests[kept].second;
  }
  requests.resize(kept);
  std::sort(requests.begin(), requests.end());  // cores first: sums below are in order
  for (const auto& entry : requests) {
    const TypicalRequest& request = entry.first;
    if (request.gpus == 0) continue;
    auto shape = std::find_if(shapes_.begin(), shapes_.end(), [&](const Shape& known) {
      return std::tuple(known.gpu_milli, known.gpus, known.gpu_types) ==
             std::tuple(request.gpu_milli, request.gpus, request.gpu_types);
    });
    if (shape == shapes_.end()) {
      shape = shapes_.insert(shape, {request.gpu_milli, request.gpus, request.gpu_types, {}});
    }
    const std::int64_t before = shape->upto.empty() ? 0 : shape->upto.back().second;
    shape->upto.emplace_back(request.cpu_milli, before + entry.second);
  }
  std::sort(shapes_.begin(), shapes_.end(),
            [](const Shape& a, const Shape& b) { return a.gpu_milli > b.gpu_milli; });
}

void TypicalJobs::weigh(std::uint32_t gpu_type, std::int64_t cpu_milli, Weights& weights) const {
  weights.clear();
  for (const Shape& shape : shapes_) {
    std::int64_t weight = 0;
    if (shape.gpu_types == 0 || (shape.gpu_types >> gpu_type & 1U) != 0) {
      // NOLINTNEXTLINE(modernize-loop-convert): from the end
      for (auto step = shape.upto.rbegin(); step != shape.upto.rend(); ++step) {
        if (step->first > cpu_milli) continue;
        weight = step->second;
        break;
      }
    }
    weights.push_back(weight);
  }
}

std::int64_t TypicalJobs::fragment(std::span<const std::int32_t> left,
                                   const Weights& weights) const {
  std::vector<std::int32_t> sorted;
  std::array<std::int32_t, 16> few{};
  std::span<std::int32_t> most_first = std::span(few).first(std::min(left.size(), few.size()));
  if (left.size() > few.size()) {
    sorted.resize(left.size());
    most_first = sorted;
  }
  std::copy(left.begin(), left.end(), most_first.begin());
  std::sort(most_first.begin(), most_first.end(), std::greater<>());
  std::int64_t usable = 0;
  std::int64_t sum = 0;  // of the GPUs with enough left for the shape
  std::size_t enough = 0;
  for (std::size_t shape = 0; shape < shapes_.size(); ++shape) {
    while (enough < most_first.size() && most_first[enough] >= shapes_[shape].gpu_milli) {
      sum += most_first[enough++];
    }
    if (enough >= static_cast<std::size_t>(shapes_[shape].gpus)) usable += weights[shape] * sum;
  }
  for (; enough < most_first.size(); ++enough) sum += most_first[enough];
  return weight_ * sum - usable;
}

}  // namespace commensal::policies
