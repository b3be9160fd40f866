#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ray#39135, pytorch#117429, #16558: the same watched loop under a preloaded allocator (where installed), small limits, odd modes.
cd "$(dirname "$0")" || exit 1; S=${1:-5}
r() { n=$1; shift; o=$(env "$@" 2>&1 | tail -1); echo "$n $o"; case $o in OK*) ;; *) bad="$bad $n";; esac; }
for l in jemalloc.so.2 tcmalloc_minimal.so.4; do f=$(ldconfig -p | sed -n "s/.*lib$l.* => //p" | head -1); [ -n "$f" ] && r "$l" LD_PRELOAD="$f" ./live.sh t45_plain.py $S; done
r ulimit-v bash -c "ulimit -v 30000000; ./live.sh t45_plain.py $S"
r ulimit-n bash -c "ulimit -n 64; ./live.sh t45_plain.py $S"
r ulimit-s bash -c "ulimit -s 256; ./live.sh t45_plain.py $S"
r umask bash -c "umask 0777; ./live.sh t45_plain.py $S"
r nice nice -n 19 ./live.sh t45_plain.py $S
r terminal script -qec "./live.sh t45_plain.py $S" /dev/null
r dev-mode PYTHONDEVMODE=1 ./live.sh t45_plain.py $S
[ -z "$bad" ] && echo "OK: all" || { echo "FAIL:$bad"; exit 1; }
