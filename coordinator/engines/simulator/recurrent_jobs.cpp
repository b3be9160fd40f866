// SPDX-License-Identifier: Apache-2.0
// Users, their groups, and the runs of these.
#include "coordinator/engines/simulator/recurrent_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "coordinator/engines/simulator/whole_file.h"

namespace commensal::simulator {
namespace {

constexpr std::int32_t kFewestRuns = 5;       // of a recurrent group
constexpr double kMeanMoreRuns = 15;          // beyond these
constexpr double kWidened = 0.1;              // of a recurrent group's runs ask for twice the GPUs
constexpr double kWidenedDuration = 0.6;      // and take that part of the time
constexpr double kLongestRun = 7 * 86'400.0;  // seconds
constexpr std::array<double, 3> kUpTo{0.7, 0.8, 0.9};  // of groups: 1, 2, 4 GPUs; others 8
constexpr std::array<std::string_view, 12> kModelNames{"bert", "resnet",   "gpt",  "vgg",
                                                       "unet", "yolo",     "lstm", "vit",
                                                       "dlrm", "tacotron", "gnn",  "a2c"};
constexpr std::array<std::string_view, 10> kTasks{"pretrain", "finetune", "eval",    "sweep",
                                                  "ablation", "distill",  "nightly", "debug",
                                                  "infer",    "export"};

/// The same numbers everywhere: those of the standard's distributions are anybody's.
class Draws {
 public:
  // NOLINTNEXTLINE(bugprone-random-generator-seed): a seed is asked for
  explicit Draws(std::uint64_t seed) : engine_(seed) {}

  /// From 0 up to 1, which it does not reach.
  double share() { return static_cast<double>(engine_() >> 11U) * 0x1p-53; }

  /// By the standard normal distribution (Box and Muller).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - share()));
    return radius * std::cos(2 * std::numbers::pi * share());
  }

  std::size_t below(std::size_t bound) {
    return static_cast<std::size_t>(share() * static_cast<double>(bound));
  }

 private:
  std::mt19937_64 engine_;
};

struct User {
  std::string name;
  double seconds = 0;  ///< median of groups
  double until = 0;    ///< sum of the weights of users up to this one
};

/// The one of rank r submits in proportion to 1 / r.
std::vector<User> make_users(const RecurrentJobs& like, Draws& draws) {
  std::vector<User> users;
  double weights = 0;
  for (std::int32_t rank = 1; rank <= like.users; ++rank) {
    weights += 1.0 / rank;
    users.push_back({fmt::format("user{}", rank),
                     like.median_seconds * std::exp(like.user_spread * draws.normal()), weights});
  }
  return users;
}

const User& draw_user(const std::vector<User>& users, Draws& draws) {
  const double at = draws.share() * users.back().until;
  const auto found = std::lower_bound(users.begin(), users.end(), at,
                                      [](const User& user, double w) { return user.until < w; });
  return found == users.end() ? users.back() : *found;
}

/// Adds the runs of a new group.
void add_group(const RecurrentJobs& like, const std::vector<User>& users, std::int32_t number,
               std::int32_t runs, Draws& draws, std::vector<TraceJob>& jobs) {
  const User& user = draw_user(users, draws);
  const double seconds = user.seconds * std::exp(like.group_spread * draws.normal());
  const double size = draws.share();
  const auto power = std::upper_bound(kUpTo.begin(), kUpTo.end(), size) - kUpTo.begin();
  const std::int32_t gpus = 1 << power;
  TraceJob job;
  job.model = kModelNames[draws.below(kModelNames.size())];
  job.user = job.tenant = user.name;
  job.group = fmt::format("group{}", number);
  job.title = fmt::format("{}-{}-{}", job.model, kTasks[draws.below(kTasks.size())], number);
  for (std::int32_t run = 0; run < runs; ++run) {
    const bool widened = runs > 1 && draws.share() < kWidened;
    const double took =
        seconds * std::exp(like.noise * draws.normal()) * (widened ? kWidenedDuration : 1);
    job.gpus = widened ? 2 * gpus : gpus;
    job.duration = std::clamp(std::round(took), 1.0, kLongestRun);
    job.submit = draws.share();  // of the time in which jobs arrive
    jobs.push_back(job);
  }
}

/// Runs of the next recurrent group; none is left over that would be fewer than five.
std::int32_t draw_runs(std::int32_t left, Draws& draws) {
  const double more = -kMeanMoreRuns * std::log(1 - draws.share());
  const std::int32_t runs = kFewestRuns + static_cast<std::int32_t>(std::min(more, 1e6));
  return left - runs < kFewestRuns ? left : runs;
}

double in_range(policies::Options& options, const std::string& name, double fallback, double least,
                double most) {
  const double value = options.number(name, fallback);
  if (value >= least && value <= most) return value;
  throw std::invalid_argument(
      fmt::format("option {} is not from {} to {}: {}", name, least, most, value));
}

std::int32_t whole(policies::Options& options, const std::string& name, std::int32_t fallback) {
  const double value = in_range(options, name, fallback, 1, 10'000'000);
  if (value == std::floor(value)) return static_cast<std::int32_t>(value);
  throw std::invalid_argument(fmt::format("option {} is no whole number: {}", name, value));
}

}  // namespace

RecurrentJobs RecurrentJobs::from(policies::Options& options) {
  RecurrentJobs like;
  like.jobs = whole(options, "jobs", like.jobs);
  like.recurrence = in_range(options, "recurrence", like.recurrence, 0, 1);
  like.noise = in_range(options, "noise", like.noise, 0, 10);
  like.group_spread = in_range(options, "group-spread", like.group_spread, 0, 10);
  like.user_spread = in_range(options, "user-spread", like.user_spread, 0, 10);
  like.median_seconds = in_range(options, "median-seconds", like.median_seconds, 1, kLongestRun);
  like.users = whole(options, "users", like.users);
  like.gpus = whole(options, "gpus", like.gpus);
  like.load = in_range(options, "load", like.load, 0.01, 100);
  return like;
}

Trace make_recurrent_jobs(const RecurrentJobs& like, std::uint64_t seed) {
  Draws draws(seed);
  const std::vector<User> users = make_users(like, draws);
  Trace trace{.source = "recurrent jobs", .jobs = {}};
  auto left = static_cast<std::int32_t>(std::llround(like.recurrence * like.jobs));
  if (left < kFewestRuns) left = 0;
  const std::int32_t once = like.jobs - left;
  std::int32_t groups = 0;
  while (left > 0) {
    const std::int32_t runs = draw_runs(left, draws);
    add_group(like, users, ++groups, runs, draws, trace.jobs);
    left -= runs;
  }
  for (std::int32_t i = 0; i < once; ++i) {
    add_group(like, users, ++groups, 1, draws, trace.jobs);
  }
  double service = 0;
  for (const TraceJob& job : trace.jobs) service += job.duration * job.gpus;
  const double seconds = service / (like.gpus * like.load);
  for (TraceJob& job : trace.jobs) job.submit = std::floor(job.submit * seconds);
  std::stable_sort(trace.jobs.begin(), trace.jobs.end(),
                   [](const TraceJob& a, const TraceJob& b) { return a.submit < b.submit; });
  for (std::size_t i = 0; i < trace.jobs.size(); ++i) {
    trace.jobs[i].name = fmt::format("job{}", i + 1);
  }
  return trace;
}

void write_trace(const std::string& file, const Trace& trace) {
  write_whole(file, [&](std::ostream& out) {
    out << "job,submit,duration,gpus,tenant,model,user,group,name\n";
    for (const TraceJob& job : trace.jobs) {
      out << fmt::format("{},{},{},{},{},{},{},{},{}\n", job.name, job.submit, job.duration,
                         job.gpus, job.tenant, job.model, job.user, job.group, job.title);
    }
  });
}

}  // namespace commensal::simulator
