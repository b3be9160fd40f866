// SPDX-License-Identifier: Apache-2.0
// The fields of every message and of a hand-over (allocator/base/field_rules.h).
#pragma once

#include <cstdint>
#include <limits>

#include "allocator/base/field_rules.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/pages.h"

namespace commensal::wire {

inline constexpr Between kRevisions{Revision{0}, kMaxRevision};  ///< leaves room for newer ones

void fields(SameAs<UsedDevice> auto& m, auto& field) {
  field("device", m.device);
  field("held_bytes", m.held_bytes);
  field("revision", m.revision, kRevisions);
  field("limit_bytes", m.limit_bytes);
}
void fields(SameAs<Register> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("name", m.name);
  field("tenant", m.tenant);
  field("job_class", m.job_class);
  fields(m.terms, field);
  field("pid", m.pid,
        Between{std::int64_t{1}, std::int64_t{std::numeric_limits<std::int32_t>::max()}});
  field("start_ticks", m.start_ticks);
  field("role", m.role);
  field("rank", m.rank);
  field("world_size", m.world_size);
  field("gang", m.gang);
  field("epoch", m.epoch);
  field("devices", m.devices, ListSize{1, kMaxDevices});
}
void fields(SameAs<Registered> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("coordinator", m.coordinator);
  field("coordinator_pid", m.coordinator_pid);
  field("capacity_bytes", m.capacity_bytes);
  field("limit_bytes", m.limit_bytes);
  field("share", m.share);
  field("law", m.law);
  field("job_class", m.job_class);
  field("revision", m.revision, kRevisions);
  field("reason", m.reason);
  field("device", m.device);
}
void fields(SameAs<Stats> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("stats", m.stats);
  field("final", m.final);
}
void fields(SameAs<Change> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("revision", m.revision, kRevisions);
  field("limit_bytes", m.limit_bytes);
  fields(m.terms, field);
  field("paused", m.paused);
  field("parked", m.parked);
  field("reason", m.reason);
  field("device", m.device);
  field("job_class", m.job_class);
}
void fields(SameAs<Answer> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("revision", m.revision, kRevisions);
  field("outcome", m.outcome);
  field("done_bytes", m.done_bytes);
  field("deferred_bytes", m.deferred_bytes);
  field("held_bytes", m.held_bytes);
  field("reason", m.reason);
  field("device", m.device);
  field("job_class", m.job_class);
}
void fields(SameAs<AskMemory> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("needed_bytes", m.needed_bytes);
  field("held_bytes", m.held_bytes);
  field("device", m.device);
}
void fields(SameAs<StatusRequest> auto& m, auto& field) { field("job", m.job); }
void fields(SameAs<StatusReply> auto& m, auto& field) { field("status", m.status); }
void fields(SameAs<SetRequest> auto& m, auto& field) {
  field("job", m.job);
  fields(m.terms, field);
  field("paused", m.paused);
  field("job_class", m.job_class);
}
void fields(SameAs<SetReply> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("revision", m.revision, kRevisions);
  field("outcome", m.outcome);
  field("reason", m.reason);
}
void fields(SameAs<MapRequest> auto& m, auto& field) {
  field("job", m.job);
  field("pid", m.pid);
  field("ticket", m.ticket);
}
void fields(SameAs<MapReply> auto& m, auto& field) {
  field("job_id", m.job_id);
  field("pid", m.pid);
  field("ticket", m.ticket);
  field("map", m.map);
  field("reason", m.reason);
}
void fields(SameAs<ExplainRequest> auto& m, auto& field) {
  field("job", m.job);
  field("seconds", m.seconds);
  field("series", m.series);
}
void fields(SameAs<ExplainReply> auto& m, auto& field) { field("explanation", m.explanation); }
void fields(SameAs<Error> auto& m, auto& field) {
  field("code", m.code);
  field("what", m.what);
  field("device", m.device);
}

void fields(SameAs<Handover> auto& message, auto& field) {
  field("kind", message.kind);
  field("job_id", message.job_id, TextSize{0, kIdSize - 1});
  field("pid", message.pid);
  field("rank", message.rank);
  field("text", message.text);
}

}  // namespace commensal::wire
