#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SIGSTOP (Ctrl-Z, cgroup freezer, Slurm suspend) of an opportunistic job that holds memory a guaranteed one needs; SIGCONT later.
. "$(dirname "$0")/lib.sh"
commensald --instance $COMMENSAL_INSTANCE --memory-budget 1200MiB >$W/d 2>&1; sleep 1
cat >$W/s.py <<'PY'
import os, sys, time; import check
w = check.Watched(int(sys.argv[1])); end = time.time() + float(sys.argv[2]); bad = 0; k = 0
while time.time() < end: w.step(); bad += w.wrong(); k += 1
print("wrong", bad, "steps", k)
PY
commensal run --name opp -- "$PY" $W/s.py 800 62 >$W/o1 2>$W/e1 & p=$!; for i in $(seq 40); do commensal status 2>/dev/null | grep -q "^opp" && break; sleep 1; done; sleep 4
kill -STOP $p; commensal run --guaranteed --name gua --memory 900MiB -- "$PY" $W/s.py 700 36 >$W/o2 2>$W/e2 & q=$!
for i in 1 2 3; do sleep 10; commensal status >$W/st; tail -2 $W/st; done; commensal status opp | grep -i "deferred\|reason\|memory\|lease" | head -4; wait $q; r2=$?; kill -CONT $p; wait $p; r1=$?
cat $W/o1 $W/o2; grep commensal: $W/e2 | cut -c1-160
n=$(sed 's/.*steps //' $W/o2)
[ $r1 = 0 ] && [ $r2 = 0 ] && grep -q "wrong 0" $W/o1 && grep -q "wrong 0" $W/o2 && [ "$n" -gt 40 ] && ok "both right; the guaranteed job made $n steps"
fail "rc $r1 $r2; beside a stopped opportunistic job the GUARANTEED one made ${n:-0} steps in 36 s (alone: some hundreds), its limit: $(grep '^gua' $W/st | tail -1 | tr -s ' ' | cut -c1-80)"
