#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What 56 means for users: an opportunistic job that imports pandas (3: pyarrow) HOLDS memory that a guaranteed job comes for.
# (The opportunistic job must have its memory before the other one comes: it writes the file 'ready'.)
. "$(dirname "$0")/lib.sh"; need pandas; commensald --instance $COMMENSAL_INSTANCE --memory-budget 1GiB >/dev/null 2>&1; sleep 1
cat >$W/s.py <<'PY'
import os, sys, time, check, torch, commensal
mib, seconds, name, lib, folder = int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:6]
if lib == "pandas": import pandas as pd; pd.DataFrame({"a": ["x", "y"]}).sort_values("a")
w = check.Watched(mib); w.step(); open(f"{folder}/ready-{name}", "w").close(); end = time.time() + seconds; bad = k = 0; late = 0.
while time.time() < end and not os.path.exists(f"{folder}/stop-{name}"):
    t = time.time(); w.step(); k += 1; late = max(late, time.time() - t); bad += w.wrong() if k % 20 == 0 else 0; time.sleep(0.02)
print(name, "steps", k, "longest step %.1f s" % late, "wrong", bad + w.wrong())
PY

for lib in ${*:-none pandas pandas}; do
  rm -f $W/ready-* $W/stop-*
  commensal run --opportunistic --name opp --quiet -- "$PY" $W/s.py 700 120 opp $lib $W >$W/o1 2>$W/e1 & p=$!
  for i in $(seq 60); do [ -e $W/ready-opp ] && break; sleep 1; done; sleep 1
  commensal run --guaranteed --name gua --memory 800MiB --quiet -- "$PY" $W/s.py 700 16 gua none $W >$W/o2 2>$W/e2 & q=$!
  for i in $(seq 40); do [ -e $W/ready-gua ] && break; sleep 1; done; sleep 9; commensal status >$W/st 2>&1; commensal status opp >$W/st2 2>&1; wait $q; touch $W/stop-opp; wait $p
  echo "[$lib] $(cat $W/o2) | $(cat $W/o1)"; grep "^opp\|^gua" $W/st | grep -v ended | tr -s ' '; grep -i "deferred" $W/st2 | head -2 | cut -c1-160
  n=$(sed 's/.*gua steps \([0-9]*\).*/\1/' $W/o2); [ $lib = pandas ] && worst=$(printf '%s\n' ${worst:-999999} $n | sort -n | head -1) || none=$n
done
[ "$worst" -gt $((none * 6 / 10)) ] && ok "guaranteed job: $worst steps beside a job with pandas, $none beside one without"; fail "the GUARANTEED job made $worst steps beside an opportunistic job that imports pandas, $none beside one that does not"
