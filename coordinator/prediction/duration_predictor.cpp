// SPDX-License-Identifier: Apache-2.0
// Durations by keys, as PAI predicts them (MLaaS in the Wild, NSDI '22; alibaba/clusterdata,
// cluster-trace-gpu-v2020/simulator: SJU by user, SJG by group, SJGG by group and GPUs): the mean
// of what ended with the same key, finest key with a history first.
#include "coordinator/prediction/duration_predictor.h"

#include <stdexcept>
#include <string>

#include "coordinator/prediction/history_means.h"
#include "coordinator/prediction/similar_names_predictor.h"

namespace commensal::prediction {
namespace {

class ByGroup final : public DurationPredictor {
 public:
  explicit ByGroup(bool request) : request_(request) {}

  [[nodiscard]] Prediction predict(const Submission& job) const override {
    if (job.group.empty()) return from_all(all_);
    if (request_ && !job.user.empty()) {
      const Mean finest = finest_.of({job.group, job.user, request_of(job)});
      if (finest.count > 0) return {finest.value(), "group, user, request", true};
    }
    if (!job.user.empty()) {
      const Mean of_user = of_user_.of({job.group, job.user});
      if (of_user.count > 0) return {of_user.value(), "group, user", true};
    }
    const Mean of_group = of_group_.of({job.group});
    if (of_group.count > 0) return {of_group.value(), "group", true};
    return from_all(all_);
  }

  void learn(const Submission& job, double seconds) override {
    all_.add(seconds);
    if (job.group.empty()) return;
    finest_.add({job.group, job.user, request_of(job)}, seconds);
    of_user_.add({job.group, job.user}, seconds);
    of_group_.add({job.group}, seconds);
  }

 private:
  bool request_;
  HistoryMeans finest_;
  HistoryMeans of_user_;
  HistoryMeans of_group_;
  Mean all_;
};

class ByUser final : public DurationPredictor {
 public:
  [[nodiscard]] Prediction predict(const Submission& job) const override {
    const Mean mean = job.user.empty() ? Mean{} : of_user_.of({job.user});
    if (mean.count > 0) return {mean.value(), "user", true};
    return from_all(all_);
  }

  void learn(const Submission& job, double seconds) override {
    all_.add(seconds);
    if (!job.user.empty()) of_user_.add({job.user}, seconds);
  }

 private:
  HistoryMeans of_user_;
  Mean all_;
};

}  // namespace

const std::vector<std::string_view>& all_predictors() {
  static const std::vector<std::string_view> names{"group", "group-request", "qssf", "user"};
  return names;
}

std::unique_ptr<DurationPredictor> make_predictor(std::string_view name) {
  if (name == "group") return std::make_unique<ByGroup>(false);
  if (name == "group-request") return std::make_unique<ByGroup>(true);
  if (name == "qssf") return std::make_unique<SimilarNamesPredictor>();
  if (name == "user") return std::make_unique<ByUser>();
  throw std::invalid_argument("no predictor " + std::string(name));
}

}  // namespace commensal::prediction
