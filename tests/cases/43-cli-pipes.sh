#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SIGPIPE / narrow terminals / many starts at once / commands while nothing runs.
. "$(dirname "$0")/lib.sh"; bad=0; cd $W || exit 1
say() { echo "$1 $2"; case $1 in FAIL*) bad=$((bad+1));; esac; }
printf 'import torch, time\nfor i in range(150): torch.ones(1000).sum(); time.sleep(0.1); print(i, flush=True)\n' >s.py
ids=; for i in 1 2 3 4 5 6; do commensal run --name j$i -- "$PY" -c 'print(1)' >o$i 2>e$i & ids="$ids $!"; done; r=0; for p in $ids; do wait $p || r=1; done
n=$(pgrep -fc "commensald.*$COMMENSAL_INSTANCE"); grep -l "no coordinator" e? >/dev/null 2>&1 && say FAIL "6 first starts at once: $(grep -h 'no coordinator' e? | head -1)" || say OK "6 first starts at once, daemons: $n rc $r"
commensal run --name big -- "$PY" s.py >/dev/null 2>e & p=$!; sleep 4
for c in "status" "status --json" "doctor" "logs" "explain big" "top --once" "memory big" "--help" "run --help" "simulate --list-policies"; do
  (commensal $c 2>pe; echo $? >prc) | head -c 1 >/dev/null; grep -q "Traceback\|BrokenPipe\|Exception ignored" pe && say FAIL "$c | head: $(tail -1 pe) rc $(cat prc)"; done
for c in 1 20 40; do COLUMNS=$c commensal status >o 2>e2 || say FAIL "COLUMNS=$c"; grep -q Traceback e2 && say FAIL "COLUMNS=$c traceback"; done
TERM=dumb commensal top --once >o 2>e2 || say FAIL "TERM=dumb top"; TERM='' commensal status >o 2>e2 || say FAIL "no TERM"
commensal run --name out -- "$PY" s.py 2>e3 | head -2 >/dev/null; r=${PIPESTATUS[0]}; [ $r = 1 ] || [ $r = 141 ] || [ $r = 120 ] && say OK "script | head: rc $r" || say FAIL "script | head: rc $r"
(cd /; mkdir -p $W/del; cd $W/del || exit 1; rm -rf $W/del; commensal run --name nocwd -- "$PY" -c 'print(5)' >$W/o 2>$W/e4); r=$?; [ $r = 0 ] && say OK "deleted working folder" || say FAIL "deleted working folder: rc $r $(grep -v '^ ' $W/e4 | tail -1 | cut -c1-150)"
env -i "$COMMENSAL" --version >o 2>e5; r=$?; env -i COMMENSAL_RUNTIME_DIR=$COMMENSAL_RUNTIME_DIR COMMENSAL_INSTANCE=$COMMENSAL_INSTANCE "$COMMENSAL" run --name e -- "$PY" -c 'import torch, commensal; print(commensal.is_active())' >o 2>e5; r=$?; grep -q True o && say OK "empty environment" || say FAIL "empty environment rc $r $(tail -1 e5)"
HOME=/nonexistent commensal run --name h -- "$PY" -c 'import torch, commensal; print(commensal.is_active())' >o 2>e5; grep -q True o && say OK "HOME missing" || say FAIL "HOME missing $(tail -1 e5)"
TMPDIR=/nonexistent commensal run --name t -- "$PY" -c 'import torch, commensal; print(commensal.is_active())' >o 2>e5; grep -q True o && say OK "TMPDIR missing" || say FAIL "TMPDIR missing $(tail -1 e5)"
mkdir "$W/a b ü"; COMMENSAL_RUNTIME_DIR="$W/a b ü/rt" commensal run --name sp --spill-dir "/var/tmp" -- "$PY" -c 'import torch, commensal; print(commensal.is_active())' >o 2>e6; grep -q "coordinator [0-9]" e6 && say OK "runtime folder with spaces and umlauts" || say FAIL "runtime folder with spaces $(head -2 e6 | tr '\n' ' ')"; for f in "$W/a b ü/rt"/*.lock; do kill $(tr -dc 0-9 <"$f" | head -c 9) 2>/dev/null; done
wait $p; [ $bad = 0 ] && ok all; fail "$bad"
