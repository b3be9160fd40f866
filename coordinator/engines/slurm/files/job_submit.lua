-- SPDX-License-Identifier: Apache-2.0
-- commensal's rules for both classes; runs inside slurmctld for every submission, whatever client it
-- comes from. It holds a lock of the controller, so it is short.
--
--   --commensal=guaranteed      partition "guaranteed", whole devices: --gres=gpu:N
--   --commensal=opportunistic   partition "opportunistic", seats beside them: --gres=seat:N
--
-- The SPANK plugin puts the option into the job's control environment, which arrives here as
-- spank_job_env. A job without the option is left as it is, unless it asks for what its partition
-- does not give.
--
-- gpu requests are not rewritten into seats: srun asks for the same resources again when it makes
-- the step, and then fails because the job has none of them. (Assigning nil to a field of `job` is
-- an error, too.)

local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

local function class_of(job)
  for _, item in pairs(job.spank_job_env or {}) do
    local class = string.match(item, "COMMENSAL_CLASS=(%a+)")
    if class then return class end
  end
  if job.partition == "guaranteed" or job.partition == "opportunistic" then return job.partition end
  return nil
end

-- True if the job asks for this kind: "gres:NAME:2", "gres/NAME:2", "gres/NAME=2", "NAME:2", "NAME"
local function asks(job, name)
  for _, field in ipairs(FIELDS) do
    for part in string.gmatch(job[field] or "", "[^,]+") do
      part = string.gsub(part, "^gres[:/]", "")
      if part == name or string.match(part, "^" .. name .. "[:=]") then return true end
    end
  end
  return false
end

local function submit(job)
  local class = class_of(job)
  if class == "opportunistic" then
    if asks(job, "gpu") then
      slurm.log_user("an opportunistic job takes --gres=seat:N, not gpu")
      return slurm.ERROR
    end
    job.partition = "opportunistic"
  elseif class == "guaranteed" then
    if asks(job, "seat") then
      slurm.log_user("a guaranteed job takes --gres=gpu:N; seat is for --commensal=opportunistic")
      return slurm.ERROR
    end
    job.partition = "guaranteed"
  elseif asks(job, "seat") then
    slurm.log_user("--gres=seat is for --commensal=opportunistic")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

-- Slurm 22.05 lets a job pass when the script breaks on it, and so do we: a mistake here must not
-- stop a cluster. It is in slurmctld's log.
function slurm_job_submit(job, partitions, uid)
  local ok, result = pcall(submit, job)
  if ok then return result end
  slurm.log_error("commensal job_submit: %s", tostring(result))
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
