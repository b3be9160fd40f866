// SPDX-License-Identifier: Apache-2.0
// Jobs, strictly: what a user wrote, and what is to be read back as it was.
#include "coordinator/cluster/job_json.h"

#include "coordinator/wire/json_fields.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

template <typename T>
T whole(const json& object, std::string_view what) {
  T value;
  wire::read_fields(object, what, value, wire::kStrict);
  return value;
}

template <typename T>
json strictly(const T& value, const std::string& field = "") {
  return wire::write_fields(value, wire::kStrict, field);
}

}  // namespace

json to_json(const JobSpec& spec) { return strictly(spec); }
json to_json(const wire::TermsPatch& terms) { return strictly(terms); }
json to_json(const JobRecord& record) { return strictly(record); }
json to_json(const std::vector<DevicePlace>& placement) { return strictly(placement, "placement"); }

JobSpec spec_from_json(const json& json) { return whole<JobSpec>(json, "what a job asks for"); }
wire::TermsPatch terms_from_json(const json& json) {
  return whole<wire::TermsPatch>(json, "the terms of a job");
}
JobRecord record_from_json(const json& json) { return whole<JobRecord>(json, "a job"); }

std::vector<DevicePlace> placement_from_json(const json& json) {
  std::vector<DevicePlace> placement;
  wire::read_field(json, "placement", placement, wire::kStrict);
  return placement;
}

}  // namespace commensal::cluster
