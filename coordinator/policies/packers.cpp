// SPDX-License-Identifier: Apache-2.0
// best-fit, dot-product, gpu-packing, gpu-clustering, random: packers as FGD (ATC'23) compares
// with. Source: hkust-adsl/kubernetes-scheduler-simulator, its score plugins with the options of
// its experiments: whole points of 100, requests measured by the largest node, parts of a GPU on
// the one with the least left (random: on any). gpu-packing is what Kubernetes' GPU-sharing
// scheduler does, gpu-clustering what Gandiva does, dot-product what Tetris does. Cores and GPUs
// count half each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "coordinator/policies/makers.h"
#include "coordinator/policies/packing.h"

namespace commensal::policies {
namespace {

constexpr std::int64_t kMostPoints = 100;
constexpr double kLargestSeed = 9007199254740992.0;  // the last that a double has with all before

/// A part of the largest there is; a resource that is not counted has no part.
double share(std::int64_t amount, std::int64_t largest) {
  if (largest <= 0 || amount == kUncounted) return 0;
  return static_cast<double>(amount) / static_cast<double>(largest);
}

std::int64_t asked_milli(const ClusterJob& job) { return std::int64_t{job.gpus} * job.gpu_milli; }

/// Least left behind: (free - asked) / largest, mean of cores and GPUs.
class BestFit final : public PackingRule {
 public:
  explicit BestFit(const ClusterView& view) : largest_(largest_node(*view.cluster)) {}

  std::int64_t score(const NodeRoom& node, JobIndex /*index*/, const ClusterJob& job) override {
    const std::int64_t cpu =
        node.cpu_milli == kUncounted ? kUncounted : node.cpu_milli - job.cpu_milli;
    const double left = share(cpu, largest_.cpu_milli) * 0.5 +
                        share(node.gpu_milli() - asked_milli(job), largest_.gpu_milli) * 0.5;
    return static_cast<std::int64_t>((1.0 - left) * kMostPoints);
  }
  [[nodiscard]] std::string_view why() const override {
    return "{:.0f} points for little left behind, the most of {:.0f} nodes";
  }

 private:
  LargestNode largest_;
};

/// Smallest product of what is free and what is asked for.
class DotProduct final : public PackingRule {
 public:
  explicit DotProduct(const ClusterView& view) : largest_(largest_node(*view.cluster)) {}

  std::int64_t score(const NodeRoom& node, JobIndex /*index*/, const ClusterJob& job) override {
    const double product =
        share(node.cpu_milli, largest_.cpu_milli) * share(job.cpu_milli, largest_.cpu_milli) +
        share(node.gpu_milli(), largest_.gpu_milli) * share(asked_milli(job), largest_.gpu_milli);
    return static_cast<std::int64_t>(kMostPoints * (1.0 - product / 2));
  }
  [[nodiscard]] std::string_view why() const override {
    return "{:.0f} points for a small product of free and asked, the most of {:.0f} nodes";
  }

 private:
  LargestNode largest_;
};

/// GPUs in use first, the fuller the better; then free GPUs of nodes in use, then free nodes.
class GpuPacking final : public PackingRule {
 public:
  std::int64_t score(const NodeRoom& node, JobIndex /*index*/, const ClusterJob& job) override {
    if (job.gpus == 0) return 0;
    const std::int64_t whole = std::count(node.gpus.begin(), node.gpus.end(), kWholeGpu);
    if (whole == std::ssize(node.gpus)) return std::max<std::int64_t>(kMostPoints / 3 - whole, 0);
    std::vector<std::int32_t> left(node.gpus.begin(), node.gpus.end());
    std::sort(left.begin(), left.end());
    std::int32_t missing = job.gpus;
    std::int64_t opened = 0;
    std::int64_t percent = 0;
    for (auto gpu = left.begin(); missing > 0 && gpu != left.end(); ++gpu) {
      if (*gpu < job.gpu_milli) continue;
      --missing;
      if (*gpu == kWholeGpu) ++opened;
      percent += std::int64_t{*gpu} * 100 / kWholeGpu;
    }
    if (opened > 0) return std::max(kMostPoints / 2 - opened, kMostPoints / 3);
    return std::max(kMostPoints - percent / 10, kMostPoints / 2);
  }
  [[nodiscard]] std::string_view why() const override {
    return "{:.0f} points for GPUs in use before free ones, the most of {:.0f} nodes";
  }
};

/// Nodes with jobs that ask alike and with no others first, then with others too, then free nodes,
/// then nodes with others only; among these the fuller.
class GpuClustering final : public PackingRule {
 public:
  explicit GpuClustering(const ClusterView& view) : largest_(largest_node(*view.cluster)) {}

  std::int64_t score(const NodeRoom& node, JobIndex /*index*/, const ClusterJob& job) override {
    if (job.gpus == 0) return 0;
    const std::uint32_t kind = kind_of(job);
    const std::int64_t rank = node.kinds == kind         ? 3
                              : (node.kinds & kind) != 0 ? 2
                              : node.kinds == 0          ? 1
                                                         : 0;
    const std::int64_t used = largest_.gpu_milli - node.gpu_milli();
    return kMostPoints / 4 * used / largest_.gpu_milli + kMostPoints / 4 * rank;
  }
  [[nodiscard]] std::string_view why() const override {
    return "{:.0f} points for jobs that ask alike, the most of {:.0f} nodes";
  }
  [[nodiscard]] bool reads_kinds() const override { return true; }

 private:
  LargestNode largest_;
};

/// Any node, any GPU: numbers that follow from the seed and the job.
class Random final : public PackingRule {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}

  std::int64_t score(const NodeRoom& node, JobIndex index, const ClusterJob& /*job*/) override {
    return draw(index, node.node + std::uint64_t{1});
  }
  std::uint16_t part_of(const NodeRoom& node, JobIndex index, const ClusterJob& job) override {
    std::size_t best = node.gpus.size();
    std::int64_t most = -1;
    for (std::size_t gpu = 0; gpu < node.gpus.size(); ++gpu) {
      const std::int64_t drawn = draw(index, (gpu + 1) << 32U);
      if (node.gpus[gpu] < job.gpu_milli || drawn <= most) continue;
      most = drawn;
      best = gpu;
    }
    return static_cast<std::uint16_t>(best);
  }
  [[nodiscard]] std::string_view why() const override {
    return "drawn {:.0f}, the most of {:.0f} nodes";
  }

 private:
  /// SplitMix64 (Steele, Lea, Flood 2014): numbers without a state.
  [[nodiscard]] static std::uint64_t mixed(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15U;
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31U);
  }
  [[nodiscard]] std::int64_t draw(JobIndex index, std::uint64_t place) const {
    return static_cast<std::int64_t>(mixed(mixed(mixed(seed_) + index) + place) >> 1U);
  }

  std::uint64_t seed_;
};

/// A policy of a rule that is made anew for each decision by `make(view)`.
template <typename Make>
class Packer final : public ClusterPolicy {
 public:
  explicit Packer(Make make) : make_(make) {}
  [[nodiscard]] bool reads_progress() const noexcept override { return false; }
  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    auto rule = make_(view);
    pack(view, notes, rule, plan);
  }

 private:
  Make make_;
};

template <typename Make>
std::unique_ptr<ClusterPolicy> packer(Make make) {
  return std::make_unique<Packer<Make>>(make);
}

}  // namespace

std::unique_ptr<ClusterPolicy> make_best_fit(Options& /*options*/) {
  return packer([](const ClusterView& view) { return BestFit(view); });
}

std::unique_ptr<ClusterPolicy> make_dot_product(Options& /*options*/) {
  return packer([](const ClusterView& view) { return DotProduct(view); });
}

std::unique_ptr<ClusterPolicy> make_gpu_packing(Options& /*options*/) {
  return packer([](const ClusterView& /*view*/) { return GpuPacking(); });
}

std::unique_ptr<ClusterPolicy> make_gpu_clustering(Options& /*options*/) {
  return packer([](const ClusterView& view) { return GpuClustering(view); });
}

std::unique_ptr<ClusterPolicy> make_random(Options& options) {
  const double given = options.number("seed", 0);
  if (given < 0 || given > kLargestSeed || given != std::floor(given)) {
    throw std::invalid_argument(
        fmt::format("option seed is no whole number from 0 to {:.0f}: {}", kLargestSeed, given));
  }
  const auto seed = static_cast<std::uint64_t>(given);
  return packer([seed](const ClusterView& /*view*/) { return Random(seed); });
}

}  // namespace commensal::policies
