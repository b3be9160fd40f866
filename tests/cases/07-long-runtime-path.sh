#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cpython#132124, parsl#3947: AF_UNIX paths of more than 107 bytes.
. "$(dirname "$0")/lib.sh"
L=$W/$(printf 'x%.0s' $(seq 120)); mkdir -p $L; chmod 700 $L; export COMMENSAL_RUNTIME_DIR=$L
printf 'import torch, commensal\nprint("active", commensal.is_active())\n' >$W/s.py
commensal run --name s1 -- "$PY" $W/s.py >$W/out 2>$W/err; rc=$?
grep -i "too long\|longer\|no coordinator" $W/err | head -2 | cut -c1-300; cat $W/out
[ $rc = 0 ] && grep -q "active True" $W/out && grep -qi "socket path\|too long\|longer" $W/err && ok "script is managed on its own limits, reason said"
fail "rc $rc $(cat $W/out) $(tail -1 $W/err | cut -c1-200)"
