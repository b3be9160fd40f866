#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# sarracenia#1652, comfyui-mcp#785: a script restarts itself by os.execv (same pid, inherited environment).
. "$(dirname "$0")/lib.sh"
cat >$W/s.py <<'PY'
import os, sys, time, torch, commensal, json
x = torch.ones(32 << 20); n = int(os.environ.get("GEN", "0"))
print("gen", n, "active", commensal.is_active(), flush=True)
if n < 2:
    os.environ["GEN"] = str(n + 1); time.sleep(1); os.execv(sys.executable, [sys.executable] + sys.argv)
time.sleep(20); print("pid", os.getpid(), "role", commensal.stats()["job"] if commensal.is_active() else None)
PY
commensal run --name s1 --memory 1GiB -- "$PY" $W/s.py >$W/out 2>$W/err & p=$!
for i in $(seq 200); do grep -q "^gen 2" $W/out && break; sleep 0.5; done
commensal status --json >$W/st.json 2>$W/e; commensal status; commensal set s1 --memory 64MiB >$W/set 2>&1; cat $W/set
wait $p; rc=$?; cat $W/out; grep commensal: $W/err | cut -c1-160
"$PY" - $W/st.json $p <<'PY' >$W/v; r=$?; cat $W/v
import json,sys
d=json.load(open(sys.argv[1])); jobs=d.get("jobs", []); live=[j for j in jobs if j.get("state")!="ended"]
print(len(jobs), "jobs", [(j.get("id"), j.get("state"), [ (m.get("pid"), m.get("role")) for m in j.get("processes", j.get("members", []))]) for j in jobs])
sys.exit(0 if len(live)==1 else 1)
PY
[ $rc = 0 ] && [ $r = 0 ] && [ "$(grep -c 'active True' $W/out)" = 3 ] && ok "each generation is the job"
fail "rc $rc; $(cat $W/v)"
