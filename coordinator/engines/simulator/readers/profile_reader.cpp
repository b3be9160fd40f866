// SPDX-License-Identifier: Apache-2.0
// Files of a profile to tables.
#include "coordinator/engines/simulator/readers/profile_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>

namespace commensal::simulator {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kValidation = "validation-";

/// A placement is a digit a node, none of them zero.
std::string placement_of(const Field& field) {
  const std::string_view text = field.text();
  const bool digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c > '0' && c <= '9'; });
  if (text.empty() || !digits) field.fail("not a digit from 1 to 9 for each node");
  return std::string(text);
}

void read_placements(const std::string& file, MeasuredSteps& steps) {
  Rows<4> row(file, {"placement", "local_bsz", "step_time", "sync_time"});
  while (row.next()) {
    auto& rows = steps.placements[placement_of(row[0])];
    const double local_batch = row[1].count(1);
    const bool twice = std::any_of(rows.begin(), rows.end(),
                                   [&](const auto& r) { return r.local_batch == local_batch; });
    if (twice) row[1].fail("a second time for this placement");
    rows.push_back({local_batch, {row[2].positive_or_zero(), row[3].positive_or_zero()}});
  }
}

void read_scalability(const std::string& file, MeasuredSteps& steps) {
  Rows<5> row(file, {"num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"});
  while (row.next()) {
    steps.scaled.push_back({static_cast<double>(row[0].count(1)),
                            static_cast<double>(row[1].count(1)),
                            static_cast<double>(row[2].count(1))});
    steps.scaled_seconds.push_back({row[3].positive_or_zero(), row[4].positive_or_zero()});
  }
}

std::vector<MeasuredEpoch> read_epochs(const std::string& file) {
  Rows<5> row(file, {"progress", "iteration", "grad_sqr", "grad_var", "metric"});
  std::vector<MeasuredEpoch> epochs;
  while (row.next()) {
    epochs.push_back({.progress = row[0].positive_or_zero(),
                      .iterations = row[1].positive_or_zero(),
                      .metric = row[4].number(),
                      .grad_sqr = row[2].positive_or_zero(),
                      .grad_var = row[3].positive_or_zero()});
    const bool falls =
        epochs.size() > 1 && epochs.back().progress < epochs[epochs.size() - 2].progress;
    if (falls) row[0].fail("less than in the epoch before");
  }
  return epochs;
}

/// The batch size in the name of a file; nothing if it is another file.
std::optional<std::int32_t> batch_of(const fs::path& file) {
  const std::string stem = file.stem().string();
  if (file.extension() != ".csv" || !stem.starts_with(kValidation)) return std::nullopt;
  const std::string_view digits = std::string_view(stem).substr(kValidation.size());
  std::int32_t batch = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), batch);
  if (error != std::errc{} || end != digits.data() + digits.size() || batch < 1) {
    throw BadTrace(fmt::format("{}: no batch size in the name", file.string()));
  }
  return batch;
}

TrainingProfile read_profile(const fs::path& folder) {
  MeasuredSteps steps;
  read_placements((folder / "placements.csv").string(), steps);
  read_scalability((folder / "scalability.csv").string(), steps);
  MeasuredEpochs epochs;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (const auto batch = batch_of(entry.path())) {
      epochs[*batch] = read_epochs(entry.path().string());
    }
  }
  try {
    return {folder.filename().string(), steps, std::move(epochs)};
  } catch (const std::invalid_argument& error) {
    throw BadTrace(fmt::format("{}: {}", folder.string(), error.what()));
  }
}

}  // namespace

std::string find_profiles(const std::string& trace, const std::string& given) {
  if (!given.empty()) {
    if (fs::is_directory(given)) return given;
    throw BadTrace(fmt::format("{}: no folder of profiles", given));
  }
  const fs::path folder = fs::absolute(trace).parent_path();
  for (const fs::path& at : {folder / "profiles", folder.parent_path() / "profiles"}) {
    if (fs::is_directory(at)) return at.string();
  }
  throw BadTrace(fmt::format(
      "{}: no folder profiles beside it or beside its folder, and none is named", trace));
}

TrainingProfiles read_profiles(const std::string& folder) {
  std::set<fs::path> applications;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) applications.insert(entry.path());
  }
  TrainingProfiles profiles;
  for (const fs::path& application : applications) {
    profiles.emplace(application.filename().string(), read_profile(application));
  }
  if (profiles.empty()) throw BadTrace(fmt::format("{}: no profile in it", folder));
  return profiles;
}

}  // namespace commensal::simulator
