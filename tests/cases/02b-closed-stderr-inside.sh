#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# libmdbx#144: descriptor 2 is closed between the launcher and the script (wrapper scripts, daemonisers). The next file that anybody opens
# gets number 2; stray messages of C libraries go into it. It must be what it is under plain Python.
. "$(dirname "$0")/lib.sh"
commensal run --name s1 --memory 2GiB -- sh -c 'exec 2>&-; exec "$@"' sh "$PY" "$HERE/w02_stray_messages.py" "$W/out" & p=$!
started s1 $p; PAUSE=0.6 squeeze s1 4; wait $p; rc=$?; d=$(cat "$W/out" 2>/dev/null)
plain=$(sh -c 'exec 2>&-; exec "$@"' sh "$PY" -c 'import torch, os
try: print(os.readlink("/proc/self/fd/2"))
except OSError: print("closed")')
[ $rc = 0 ] && echo "$d" | grep -q '"bad": 0' && echo "$d" | grep -q "\"fd2\": \"$plain\"" && ok "$d"
fail "code $rc $d (plain Python: descriptor 2 is $plain)"
