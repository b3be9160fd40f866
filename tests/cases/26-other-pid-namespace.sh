#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# HAMi/containers: the job is in another pid namespace than the daemon (shared runtime folder): pids mean nothing there.
. "$(dirname "$0")/lib.sh"
unshare -p -f --mount-proc true 2>/dev/null || skip "cannot make a pid namespace here"
commensald --instance $COMMENSAL_INSTANCE >$W/d 2>&1; sleep 1
printf 'import torch, commensal, time, os\nx=torch.ones(64<<20); time.sleep(25)\nprint("pid", os.getpid(), commensal.stats()["coordinator"] if "coordinator" in commensal.stats() else commensal.is_active())\n' >$W/s.py
unshare -p -f --mount-proc "$COMMENSAL" run --name s1 --memory 1GiB -- "$PY" $W/s.py >$W/out 2>$W/err & p=$!
sleep 9; commensal status >$W/st 2>&1; cat $W/st; commensal set s1 --memory 64MiB >$W/set 2>&1; cat $W/set; sleep 1; commensal status s1 >$W/st2 2>&1; wait $p; rc=$?; cat $W/out; cat $W/err | cut -c1-250
[ $rc = 0 ] && grep -q "^s1" $W/st && ok "seen and set"; fail "rc $rc; $(grep commensal: $W/err | head -2 | tr '\n' ' ' | cut -c1-300)"
