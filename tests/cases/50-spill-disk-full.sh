#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The spill folder is small (300 MB) and then full while live memory has to leave. The job must live; a limit that cannot be held is deferred with a reason.
# Needs leave to mount.
. "$(dirname "$0")/lib.sh"; I=$W/disk.img; M=$W/mnt; mkdir "$M"
dd if=/dev/zero of="$I" bs=1M count=300 status=none && mkfs.ext4 -q "$I" && mount -o loop "$I" "$M" 2>/dev/null || skip "cannot mount here"
at_end() { umount "$M"; }
cat >"$W/s.py" <<'PY'
import time, check, torch, commensal
w = check.Watched(384); end = time.time() + 24; bad = 0; why = set()
while time.time() < end:
    w.step(); x = torch.ones(1 << 18); bad += w.wrong() + int((x != 1).sum()); why.add(commensal.stats()["memory"].get("deferred_reason", ""))
print("wrong", bad, [x for x in why if x][:3])
PY
commensal run --name s1 --memory 2GiB --spill-dir "$M" -- "$PY" "$W/s.py" >"$W/out" 2>"$W/err" & p=$!; started s1 $p; sleep 2
commensal set s1 --memory 256MiB; sleep 3; dd if=/dev/zero of="$M/fill" bs=1M count=400 status=none 2>/dev/null
commensal set s1 --memory 64MiB; sleep 3; rm -f "$M/fill"; commensal set s1 --memory 2GiB >/dev/null
wait $p; rc=$?; d=$(cut -c1-200 "$W/out")
[ $rc = 0 ] && echo "$d" | grep -q "wrong 0" && ok "$d"; fail "code $rc $d $(grep -v "^ \|^commensal" "$W/err" | tail -1 | cut -c1-300)"
