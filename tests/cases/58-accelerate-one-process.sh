#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# 'accelerate launch train.py' on one device: the launcher imports torch and starts the script as a child without RANK.
# Who of the two is the job? (the same: deepspeed, axolotl, llamafactory-cli, any wrapper that imports torch)
. "$(dirname "$0")/lib.sh"; need accelerate
cat >$W/s.py <<'PY'
import os, commensal, time, check
w = check.Watched(512); [w.step() for _ in range(30)]; time.sleep(1); w.step()
rss = sum(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))
s = commensal.stats(); print("role", s["job"]["role"], "limit", s["memory"]["limit_bytes"] >> 20, "held by commensal", s["memory"]["device_bytes"] >> 20, "MiB; anonymous memory", rss >> 10, "MiB; steps", s["step"]["number"])
PY
commensal run --name s1 --memory 200MiB -- "$PY" $W/s.py 2>$W/e1 | sed 's/^/python: /' | tee $W/o1
commensal run --name s1 --memory 200MiB -- "$PY" -m accelerate.commands.launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no $W/s.py 2>$W/e2 | sed 's/^/accelerate launch: /' | tee $W/o2; grep "not managed" $W/e2
cat >$W/wrap.py <<'PY'
import torch, subprocess, sys
sys.exit(subprocess.call([sys.executable] + sys.argv[1:]))
PY
commensal run --name s1 --memory 200MiB -- "$PY" $W/wrap.py $W/s.py 2>$W/e3 | sed 's/^/wrapper that imports torch: /' | tee $W/o3
grep -q "role main" $W/o2 && grep -q "role main" $W/o3 && ok "managed in all three"; fail "unmanaged: $(cat $W/o2 | tail -1)"
