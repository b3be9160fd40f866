// SPDX-License-Identifier: Apache-2.0
// Batches of changes made up from a seed, for the store and for a plain model of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/store.h"

namespace commensal::cluster {

/// Everything that can be read from a store.
struct Contents {
  std::vector<JobRecord> open;
  std::vector<JobRecord> ended;  ///< the newest first
  std::vector<TenantRecord> tenants;
  std::vector<DrainedNode> drained;
  std::vector<BadInput> bad_inputs;
  std::vector<Transition> events;
  std::uint64_t next_job = 1;
  bool operator==(const Contents&) const = default;
};
[[nodiscard]] Contents contents(Store& store);

/// A store as it is meant, in memory.
class Model {
 public:
  JobId add(const JobSpec& spec, const std::string& request, WallTime now);
  void put(const JobRecord& record, const std::optional<Transition>& transition);
  void put(const TenantRecord& tenant) { tenants_[tenant.name] = tenant; }
  void put(const DrainedNode& node) { drained_[node.node] = node; }
  void undrain(const std::string& node) { drained_.erase(node); }
  void put(const BadInput& input) { bad_inputs_[input.key] = input; }
  void remove(const InputKey& input) { bad_inputs_.erase(input); }
  [[nodiscard]] std::optional<JobRecord> job(const JobId& id) const;
  [[nodiscard]] Contents contents() const;
  [[nodiscard]] std::uint64_t jobs() const { return jobs_.size(); }

 private:
  struct Kept {
    JobRecord record;
    std::uint64_t ended = 0;
  };
  void line(Transition transition);

  std::map<std::uint64_t, Kept> jobs_;
  std::map<std::pair<std::string, std::string>, JobId> requests_;
  std::map<std::string, TenantRecord> tenants_;
  std::map<std::string, DrainedNode> drained_;
  std::map<InputKey, BadInput> bad_inputs_;
  std::vector<Transition> events_;
};

[[nodiscard]] JobSpec made_up_spec(std::uint32_t number);

/// Batch `number` of the script of a seed: equal for equal arguments. Jobs that it changes are
/// those that `model` has; what it does is done to the model and, if there is one, to the store.
void apply_batch(std::uint32_t seed, std::uint32_t number, Model& model, Store* store);

/// An empty folder that goes away with this.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

[[nodiscard]] std::string bytes_of(const std::filesystem::path& file);
void write_bytes(const std::filesystem::path& file, const std::string& bytes);

}  // namespace commensal::cluster
