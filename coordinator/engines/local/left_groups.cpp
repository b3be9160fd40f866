// SPDX-License-Identifier: Apache-2.0
// One list in one file, without which groups would stay after a restart.
#include "coordinator/engines/local/left_groups.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "coordinator/engines/local/durable_file.h"
#include "coordinator/node/kernel_files.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster::local {

using nlohmann::json;

LeftGroups::LeftGroups(node::GroupFiles& files, std::filesystem::path file)
    : files_(files), file_(std::move(file)) {
  const json listed =
      wire::try_parse_json(node::read_file(file_).value_or("[]"), wire::kOwnFile).value_or(nullptr);
  if (!listed.is_array()) return;
  for (const json& group : listed) {
    if (group.is_string()) left_.emplace_back(group.get<std::string>());
  }
}

void LeftGroups::remove(const std::vector<std::filesystem::path>& groups) {
  for (const std::filesystem::path& group : groups) {
    if (files_.remove(group).empty() || std::ranges::find(left_, group) != left_.end()) continue;
    left_.push_back(group);
    written_ = false;
  }
  if (left_.size() > kMost) left_.erase(left_.begin(), left_.end() - kMost);
  write_down();
}

void LeftGroups::sweep() {
  const auto gone = [this](const std::filesystem::path& group) {
    return files_.remove(group).empty();
  };
  if (std::erase_if(left_, gone) > 0) written_ = false;
  write_down();
}

void LeftGroups::write_down() {
  if (written_) return;
  json list = json::array();
  for (const std::filesystem::path& group : left_) list.push_back(group.native());
  try {
    write_whole(file_, list.dump(-1, ' ', false, json::error_handler_t::replace), Durable::kNo);
    written_ = true;
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    // A full disk: they are known here, and the next call tries again.
  }
}

}  // namespace commensal::cluster::local
