#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# TMPDIR, then also the runtime folder, on a full disk: the job must run and be managed. Needs leave to mount.
. "$(dirname "$0")/lib.sh"; M=$W/t; mkdir "$M"; mount -t tmpfs -o size=64k none "$M" 2>/dev/null || skip "cannot mount here"
at_end() { umount "$M"; }
dd if=/dev/zero of="$M/f" bs=1k count=100 status=none 2>/dev/null
TMPDIR=$M commensal run --name s1 -- "$PY" -c 'import torch, commensal; print(commensal.is_active())' >"$W/o" 2>"$W/e"; rc=$?
COMMENSAL_RUNTIME_DIR=$M/rt commensal run --name s1 -- "$PY" -c 'import torch, commensal; print(commensal.is_active())' >"$W/o2" 2>"$W/e2"; rc2=$?
[ $rc = 0 ] && [ $rc2 = 0 ] && grep -q True "$W/o" && grep -q True "$W/o2" && ok "both managed; $(head -1 "$W/e2" | cut -c1-150)"
fail "code $rc $rc2 $(cat "$W/o" "$W/o2") $(grep -v '^ ' "$W/e" | tail -1) | $(grep -v '^ ' "$W/e2" | tail -1)"
