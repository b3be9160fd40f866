#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Container entry point: the script is PID 1; orphans of others become its children (zombies, os.wait() of strangers).
. "$(dirname "$0")/lib.sh"
unshare -p -f --mount-proc true 2>/dev/null || skip "cannot make a pid namespace here"
cat >$W/s.py <<'PY'
import os, torch, time, subprocess, sys
time.sleep(2); mine = subprocess.Popen(["sleep", "0.2"]); strangers = []
pid = os.getpid()
try:
    while True:
        p, s = os.waitpid(-1, os.WNOHANG if strangers or time.time() > 1e20 else 0)
        if p == mine.pid: break
        strangers.append(p)
        if p == 0: break
except ChildProcessError: pass
kids = [k for k in open(f"/proc/self/task/{pid}/children").read().split()]
names = []
for k in kids:
    try: names.append((k, open(f"/proc/{k}/comm").read().strip()))
    except OSError: pass
print("pid", pid, "strangers waited for", strangers, "children now", names)
PY
unshare -p -f --mount-proc "$COMMENSAL" run --name s1 -- "$PY" $W/s.py >$W/out 2>$W/err; rc=$?
cat $W/out; head -3 $W/err | cut -c1-200
[ $rc = 0 ] && ok "$(cat $W/out)"; fail "rc $rc $(tail -1 $W/err)"
