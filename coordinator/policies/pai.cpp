// SPDX-License-Identifier: Apache-2.0
// pai: reserving and packing. A job asks for GPUs or for a part of one; parts share a GPU. (1)
// Whether it is "high-GPU" - several whole GPUs, or only high-end types - is predicted from the
// group of jobs that are run again and again to which it belongs: what most of those before it
// were; without a history, what it asks for itself. (2) High-end machines are reserved for that
// class: it goes there first. (3) All others go to less advanced machines first, the fuller the
// better, and to high-end ones only when nothing else fits. (4) Load balancing: of equally full
// machines the one with most cores left, for cores are what runs out first. In the order of
// arrival; who does not fit is passed; nobody is stopped. High-end types are those whose names
// begin with one of option `high-end` (upper or lower case). Source: Weng et al., MLaaS in the
// Wild, NSDI'22, reserving-and-packing; that (4) goes by cores is chosen here.
#include <algorithm>
#include <cctype>
#include <string>

#include "coordinator/policies/makers.h"
#include "coordinator/policies/packing.h"

namespace commensal::policies {
namespace {

// Lists of the notes: who waits (the packer's); then by group, jobs so far and high-GPU ones.
constexpr std::size_t kSeen = 1;
constexpr std::size_t kHigh = 2;
constexpr std::size_t kPaiLists = 3;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), name.size() + 1));
    if (!name.empty()) names.push_back(lower(name));
  }
  return names;
}

class ReserveAndPack final : public PackingRule {
 public:
  ReserveAndPack(const ClusterView& view, const Notes& notes, std::uint32_t high_end)
      : cluster_(*view.cluster), notes_(notes), high_end_(high_end) {}

  std::int64_t score(const NodeRoom& node, JobIndex index, const ClusterJob& /*job*/) override {
    const bool high_end = (high_end_ >> node.type & 1U) != 0;
    const bool reserved_for_others = high_end != (notes_.level[index] != 0);
    return (reserved_for_others ? 0 : kTier) + fullness(node) + cores_left(node);
  }

  std::int64_t score_as_part(const NodeRoom& node, JobIndex index, const ClusterJob& job) override {
    return score(node, index, job);
  }

  [[nodiscard]] std::string_view why() const override {
    return "{:.0f} points for its class of machine and for little left, the most of {:.0f} nodes";
  }

 private:
  static constexpr std::int64_t kTier = 100'000'000;
  static constexpr std::int64_t kFullness = 10'000;  // of each thousandth of the GPUs in use
  static constexpr std::int64_t kCores = 1'000;      // of all cores left

  [[nodiscard]] static std::int64_t fullness(const NodeRoom& node) {
    const std::int64_t all = kWholeGpu * std::ssize(node.gpus);
    return all == 0 ? 0 : kFullness * ((all - node.gpu_milli()) * 1000 / all);
  }
  [[nodiscard]] std::int64_t cores_left(const NodeRoom& node) const {
    const std::int64_t all = cluster_.nodes()[node.node].cpu_milli;
    return all == 0 ? 0 : kCores * node.cpu_milli / all;
  }

  const Cluster& cluster_;
  const Notes& notes_;
  std::uint32_t high_end_;
};

class Pai final : public ClusterPolicy {
 public:
  explicit Pai(std::vector<std::string> high_end) : high_end_(std::move(high_end)) {}

  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(kPaiLists);
    notes.level.resize(view.jobs.size(), 0);
    const std::uint32_t high_end = high_end_types(*view.cluster);
    for (const JobIndex job : view.arrived) predict(view.jobs[job], job, high_end, notes);
    ReserveAndPack rule(view, notes, high_end);
    pack(view, notes, rule, plan);
  }

 private:
  /// Bits of the types that are high-end.
  [[nodiscard]] std::uint32_t high_end_types(const Cluster& cluster) const {
    std::uint32_t bits = 0;
    for (std::size_t type = 0; type < cluster.types().size(); ++type) {
      const std::string name = lower(cluster.types()[type]);
      const bool high = std::any_of(high_end_.begin(), high_end_.end(),
                                    [&](const auto& prefix) { return name.starts_with(prefix); });
      if (high) bits |= 1U << type;
    }
    return bits;
  }

  /// Writes the class of a job into `level`, and what it asks for into the history of its group.
  static void predict(const ClusterJob& job, JobIndex index, std::uint32_t high_end, Notes& notes) {
    const bool only_high_end = job.gpu_types != 0 && (job.gpu_types & ~high_end) == 0;
    const bool asks = (job.gpus > 1 && job.gpu_milli == kWholeGpu) || only_high_end;
    notes.level[index] = asks ? 1 : 0;
    if (job.group == 0) return;
    for (const std::size_t list : {kSeen, kHigh}) {
      if (notes.lists[list].size() <= job.group) notes.lists[list].resize(job.group + 1, 0);
    }
    JobIndex& seen = notes.lists[kSeen][job.group];
    JobIndex& high = notes.lists[kHigh][job.group];
    if (seen > 0) notes.level[index] = 2 * high > seen ? 1 : 0;
    ++seen;
    high += asks ? 1 : 0;
  }

  std::vector<std::string> high_end_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_pai(Options& options) {
  return std::make_unique<Pai>(names_in(options.text("high-end", "v100,a100,h100")));
}

}  // namespace commensal::policies
