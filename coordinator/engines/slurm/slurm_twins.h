// SPDX-License-Identifier: Apache-2.0
// Second jobs of Slurm that hold the devices under the seats of a job.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/slurm/slurm_commands.h"

namespace commensal::cluster::slurm {

/// Most twins that one job has at a time: as many devices of its nodes may be the wrong ones.
inline constexpr std::size_t kMostTwins = 16;

/// The name of an attempt's twins in Slurm: that of its job, and ":guaranteed". `name` is
/// `name_of_jobs`.
[[nodiscard]] std::string mark_of_twin(const std::string& name, const Attempt& attempt);
/// The attempt whose twin has a name; nothing for other names.
[[nodiscard]] std::optional<Attempt> attempt_of_twin(const std::string& name,
                                                     std::string_view mark);

/// Devices that an attempt's ranks use, by node; empty for nodes without GPUs.
[[nodiscard]] DevicesByNodes used_by(const local::Placed& placed);
[[nodiscard]] bool has_all(const DevicesByNodes& given, const DevicesByNodes& used);

/// What is written down of an upgrade in an attempt's folder. A twin runs as long as the first note
/// is there and there is no outcome (`Twins::submit`); the second one says that the job's nodes
/// were told, so that a twin that is lost from then on is one too few.
struct TwinNotes {
  const local::AttemptFolder& folder;
  [[nodiscard]] bool is_wanted() const;
  [[nodiscard]] bool is_told() const;
  /// @throws std::system_error.
  void want() const;
  void tell() const;
  /// Removes both.
  void drop() const noexcept;
};

/// Asks Slurm for twins. Everything throws EngineFailed. Thread safety: none.
class Twins {
 public:
  struct Options {
    std::filesystem::path state;  ///< of the engine
    std::string partition;
  };
  /// `commands` must outlive this object. @throws std::system_error if the script that twins run
  /// cannot be written.
  Twins(Options options, std::string name, SlurmCommands& commands);

  /// Submits one with at least the time limit of the attempt's job, and lets it go.
  /// @return its id.
  std::uint64_t submit(const local::AttemptFolder& folder, const local::Placed& placed);
  /// Lets one that is held go: a coordinator died before it could.
  void let_go(std::uint64_t id, const local::Placed& placed);

 private:
  Options options_;
  std::string name_;
  SlurmCommands& commands_;
};

}  // namespace commensal::cluster::slurm
