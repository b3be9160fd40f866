#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Queue: jobs that behave oddly. Slurm/Ray/HTCondor reports: deleted cwd, binary output, SIGTERM ignored, daemonised children, huge lines.
. "$(dirname "$0")/lib.sh"; export COMMENSAL_STATE_DIR=$W/state; cd $W || exit 1; bad=0
say() { echo "$1 $2"; case $1 in FAIL*) bad=$((bad+1));; esac; }
wait_end() { for i in $(seq ${2:-40}); do s=$(commensal queue --all --json 2>/dev/null | "$PY" -c "import json,sys; d=json.load(sys.stdin); j=[x for x in d['jobs'] if str(x['id'])=='$1']; print(j[0].get('phase', j[0].get('state')) if j else 'none')" 2>/dev/null); case $s in finished|failed|cancelled|ended|done) break;; esac; sleep 1; done; echo $s; }
sub() { commensal submit --opportunistic "$@" 2>$W/suberr | tail -1; }
a=$(sub --name bin -- sh -c 'printf "\377\376\000x\n"; printf "%s\n" ok'); s=$(wait_end $a); commensal logs $a >o 2>e; r=$?; [ $r = 0 ] && grep -aq ok o && ! grep -q Traceback e && say OK "binary output: state $s" || say FAIL "binary output: state $s rc $r $(grep -v '^ ' e | tail -1) $(cat $W/suberr | tail -1)"
a=$(sub --name long -- "$PY" -c 'print("x"*5000000); print("end")'); s=$(wait_end $a); commensal logs $a 2>e | tail -c 4 >o; grep -q end o && say OK "line of 5 MB: $s" || say FAIL "line of 5 MB: $s $(tail -1 e)"
mkdir gone; a=$(cd gone || exit 1; sub --after ${a:-1} --name gone -- sh -c 'pwd; echo ran'); rm -rf gone; s=$(wait_end $a); commensal explain $a >o 2>&1; say OK "working folder gone: $s: $(commensal logs $a 2>&1 | tail -1 | cut -c1-120) / $(grep -i 'reason\|cannot\|folder' o | head -1 | cut -c1-150)"
a=$(sub --name stubborn -- "$PY" -c 'import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print("up", flush=True); time.sleep(600)'); for i in $(seq 20); do commensal logs $a 2>/dev/null | grep -q up && break; sleep 1; done; t0=$(date +%s); commensal cancel $a >o 2>&1; s=$(wait_end $a 60); [ "$s" = cancelled ] && say OK "SIGTERM ignored: $s after $(( $(date +%s)-t0 )) s" || say FAIL "SIGTERM ignored: $s $(cat o)"
a=$(sub --name daemon -- sh -c 'setsid sh -c "sleep 300 & echo \$! >'$W'/dpid" & sleep 1; echo parent done'); s=$(wait_end $a); sleep 6; p=$(cat $W/dpid 2>/dev/null); kill -0 $p 2>/dev/null && { say FAIL "daemonised child of an ended job lives on (state $s)"; kill $p; } || say OK "daemonised child is ended with the job ($s)"
a=$(sub --name 'sp ace' -- sh -c 'printf "%s|" "$@"' x 'a b' '' "q'uo\"ted" 'new
line' '$HOME' '*'); s=$(wait_end $a); o=$(commensal logs $a 2>&1); [ "$o" = "a b||q'uo\"ted|new
line|\$HOME|*|" ] && say OK "arguments arrive" || say FAIL "arguments: $s $o $(cat $W/suberr | tail -1)"
a=$(sub --name exit -- sh -c 'exit 77'); s=$(wait_end $a); say OK "exit 77: $s: $(commensal queue --all 2>&1 | grep " exit " | head -1 | tr -s ' ' | cut -c1-140)"
a=$(sub --name sig -- sh -c 'kill -SEGV $$'); s=$(wait_end $a); say OK "SIGSEGV: $s: $(commensal queue --all 2>&1 | grep " sig " | head -1 | tr -s ' ' | cut -c1-140)"
a=$(sub --name stdin -- "$PY" -c 'import sys; print("stdin", repr(sys.stdin.read()))'); s=$(wait_end $a); commensal logs $a 2>&1 | grep -q "stdin ''" && say OK "stdin is empty: $s" || say FAIL "stdin: $s $(commensal logs $a 2>&1 | tail -1)"
a=$(sub --name cr -- sh -c 'printf "10%%\r50%%\r100%%\r\n\033[2Jmark\n"'); s=$(wait_end $a); commensal logs $a >o 2>&1; grep -q mark o && say OK "progress bars, escapes: $s" || say FAIL "progress: $s"
ids=$(for i in $(seq 30); do sub --name arr$i -- true & done; wait); n=$(echo "$ids" | sort -u | grep -c .); [ $n = 30 ] && say OK "30 at once have 30 numbers" || say FAIL "30 at once: $n numbers"
pid=$(commensal doctor --cluster --json 2>/dev/null | "$PY" -c "import json,sys; print(json.load(sys.stdin).get('pid',''))" 2>/dev/null)
for f in "$COMMENSAL_RUNTIME_DIR"/*.lock; do q=$(tr -dc 0-9 <$f | head -c 9); [ -n "$q" ] && kill $q 2>/dev/null; done
[ $bad = 0 ] && ok all; fail "$bad"
