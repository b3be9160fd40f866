#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvcached#477/#482, HAMi-core#248: what is left behind by jobs that end by SIGTERM/SIGKILL/os._exit/abort, and by a killed daemon.
. "$(dirname "$0")/lib.sh"; export TMPDIR=$W/tmp; mkdir $TMPDIR
cat >$W/s.py <<'PY'
import os, sys, time, signal; import check
w = check.Watched(128); t = time.time()
while time.time() - t < float(sys.argv[1]): w.step()
if sys.argv[2] == "exit": os._exit(0)
if sys.argv[2] == "abort": os.abort()
if sys.argv[2] == "forkexit": os.fork() or os._exit(0)
PY
f0=$(ls -A /var/tmp /dev/shm | sort); bad=
for how in exit abort forkexit TERM KILL; do
  commensal run --name s1 --memory 1GiB -- "$PY" $W/s.py $([[ $how = TERM || $how = KILL ]] && echo 30 || echo 4) $how >/dev/null 2>>$W/err & p=$!
  sleep 5; (PAUSE=0.4 squeeze s1 2 32MiB); [[ $how = TERM || $how = KILL ]] && kill -$how $p; wait $p 2>/dev/null
done
sleep 3; n=$(commensal status --json | "$PY" -c "import json,sys; d=json.load(sys.stdin); print(len([j for j in d['jobs'] if j.get('state', j.get('activity')) != 'ended' and not j.get('ended')]))"); [ "$n" = 0 ] || bad="$bad jobs-left:$n"
l=$(ls -A $TMPDIR | grep -v torchinductor); [ -z "$l" ] || bad="$bad tmp:[$l]"; f1=$(ls -A /var/tmp /dev/shm | sort); [ "$f0" = "$f1" ] || bad="$bad files:[$(diff <(echo "$f0") <(echo "$f1") | grep '^>' | head -3 | tr '\n' ' ')]"
[ -z "$bad" ] && ok "nothing left"; fail "$bad"
