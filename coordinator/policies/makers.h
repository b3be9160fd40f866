// SPDX-License-Identifier: Apache-2.0
// One maker a policy; each is defined in the policy's own file.
#pragma once

#include <memory>

#include "coordinator/policies/registry.h"

namespace commensal::policies {

std::unique_ptr<ClusterPolicy> make_2d_las(Options& options);
std::unique_ptr<ClusterPolicy> make_antman(Options& options);
std::unique_ptr<ClusterPolicy> make_best_fit(Options& options);
std::unique_ptr<ClusterPolicy> make_capacity(Options& options);
std::unique_ptr<ClusterPolicy> make_dot_product(Options& options);
std::unique_ptr<ClusterPolicy> make_dragon(Options& options);
std::unique_ptr<ClusterPolicy> make_fgd(Options& options);
std::unique_ptr<ClusterPolicy> make_fifo(Options& options);
std::unique_ptr<ClusterPolicy> make_fit_first(Options& options);
std::unique_ptr<ClusterPolicy> make_gandiva(Options& options);
std::unique_ptr<ClusterPolicy> make_gavel(Options& options);
std::unique_ptr<ClusterPolicy> make_gavel_fifo(bool aware, Options& options);
std::unique_ptr<ClusterPolicy> make_gittins(Options& options);
std::unique_ptr<ClusterPolicy> make_gpu_clustering(Options& options);
std::unique_ptr<ClusterPolicy> make_gpu_packing(Options& options);
std::unique_ptr<ClusterPolicy> make_las(Options& options);
std::unique_ptr<ClusterPolicy> make_muri_antman(Options& options);
std::unique_ptr<ClusterPolicy> make_optimus(Options& options);
std::unique_ptr<ClusterPolicy> make_optimus_oracle(Options& options);
std::unique_ptr<ClusterPolicy> make_pai(Options& options);
std::unique_ptr<ClusterPolicy> make_philly(Options& options);
std::unique_ptr<ClusterPolicy> make_qssf(Options& options);
std::unique_ptr<ClusterPolicy> make_random(Options& options);
std::unique_ptr<ClusterPolicy> make_sjf(Options& options);
std::unique_ptr<ClusterPolicy> make_smallest_first(Options& options);
std::unique_ptr<ClusterPolicy> make_srsf(Options& options);
std::unique_ptr<ClusterPolicy> make_srtf(Options& options);
std::unique_ptr<ClusterPolicy> make_tiresias(Options& options);

}  // namespace commensal::policies
