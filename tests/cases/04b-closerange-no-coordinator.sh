#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# sarracenia#1652, python-daemon#45, pyinotify#140: a program closes all descriptors that it does not know and goes on in the same process.
# It must not die of that, its tensors must be right, and no file that it opens next may be written by the product. Here without a coordinator.
. "$(dirname "$0")/lib.sh"
COMMENSAL_RUNTIME_DIR=/proc/nope commensal run --name s1 --memory 1GiB -- "$PY" "$HERE/w04_closerange.py" "$W" >"$W/o" 2>"$W/err"; rc=$?
d=$(cat "$W/out" 2>/dev/null)
[ $rc = 0 ] && echo "$d" | grep -q 'files": 0, "largest": 10, "wrong words": 0, "done": true' && ok "$d"
fail "code $rc $d $(grep -v '^commensal' "$W/err" | tail -1 | cut -c1-100)"
