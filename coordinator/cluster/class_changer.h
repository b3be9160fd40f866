// SPDX-License-Identifier: Apache-2.0
// Who changes the class of jobs that run.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// Changes the class of an attempt that runs, through the coordinators of its nodes.
class ClassChanger {
 public:
  virtual ~ClassChanger() = default;

  struct Outcome {
    Attempt attempt;
    bool changed = false;
    std::string reason;  ///< never empty
    JobClass asked = JobClass::kGuaranteed;
  };

  /// Asks for it; does not wait. Asking twice does no harm.
  virtual void change(const JobRecord& job, JobClass job_class) = 0;
  /// What came of it since the last call.
  [[nodiscard]] virtual std::vector<Outcome> outcomes() = 0;
};

}  // namespace commensal::cluster
