// SPDX-License-Identifier: Apache-2.0
// Two close names, and means of what has one of them.
#include "coordinator/prediction/similar_names_predictor.h"

#include <cmath>

#include "coordinator/prediction/name_similarity.h"

namespace commensal::prediction {
namespace {

constexpr double kLeastRatio = 0.6;
constexpr std::size_t kMatches = 2;

void add(Mean& to, const Mean& other) {
  to.sum += other.sum;
  to.count += other.count;
}

/// The artifact cuts these GPU-seconds to whole ones.
double whole_service(double seconds, std::int32_t gpus) {
  return gpus > 0 ? std::floor(seconds * gpus) / gpus : seconds;
}

}  // namespace

Prediction SimilarNamesPredictor::predict(const Submission& job) const {
  const std::vector<std::string_view> names = matches(job.name);
  if (names.empty()) {
    const Mean of_user = job.user.empty() ? Mean{} : of_user_.of({job.user});
    if (of_user.count > 0) return {of_user.value(), "user", true};
    return from_all(all_);
  }
  const bool same = names.front() == job.name;
  Mean of_request;
  Mean of_user_name;
  Mean of_name;
  for (const std::string_view name : names) {
    add(of_request, of_request_.of({name, job.user, request_of(job)}));
    add(of_user_name, of_user_name_.of({name, job.user}));
    add(of_name, of_name_.of({name}));
  }
  if (of_request.count > 0) {
    return {whole_service(of_request.value(), job.gpus),
            same ? "name, user, request" : "similar name, user, request", true};
  }
  if (of_user_name.count > 0) {
    return {whole_service(of_user_name.value(), job.gpus),
            same ? "name, user" : "similar name, user", true};
  }
  return {of_name.value(), same ? "name" : "similar name", true};
}

void SimilarNamesPredictor::learn(const Submission& job, double seconds) {
  all_.add(seconds);
  if (!job.user.empty()) of_user_.add({job.user}, seconds);
  if (job.name.empty()) return;
  if (known_.emplace(job.name).second) names_.emplace_back(job.name);
  of_request_.add({job.name, job.user, request_of(job)}, seconds);
  of_user_name_.add({job.name, job.user}, seconds);
  of_name_.add({job.name}, seconds);
}

std::vector<std::string_view> SimilarNamesPredictor::matches(std::string_view name) const {
  if (name.empty()) return {};
  const auto same = known_.find(std::string(name));
  if (same != known_.end()) return {*same};
  return closest_names(name, names_, kMatches, kLeastRatio);
}

}  // namespace commensal::prediction
