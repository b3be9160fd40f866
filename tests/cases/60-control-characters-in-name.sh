#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job's name comes from its script's file name: control characters (escape sequences, newlines) reach the terminal of whoever asks 'status'.
. "$(dirname "$0")/lib.sh"; printf 'import torch, time\ntime.sleep(25)\n' >"$W/s.py"; cp $W/s.py "$W/$(printf 'e\033[31mred')".py; cp $W/s.py "$W/$(printf 'a\nb')".py
commensal run -- "$PY" "$W/$(printf 'e\033[31mred').py" >/dev/null 2>&1 & p=$!; commensal run -- "$PY" "$W/$(printf 'a\nb').py" >/dev/null 2>&1 & q=$!
for i in $(seq 20); do [ "$(commensal status 2>/dev/null | grep -c unknown)" -ge 2 ] && break; sleep 1; done; commensal status >$W/st 2>&1; kill $p $q; wait $p $q 2>/dev/null
grep -q "$(printf '\033')" $W/st && bad="an escape sequence goes to the terminal"; grep -q '^a *$' $W/st && bad="$bad; a newline breaks the table"
[ -z "$bad" ] && ok "names are printable"; fail "$bad: $(cat -v $W/st | grep '\^\[' | head -1 | tr -s ' ' | cut -c1-80)"
