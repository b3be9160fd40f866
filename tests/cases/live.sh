#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# live.sh tNN_name.py [SECONDS]: runs a script as a job whose limit falls and rises all the time. The script prints a line that begins with OK or FAIL.
# LOW, HIGH, PAUSE: how far and how often; RUNOPT: more options of 'run'; CMD: another way to start Python.
S=$(cd "$(dirname "$1")" && pwd)/$(basename "$1"); T=${2:-10}; shift; shift 2>/dev/null
. "$(dirname "$0")/lib.sh"; export PAUSE=${PAUSE:-0.3} CASE_SECONDS=$((T+3)) CASE_W=$W
commensal run --name s1 --memory 2GiB ${RUNOPT:-} -- ${CMD:-"$PY"} "$S" "$@" >"$W/out" 2>"$W/err" & p=$!
started s1 $p; squeeze s1 "$T" "${LOW:-32MiB}" "${HIGH:-2GiB}"
for i in $(seq $((T+60))); do kill -0 $p 2>/dev/null || break; sleep 1; done
kill -0 $p 2>/dev/null && { commensal status s1 >"$W/st" 2>&1; fail "hang: $(grep -i 'gate\|deferred\|reason' "$W/st" | head -3 | tr '\n' ' ')"; }
wait $p; rc=$?
grep -h "^commensal: had\|^commensal: .*moved\|^commensal: note" "$W/err" | tail -2 | cut -c1-200
[ $rc = 0 ] && grep -q "^OK" "$W/out" && ok "$(grep '^OK' "$W/out" | tail -1 | cut -c4-) (limit changed $(cat "$W/squeezes" 2>/dev/null) times)"
fail "code $rc $(tail -1 "$W/out" | cut -c1-250) | $(grep -v '^ ' "$W/err" | tail -1 | cut -c1-250)"
