#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# libmdbx#144, rsyslog#1526, ceph#22954: a daemonised program has descriptors 0, 1 and 2 closed. Which of the product's files do they become, and what
# do stray messages do to them?
. "$(dirname "$0")/lib.sh"
sh -c 'exec <&- >&- 2>&-; exec "$@"' sh "$PY" "$HERE/w02c_three_closed.py" "$W/plain"
commensal run --name s1 --memory 1GiB -- sh -c 'exec <&- >&- 2>&-; exec "$@"' sh "$PY" "$HERE/w02c_three_closed.py" "$W/out"; rc=$?
echo "plain:   $(cat "$W/plain")"; echo "managed: $(cat "$W/out" 2>/dev/null)"
[ $rc = 0 ] && grep -q '"closed", "closed", "closed"' "$W/out" && grep -q '"wrong_words": 0' "$W/out" && grep -q '"active": true' "$W/out" && ok "descriptors 0 to 2 stay the program's"
fail "code $rc $(cat "$W/out" 2>/dev/null)"
