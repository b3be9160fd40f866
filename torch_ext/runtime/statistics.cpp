// SPDX-License-Identifier: Apache-2.0
// The one place that knows the names of the statistics' fields.
#include "torch_ext/runtime/statistics.h"

#include "allocator/base/clock.h"

namespace commensal {
namespace {

using nlohmann::json;

json limit_or_null(Bytes limit) {
  return limit.count() == UINT64_MAX ? json(nullptr) : json(limit.count());
}

json job_json(const StatisticsView::Job& job) {
  return {{"id", job.id},
          {"name", job.name},
          {"tenant", job.tenant},
          {"class", job.job_class},
          {"active", job.active},
          {"role", job.role},
          {"rank", job.rank},
          {"world_size", job.world_size},
          {"pid", job.pid},
          {"coordinator", job.coordinator},
          {"coordinator_pid", job.coordinator_pid},
          {"reason", job.reason},
          {"malformed_frames_total", job.malformed_frames}};
}

json tags_json(const std::vector<TagResidency>& tags) {
  json all = json::array();
  for (const TagResidency& tag : tags) {
    all.push_back({{"name", tag.name},
                   {"keep", tag.options.keep},
                   {"parked", tag.parked},
                   {"device_bytes", tag.device.count()},
                   {"host_bytes", tag.host.count()},
                   {"parked_bytes", tag.saved.count()},
                   {"dropped_bytes", tag.dropped.count()},
                   {"live_bytes", tag.live.count()}});
  }
  return all;
}

json devices_json(const std::vector<StatisticsView::Device>& devices) {
  json all = json::array();
  for (const auto& [id, memory, wanted] : devices) {
    const bool unlimited = memory.limit.count() == UINT64_MAX;
    all.push_back({{"device", id},
                   {"limit_bytes", unlimited ? json(nullptr) : json(memory.limit.count())},
                   {"device_bytes", memory.device.count()},
                   {"host_bytes", memory.host.count()},
                   {"host_touched_bytes", memory.host_touched.count()},
                   {"delegated_bytes", memory.outside.count()},
                   {"cached_bytes", memory.cached.count()},
                   {"live_bytes", memory.live.count()},
                   {"wanted_bytes", wanted.count()},
                   {"deferred_bytes", memory.deferred.count()},
                   {"deferred_reason", memory.deferred_reason}});
  }
  return all;
}

json kept_json(const std::vector<KeptMemory>& kept) {
  json all = json::array();
  for (const KeptMemory& memory : kept) {
    all.push_back({{"reason", memory.why}, {"bytes", memory.bytes.count()}});
  }
  return all;
}

json memory_json(const StatisticsView& view) {
  const AllocatorStats& m = view.memory;
  return {{"policy", view.memory_policy},
          {"limit_bytes", limit_or_null(m.limit)},
          {"min_bytes", view.memory_min.count()},
          {"max_bytes", view.memory_max ? json(view.memory_max->count()) : json(nullptr)},
          {"device_bytes", m.device.count()},
          {"host_bytes", m.host.count()},
          {"host_touched_bytes", m.host_touched.count()},
          {"parked_bytes", m.parked.count()},
          {"dropped_bytes", m.dropped.count()},
          {"tags", tags_json(view.tags)},
          {"devices", devices_json(view.devices)},
          {"kept_bytes", m.kept.count()},
          {"kept", kept_json(view.kept)},
          {"delegated_bytes", m.outside.count()},
          {"cached_bytes", m.cached.count()},
          {"live_bytes", m.live.count()},
          {"peak_live_bytes", m.peak_live.count()},
          {"peak_device_bytes", m.peak_device.count()},
          {"wanted_bytes", view.wanted.count()},
          {"moved_bytes_total", (m.moved_out + m.moved_in).count()},
          {"moved_out_bytes_total", m.moved_out.count()},
          {"moved_ahead_bytes_total", m.moved_ahead.count()},
          {"moved_in_bytes_total", m.moved_in.count()},
          {"given_back_bytes_total", m.given_back.count()},
          {"deferred_bytes", m.deferred.count()},
          {"deferred_reason", m.deferred_reason},
          {"held_back_bytes", m.held_back.count()},
          {"held_back_reason", m.held_back_reason},
          {"held_back_total", m.held_back_times},
          {"held_by_children_bytes", m.held_by_children.count()},
          {"moves_total", m.moves},
          {"longest_pause_seconds", in_seconds(m.longest_pause)},
          {"pause_seconds_total", in_seconds(m.total_pause)},
          {"safe_point_wait_seconds_total", in_seconds(m.safe_point_wait)},
          {"allocations_total", m.allocations},
          {"frees_total", m.frees},
          {"out_of_memory_total", m.out_of_memory},
          {"revision", view.revision},
          {"notes", view.notes}};
}

json gaps_json(const std::vector<GapSummary>& gaps) {
  json all = json::array();
  for (std::size_t i = 1; i < wire::kGapPhases; ++i) {  // all that have a name, seen or not
    GapSummary gap;
    gap.phase = static_cast<wire::GapPhase>(i);
    for (const GapSummary& seen : gaps) {
      if (seen.phase == gap.phase) gap = seen;
    }
    json lengths = json::array();
    for (const auto& [floor, count] : gap.lengths) lengths.push_back({in_seconds(floor), count});
    all.push_back({{"phase", wire::to_string(gap.phase)},
                   {"waits_total", gap.waits},
                   {"seconds_total", in_seconds(gap.waited)},
                   {"median_seconds", in_seconds(gap.median)},
                   {"p90_seconds", in_seconds(gap.p90)},
                   {"lengths", std::move(lengths)}});
  }
  return all;
}

json gate_json(const StatisticsView& view) {
  const GateStats& gate = view.gate;
  json closed_by = json::array();
  for (const auto& [reason, time] : gate.closed_by) {
    closed_by.push_back({{"reason", reason}, {"seconds", in_seconds(time)}});
  }
  return {{"law", gate.law},
          {"share", gate.share_max},
          {"share_min", gate.share_min},
          {"state", gate.state},
          {"reason", gate.reason},
          {"closed_seconds_total", in_seconds(gate.closed_total)},
          {"closed_by", std::move(closed_by)},
          {"ops_gated_total", gate.ops_gated},
          {"ops_seen_total", gate.ops_seen},
          {"ops_behind_total", gate.ops_behind},
          {"copied_bytes_total", gate.copied_bytes},
          {"gang_epoch", gate.gang_epoch},
          {"busy_seconds_total", in_seconds(gate.busy_total)},
          {"off_device_seconds_total", in_seconds(gate.off_device_total)},
          {"in_flight_seconds", in_seconds(gate.in_flight)},
          {"in_flight_bound_seconds", gate.in_flight_bound > Duration::zero()
                                          ? json(in_seconds(gate.in_flight_bound))
                                          : json(nullptr)},
          {"waiting_op_seconds",
           gate.waiting_op > Duration::zero() ? json(in_seconds(gate.waiting_op)) : json(nullptr)},
          {"hand_overs_total", gate.hand_overs},
          {"idle_class", view.idle_class},
          {"idle_class_reason", view.idle_class_reason}};
}

json samples_json(const StatisticsView& view) {
  const OpSampleSums& sums = view.samples;
  json top = json::array();
  for (const OpSampleSums::Op& op : sums.top) {
    top.push_back({{"name", op.name},
                   {"work", op.work},
                   {"samples", op.samples},
                   {"seconds", in_seconds(op.time)}});
  }
  return {{"windows_total", view.sample_windows},
          {"window_seconds_total", in_seconds(view.sampled)},
          {"ops_total", sums.samples},
          {"ops_unclassified_total", sums.unclassified},
          {"compute_seconds_total", in_seconds(sums.compute)},
          {"memory_seconds_total", in_seconds(sums.memory)},
          {"on_core_seconds_total", in_seconds(sums.ran)},
          {"top", std::move(top)}};
}

json multiprocessors_json(const StatisticsView::Multiprocessors& view) {
  const auto number = [&view](unsigned MultiprocessorState::*which) {
    return view.state && view.state->total > 0 ? json((*view.state).*which) : json(nullptr);
  };
  return {{"share", view.share ? json(*view.share) : json(nullptr)},
          {"asked", number(&MultiprocessorState::asked)},
          {"granted", number(&MultiprocessorState::granted)},
          {"total", number(&MultiprocessorState::total)},
          {"reason", view.reason}};
}

}  // namespace

json to_json(const StatisticsView& view) {
  return {{"schema", kStatsSchema},
          {"job", job_json(view.job)},
          {"memory", memory_json(view)},
          {"gate", gate_json(view)},
          {"samples", samples_json(view)},
          {"cores",
           {{"cpus", view.cores.cpus},
            {"own", view.cores.own},
            {"reason", view.cores.reason},
            {"threads_left_alone", view.cores.left_alone},
            {"elastic_threads", view.cores.elastic_threads},
            {"threads", view.cores.threads > 0 ? json(view.cores.threads) : json(nullptr)}}},
          {"multiprocessors", multiprocessors_json(view.multiprocessors)},
          {"step",
           {{"number", view.step.number},
            {"last_seconds", in_seconds(view.step.last)},
            {"median_seconds", in_seconds(view.step.median)},
            {"confidence", view.step.confidence},
            {"source", to_string(view.step.source)}}},
          {"activity",
           {{"state", view.activity.state},
            {"waits_total", view.activity.waits},
            {"wait_seconds_total", in_seconds(view.activity.waited)},
            {"wait_typical_seconds", in_seconds(view.activity.typical)},
            {"phase", view.activity.phase.empty() ? wire::to_string(wire::GapPhase::kUnknown)
                                                  : view.activity.phase},
            {"gaps", gaps_json(view.activity.gaps)}}}};
}

}  // namespace commensal
