#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# py3createtorrent#33, b2#215: a script whose file name is not valid UTF-8 (latin-1 from an old disk).
. "$(dirname "$0")/lib.sh"
F="$W/$(printf 'tr\xe4in').py"; printf 'import torch, commensal\nprint("active", commensal.is_active())\n' >"$F"
commensal run -- "$PY" "$F" >$W/out 2>$W/err; rc=$?
cat $W/out; tail -2 $W/err | cut -c1-200
[ $rc = 0 ] && grep -q "active True" $W/out && ! grep -q Traceback $W/err && ok "ran, managed"
fail "rc $rc: $(cat $W/out) $(grep -v '^ ' $W/err | tail -1 | cut -c1-250)"
