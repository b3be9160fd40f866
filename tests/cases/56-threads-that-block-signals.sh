#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Users of pandas 3 and of pyarrow (pip names: pandas, pyarrow): importing them starts a thread that blocks all signals for its whole life
# (jemalloc_bg_thd) and never touches a tensor. A limit must still shrink live memory.
. "$(dirname "$0")/lib.sh"; need pandas pyarrow
cat >"$W/s.py" <<'PY'
import sys, time, check, torch, commensal
kind = sys.argv[1]
if kind == "pyarrow": import pyarrow as pa; pa.table({"a": list(range(1000))})
if kind == "pandas": import pandas as pd; pd.DataFrame({"a": ["x", "y"]}).sort_values("a")
w = check.Watched(128); w.step(); time.sleep(.3); done = 0; why = ""
for _ in range(4):
    t = commensal.set_memory_limit("32MiB"); done += t.done_bytes; why = t.reason or why; w.step(); time.sleep(.3)
m = commensal.stats()["memory"]
print(f"{kind:8} moved {done >> 20} MiB of 96, still above the limit {max(0, m['device_bytes'] - m['limit_bytes']) >> 20} MiB, wrong {w.wrong()}; {why[-90:]}")
sys.exit(m["device_bytes"] > 40 << 20 or w.wrong() != 0)
PY
for k in plain pyarrow pandas; do
  commensal run --quiet --name s1 --memory 1GiB -- "$PY" "$W/s.py" $k 2>"$W/err" | tee -a "$W/out"; [ ${PIPESTATUS[0]} = 0 ] || bad="$bad $k"; grep -h "Error" "$W/err" | tail -1
done
[ -z "$bad" ] && ok "live memory shrinks beside all"; fail "nothing moves beside:$bad"
