-- SPDX-License-Identifier: Apache-2.0
-- commensal's rules for both classes; runs inside slurmctld for every submission, whatever client it
-- comes from. It holds a lock of the controller, so it is short.
--
--   --commensal=guaranteed      partition "guaranteed", whole devices: --gres=gpu:N
--   --commensal=opportunistic   partition "opportunistic", seats beside them: --gres=seat:N
--   --commensal=auto            two twins, one as each of these; what they ask for as gpu is a seat for
--                               the second; AUTO runs the script in one of them (docs/slurm.md)
--
-- The SPANK plugin puts the option into the job's control environment, which arrives here as
-- spank_job_env. A job without the option is left as it is, unless it asks for what its partition
-- does not give.
--
-- gpu requests of others are not rewritten into seats: srun asks for the same resources again when
-- it makes the step, and then fails because the job has none of them. (Assigning nil to a field of
-- `job` is an error, too.)

-- The program on the nodes; commensal-slurm-install fills it in. Empty: --commensal=auto is refused.
local AUTO = "@AUTO@"
-- So many seconds later the second twin may start: where a whole device is free, the first one has it
-- by then.
local HEAD_START = 5

local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }
local PER_DEVICE = { "cpus_per_tres", "mem_per_tres" }

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

-- The same in seats: "gres:gpu:a100:2,gres:shm:1" is "gres:seat:a100:2,gres:shm:1".
local function seated(text)
  local parts = {}
  for part in string.gmatch(text, "[^,]+") do
    local before, name, rest = string.match(part, "^(%a*[:/]?)(gpu)(.*)$")
    if name and (before == "" or string.match(before, "^gres[:/]$")) and string.match(rest, "^[:=]") then
      part = before .. "seat" .. rest
    elseif part == "gpu" or part == "gres:gpu" or part == "gres/gpu" then
      part = string.gsub(part, "gpu$", "seat")
    end
    parts[#parts + 1] = part
  end
  return table.concat(parts, ",")
end

-- A name of an output file that would be the same for both twins gets the class at its end; the twin
-- that runs the script takes that off again (AUTO). Names with a job's number are well as they are.
local function own_output(text, class)
  if (text or "") == "" or text == "/dev/null" or string.match(text, "%%%d*[jJA]") then return nil end
  return text .. ".commensal-" .. class
end

-- The number that both twins of a pair have; nil for other jobs.
local function pair_of(job)
  for _, item in pairs(job.spank_job_env or {}) do
    local pair = string.match(item, "COMMENSAL_PAIR=(%x+)$")
    if pair then return pair end
  end
  return nil
end

-- Makes a twin of the job; returns what keeps it from being one.
local function make_twin(job, class, pair)
  if string.sub(AUTO, 1, 1) ~= "/" then
    return "--commensal=auto is not installed here: say guaranteed or opportunistic"
  end
  if (job.array_inx or "") ~= "" then
    return "--commensal=auto takes no --array: submit its jobs one by one, or say opportunistic"
  end
  if (job.script or "") == "" then return "--commensal=auto is for sbatch" end
  if class == "opportunistic" then
    for _, fields in ipairs({ FIELDS, PER_DEVICE }) do
      for _, field in ipairs(fields) do
        local text = job[field] or ""
        if seated(text) ~= text then job[field] = seated(text) end
      end
    end
    if (job.begin_time or 0) < os.time() + HEAD_START then job.begin_time = os.time() + HEAD_START end
  end
  for _, field in ipairs({ "std_out", "std_err" }) do
    local name = own_output(job[field], class)
    if name then job[field] = name end
  end
  job.admin_comment = "commensal-auto:" .. pair .. ":" .. class
  job.script = "#!/bin/sh\n" ..
    "# commensal-slurm-auto: one of two twins; the script of the job follows below.\n" ..
    "exec '" .. AUTO .. "' " .. class .. " " .. pair .. ' "$0" "$@"\n' .. job.script
  return nil
end

local function submit(job)
  local class = class_of(job)
  local pair = pair_of(job)
  if pair and class then
    local obstacle = make_twin(job, class, pair)
    if obstacle then
      slurm.log_user(obstacle)
      return slurm.ERROR
    end
  end
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
  -- Not so a twin: as it is both would run the script.
  local known, pair = pcall(pair_of, job)
  if known and pair then
    slurm.log_user("commensal's rules failed: see slurmctld's log")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
