# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by every case. Needs two environment variables, both absolute paths:
#   COMMENSAL  the installed command, PY  the Python that it belongs to.
# Optional: SITE, a folder of extra packages (pip install --target). All else lies in a scratch folder that is removed at the end.
: "${COMMENSAL:?set COMMENSAL to the installed command}" "${PY:?set PY to its Python}"
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
W=$(mktemp -d "${TMPDIR:-/tmp}/cc.XXXXXX")
mkdir -p "$W/home"
PATH=$(dirname "$COMMENSAL"):$(dirname "$PY"):$PATH
export HOME=$W/home PATH
export COMMENSAL_INSTANCE=case$$ COMMENSAL_RUNTIME_DIR=$W/rt COMMENSAL_STATE_DIR=$W/state
export OMP_NUM_THREADS=${OMP_NUM_THREADS-1} PYTHONPATH=$HERE${SITE:+:$SITE}
unset XDG_RUNTIME_DIR COMMENSAL_RUN
ok()   { echo "OK: $*"; exit 0; }
fail() { echo "FAIL: $*"; exit 1; }
skip() { echo "SKIP: $*"; exit 77; }
need() { # need MODULE...: skip where a package is missing
  "$PY" -c "import importlib.util as u, sys; m = [x for x in sys.argv[1:] if u.find_spec(x) is None]; print(*m); sys.exit(bool(m))" "$@" >"$W/need" || skip "missing Python packages: $(cat "$W/need")"; }
stop_daemons() { # only our own: by the process numbers in the lock files of our own folder
  local f p i; find "$W" -name '*.lock' -type f -size -2 2>/dev/null | while IFS= read -r f; do
    p=$(tr -dc 0-9 <"$f" | head -c 9); [ -n "$p" ] || continue
    tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep -q commensal || continue
    kill "$p" 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$p" 2>/dev/null || break; sleep 0.2; done; kill -9 "$p" 2>/dev/null
  done; }
clean_up() { local j; for j in $(jobs -p); do disown "$j" 2>/dev/null; kill -9 "$j" 2>/dev/null; done; type at_end >/dev/null 2>&1 && at_end; stop_daemons; rm -rf "$W" 2>/dev/null; }
trap clean_up EXIT; trap 'exit 143' TERM INT HUP
started() { # started NAME [PID]: wait until the job is known, or its process has ended
  local i; for i in $(seq 40); do commensal status 2>/dev/null | grep -q "^$1" && return 0; kill -0 "${2:-$$}" 2>/dev/null || return 1; sleep 0.5; done; return 1; }
squeeze() { # squeeze NAME SECONDS [LOW] [HIGH]: lower and raise a job's limit, while process $p lives
  local end=$(( $(date +%s) + $2 )) n=0
  while [ "$(date +%s)" -lt "$end" ] && { [ -z "${p:-}" ] || kill -0 "$p" 2>/dev/null; }; do
    commensal set "$1" --memory "${3:-64MiB}" >/dev/null 2>>"$W/set.err" && n=$((n+1)); sleep "${PAUSE:-1.2}"
    commensal set "$1" --memory "${4:-2GiB}" >/dev/null 2>>"$W/set.err"; sleep "${PAUSE:-1.2}"
  done; echo "$n" >"$W/squeezes"; }
