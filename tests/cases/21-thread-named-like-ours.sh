#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cpython#127338 (3.14 gives threads their Python names), textual#5654, dd-trace-py#16241: a writer thread of the user whose OS name begins
# with "commensal-". Whatever its name, no write of it may be lost while its memory moves.
. "$(dirname "$0")/lib.sh"
for name in "" trainer commensal-loader; do
  commensal run --name s1 --memory 1GiB --quiet -- "$PY" "$HERE/w21_named_writer.py" "$name" 2>"$W/err" | tee -a "$W/out"; r[${#r[@]}]=${PIPESTATUS[0]}
done
[ "${r[*]}" = "0 0 0" ] && ok "no write is lost under any name"; fail "$(grep -v 'lost words 0' "$W/out" | head -2 | tr '\n' ';')"
