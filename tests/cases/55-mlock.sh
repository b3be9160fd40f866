#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# earlyoom#112, systemd#40319: mlockall(MCL_FUTURE), as low-latency scripts and keepers of secrets call it: reserved address space must not become memory.
# In a memory control group of 3 GiB (needs leave to make one), so that a mistake cannot hurt the machine.
. "$(dirname "$0")/lib.sh"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then G=/sys/fs/cgroup/case$$; mkdir "$G" 2>/dev/null && echo 3G >"$G/memory.max" 2>/dev/null; r=$?
else G=/sys/fs/cgroup/memory/case$$; mkdir "$G" 2>/dev/null && echo 3G >"$G/memory.limit_in_bytes" 2>/dev/null; r=$?; fi
at_end() { rmdir "$G" 2>/dev/null; }
[ $r = 0 ] || skip "no control group here"
commensald --instance "$COMMENSAL_INSTANCE" >/dev/null 2>&1; export CASE_SECONDS=5
in_group() { bash -c 'echo $BASHPID >"$0/cgroup.procs"; exec "$@"' "$G" "$@"; }
in_group "$PY" -c 'import ctypes, torch; print("mlockall", ctypes.CDLL(None).mlockall(2)); a = torch.ones(8 << 20)' >"$W/plain" 2>&1
in_group commensal run --name s1 --memory 1GiB -- "$PY" "$HERE/t55_mlockall.py" >"$W/out" 2>"$W/err"; rc=$?
sleep .5; echo "plain Python: $(tail -1 "$W/plain")"
grep -q "^OK mlockall not allowed" "$W/out" && skip "$(head -1 "$W/out")"
grep -q "^OK" "$W/out" && ok "$(head -1 "$W/out" | cut -c4-)"; fail "code $rc $(head -1 "$W/out") $(grep -v '^ \|^commensal' "$W/err" | tail -1 | cut -c1-200)"
