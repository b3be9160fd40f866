# shellcheck shell=bash
# Sourced by the scripts beside it: where we are, how we speak, what the build uses.
set -euo pipefail
COMMENSAL_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$COMMENSAL_ROOT"
VENV="$COMMENSAL_ROOT/.venv"

say() { printf '== %s\n' "$*" >&2; }
die() {
  printf 'commensal: %s\n' "$*" >&2
  exit 1
}
# Runs a step and says how long it took: step "what" command...
step() {
  local what=$1 start=$SECONDS
  shift
  say "$what"
  "$@" || die "failed: $what"
  say "$what: done in $((SECONDS - start)) s"
}

# Not before the system's packages are there: on a fresh machine ccache is one of them.
use_ccache() {
  if command -v ccache >/dev/null 2>&1; then
    export COMMENSAL_CCACHE=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    export CCACHE_BASEDIR="$COMMENSAL_ROOT" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    # The package and the tests are two builds; under one name for the compiler they share objects.
    export CXX=${CXX:-g++}
  else
    export COMMENSAL_CCACHE=""
  fi
}

# Configures (and builds) a preset against the environment's PyTorch: build_preset NAME
configure_preset() {
  use_ccache
  cmake --preset "$1" -DCOMMENSAL_PYTHON_EXECUTABLE="$VENV/bin/python" -DPython_EXECUTABLE="$VENV/bin/python" >/dev/null
}
build_preset() { configure_preset "$1" && cmake --build --preset "$1"; }

# GCC needs up to 1 GiB for a file that includes torch headers: no more jobs than memory allows.
memory_gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null || echo 4)
JOBS=$(nproc)
if [ "$memory_gib" -lt "$JOBS" ]; then JOBS=$((memory_gib > 0 ? memory_gib : 1)); fi
export CMAKE_BUILD_PARALLEL_LEVEL=$JOBS
