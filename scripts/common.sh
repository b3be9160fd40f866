# shellcheck shell=bash
# Sourced by the scripts beside it: where we are, how we speak, what the build uses.
set -euo pipefail
COMMENSAL_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$COMMENSAL_ROOT"
VENV="$COMMENSAL_ROOT/.venv"
LOGS="$COMMENSAL_ROOT/build/logs" # of long steps

say() { printf '== %s\n' "$*" >&2; }
die() {
  printf 'commensal: %s\n' "$*" >&2
  exit 1
}
# Says how long a stage took, and notes it for the table that .ci/run ends with: took STAGE SECONDS
took() {
  say "$1: $2 s"
  [ -z "${COMMENSAL_STAGES:-}" ] || printf '%s\t%s\n' "$2" "$1" >>"$COMMENSAL_STAGES"
}
# Runs a step: step "what" command...
step() {
  local what=$1 start=$SECONDS
  shift
  say "$what"
  "$@" || die "failed: $what"
  took "$what" $((SECONDS - start))
}

# Shows the lines of a build on stdin, "[12/342] Building ...", as "12 of 342, about 80 s left".
show_progress() {
  local what=$1 start=$SECONDS next=0 line built all
  while IFS= read -r line; do
    if [[ $line =~ \[([0-9]+)/([0-9]+)\] ]]; then
      built=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
      line="$built of $all, about $(((SECONDS - start) * (all - built) / (built > 0 ? built : 1))) s left"
      [ "$built" != "$all" ] || next=0
    elif [[ $line =~ (Downloading\ [^/ ]+\ \(.*\)|Installing\ collected\ packages) ]]; then
      line=${BASH_REMATCH[1]} # pip
    else
      continue
    fi
    [ "$SECONDS" -ge "$next" ] || continue
    if [ -t 2 ]; then
      printf '\r== %s: %s\033[K' "$what" "${line:0:100}" >&2
      next=$((SECONDS + 1))
    else
      printf '== %s: %s\n' "$what" "${line:0:100}" >&2
      next=$((SECONDS + 15))
    fi
  done
  [ ! -t 2 ] || printf '\n' >&2
}
# watched NAME "what" command...: shows how far it is; all that it says goes to build/logs/NAME.log.
watched() {
  local log="$LOGS/$1.log" what=$2
  shift 2
  mkdir -p "$LOGS"
  "$@" 2>&1 | tee "$log" | show_progress "$what" || why_failed "$what" "$log"
}
# Ends with one sentence for what often goes wrong, else with the end of the log.
why_failed() {
  local what=$1 log=$2 said
  if said=$(grep -m 1 '^commensal: ' "$log"); then
    die "${said#commensal: }"
  elif grep -qE 'No space left on device|Errno 28' "$log"; then
    die "$what: the disk is full. Make room, then start this again: it goes on where it was."
  elif grep -qE 'Temporary failure in name resolution|Failed to establish a new connection|Network is unreachable' "$log"; then
    die "$what: the package index cannot be reached. Once there is a network, start this again: it goes on where it was. (PyTorch from elsewhere: ./scripts/setup --torch-index URL)"
  elif grep -qE 'Killed signal terminated program|std::bad_alloc|out of memory' "$log"; then
    die "$what: a compiler ran out of memory ($JOBS at a time). Start this again with CMAKE_BUILD_PARALLEL_LEVEL=1: it goes on where it was."
  fi
  { grep -E 'error:|ERROR:|FAILED:' "$log" || tail -n 20 "$log"; } | head -n 40 | sed 's/^/  | /' >&2
  die "failed: $what. All of it: $log"
}

# Not before the system's packages are there: on a fresh machine ccache is one of them.
use_ccache() {
  # The package and the tests are built in one folder, by the compiler under one name.
  export CXX=${CXX:-g++}
  export COMMENSAL_CCACHE=""
  if command -v ccache >/dev/null 2>&1; then
    export COMMENSAL_CCACHE=ccache
    export CCACHE_BASEDIR="$COMMENSAL_ROOT" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
  fi
}

# Configures (and builds) a preset against the environment's PyTorch: build_preset NAME [TARGET...]
configure_preset() {
  use_ccache
  mkdir -p "$LOGS"
  cmake --preset "$1" -DCOMMENSAL_PYTHON_EXECUTABLE="$VENV/bin/python" -DPython_EXECUTABLE="$VENV/bin/python" \
    >"$LOGS/configure-$1.log" 2>&1 || why_failed "configure $1" "$LOGS/configure-$1.log"
}
build_preset() {
  local preset=$1
  shift
  configure_preset "$preset"
  watched "build-$preset" "build $preset" cmake --build --preset "$preset" ${1:+--target "$@"}
}

# GCC needs up to 1 GiB for a file that includes torch headers: no more jobs than memory allows.
memory_gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null || echo 4)
JOBS=$(nproc)
if [ "$memory_gib" -lt "$JOBS" ]; then JOBS=$((memory_gib > 0 ? memory_gib : 1)); fi
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$JOBS}
