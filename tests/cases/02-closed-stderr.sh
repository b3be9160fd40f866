#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# libmdbx#144: a parent starts the program with descriptor 2 closed. The script must run, be managed, and no stray message may reach a file of the product.
. "$(dirname "$0")/lib.sh"
commensal run --name s1 --memory 2GiB -- "$PY" "$HERE/w02_stray_messages.py" "$W/out" 2>&- & p=$!
started s1 $p; PAUSE=0.6 squeeze s1 4; wait $p; rc=$?; d=$(cat "$W/out" 2>/dev/null)
[ $rc = 0 ] && echo "$d" | grep -q '"active": true' && echo "$d" | grep -q '"bad": 0' && ! echo "$d" | grep -q "spill\|pagemap\|/var/tmp" && ok "$d"
fail "code $rc ${d:-the script never ran}"
