// SPDX-License-Identifier: Apache-2.0
// The list of probes: a question about the hardware each.
#pragma once

#include <chrono>
#include <vector>

#include "device.h"
#include "report.h"

namespace probes {

struct Probe {
  const char* id;        ///< of the question: "memory-5.4.1a", "compute-9.4"
  const char* question;  ///< one sentence
  /// Answers it. @throws NotRun where it cannot be answered here, anything else where it failed.
  void (*run)(Device& device, Answer& answer);
  std::chrono::seconds deadline{40};
};

/// All probes, in the order in which they are asked: what decides most comes first.
const std::vector<Probe>& all_probes();

// mapping_probes.cpp
void host_located_chunk(Device& device, Answer& answer);
void stall_of_other_streams(Device& device, Answer& answer);
void creating_and_clearing(Device& device, Answer& answer);
void remap_under_a_graph(Device& device, Answer& answer);
void who_counts_host_chunks(Device& device, Answer& answer);
void mapping_times(Device& device, Answer& answer);
void many_chunks_in_one_call(Device& device, Answer& answer);

// chunk_probes.cpp
void stall_of_another_process(Device& device, Answer& answer);
void making_host_chunks(Device& device, Answer& answer);
void handing_chunks_over(Device& device, Answer& answer);

// transfer_probes.cpp
void host_numa_memory(Device& device, Answer& answer);
void copy_ceilings(Device& device, Answer& answer);
void pinning_times(Device& device, Answer& answer);
void kernels_on_host_memory(Device& device, Answer& answer);
void moving_beside_a_loop(Device& device, Answer& answer);

// stream_probes.cpp
void noise_of_steps(Device& device, Answer& answer);
void draining_the_queue(Device& device, Answer& answer);
void completion_written_to_memory(Device& device, Answer& answer);
void gate_by_a_waiting_stream(Device& device, Answer& answer);
void gates_in_default_stream_and_graph(Device& device, Answer& answer);

// fence_probes.cpp
void recording_a_context(Device& device, Answer& answer);
void fence_behind_launches(Device& device, Answer& answer);

// sharing_probes.cpp
void slices_and_switches(Device& device, Answer& answer);
void green_contexts(Device& device, Answer& answer);
void locking_a_process(Device& device, Answer& answer);
void checkpoint_with_host_memory(Device& device, Answer& answer);
void changing_the_slice(Device& device, Answer& answer);
void cost_of_the_callback(Device& device, Answer& answer);
void step_after_a_burst(Device& device, Answer& answer);

// service_probes.cpp
void multi_process_service(Device& device, Answer& answer);
void shares_of_threads(Device& device, Answer& answer);

}  // namespace probes
