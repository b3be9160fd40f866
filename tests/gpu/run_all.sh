#!/usr/bin/env bash
# Everything that only a GPU can answer, in stages, on a machine with PyTorch and one card. Needs no
# network, no CUDA toolkit (headers of the wheels beside torch will do) and no CMake.
#
#   tests/gpu/run_all.sh                  all stages, 24 minutes at most
#   tests/gpu/run_all.sh probes adaptor   some, each 9 minutes at most
#   tests/gpu/run_all.sh --simulated FOLDER [STAGE...]   a dry run on the simulated driver, whose
#                       libraries are in FOLDER (build/release/tests/simulated_cuda): run.json says so
#   OUT=FOLDER  where results go (build/gpu-results)   PYTHON=python3  the one that has torch
#   BUNDLE=FOLDER  what tests/gpu/bundle.sh collected, for a machine that lacks it
#   GTEST_ROOT=FOLDER  GoogleTest's include/ and lib/, where the system has none (stage memory);
#                      default: BUNDLE
#   PRODUCT=installed  use the commensal that PYTHON has instead of building this tree's
#   STAGE_SECONDS=N    the most that each stage may take
#
# Writes OUT/run.json (what ran, how it ended), OUT/STAGE.log, what the stages write, and all of it in
# one OUT/results.tar.gz.
# Exit code: 0 all stages passed, 1 one failed, 2 usage, 3 there is no GPU.
# shellcheck disable=SC2317  # the stages are called by name
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
OUT=${OUT:-$root/build/gpu-results}
PYTHON=${PYTHON:-python3}
# In this order, and with these seconds each where all of them run.
ALL_STAGES=(build probes adaptor memory scripts figures pair-e1 pair-e2 pair-e3 demo)
declare -A SECONDS_OF=([build]=150 [probes]=120 [adaptor]=90 [memory]=60 [scripts]=140
  [figures]=200 [pair-e1]=250 [pair-e2]=180 [pair-e3]=180 [demo]=90)
NAMED_SECONDS=540

die() {
  printf 'run_all: %s\n' "$2" >&2
  exit "$1"
}
say() { printf '== %s\n' "$*" >&2; }

case ${1:-} in
  -h | --help)
    sed -n '2,/^# Exit code/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
simulated=
if [ "${1:-}" = --simulated ]; then
  [ -e "${2:-}/libcuda.so.1" ] || die 2 "no simulated driver (libcuda.so.1) in '${2:-}'"
  simulated=$(cd -- "$2" && pwd)
  shift 2
fi
stages=("$@")
if [ ${#stages[@]} -gt 0 ]; then SECONDS_OF=(); else stages=("${ALL_STAGES[@]}"); fi
for stage in "${stages[@]}"; do
  case " ${ALL_STAGES[*]} " in
    *" $stage "*) ;;
    *) die 2 "no such stage: $stage (${ALL_STAGES[*]})" ;;
  esac
done
mkdir -p "$OUT" || die 2 "cannot make $OUT"
OUT=$(cd -- "$OUT" && pwd)
work=${BUILD:-$root/build/gpu}
mkdir -p "$work"
if [ -n "${BUNDLE:-}" ]; then
  [ -e "$BUNDLE/bundle.json" ] || die 2 "no bundle.json in '$BUNDLE': tests/gpu/bundle.sh makes it"
  BUNDLE=$(cd -- "$BUNDLE" && pwd)
  GTEST_ROOT=${GTEST_ROOT:-$BUNDLE}
  # Wheels of pure Python, or for any Python 3: unpacked is installed.
  for wheel in "$BUNDLE"/wheels/*.whl; do
    done_with=$work/site/$(basename -- "$wheel").unpacked
    [ ! -e "$done_with" ] || continue
    "$PYTHON" -m zipfile -e "$wheel" "$work/site" || die 2 "cannot unpack $wheel"
    touch "$done_with"
  done
  export BUNDLE PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
  export LD_LIBRARY_PATH="$BUNDLE/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
export GTEST_ROOT=${GTEST_ROOT:-}

# Where PyTorch and CUDA's headers are: torch, its version, the folders of cuda.h, of libraries.
where=$("$PYTHON" - <<'PY'
import os
import pathlib

import torch

site = pathlib.Path(torch.__file__).parents[1]
major = (torch.version.cuda or "0").split(".")[0]
wheels = [site / "nvidia" / f"cu{major}", site / "nvidia" / "cuda_runtime"]
toolkits = [pathlib.Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")]
found = [root for root in wheels + toolkits if (root / "include" / "nvrtc.h").exists()]
# The wheels' headers lack those in crt/, which a toolkit has, and Triton.
whole = [root / "include" for root in found if (root / "include/crt/host_config.h").exists()]
triton = site / "triton/backends/nvidia/include"
rest = [triton] if not whole and (triton / "crt/host_config.h").exists() else []
print(site / "torch")
print(torch.__version__)
print(":".join(map(str, whole[:1] or [root / "include" for root in found[:1]] + rest)))
print(":".join(str(root / name) for root in wheels + toolkits for name in ("lib", "lib64")
               if (root / name).is_dir()))
PY
) || die 2 "$PYTHON does not import torch"
{
  read -r torch_dir
  read -r torch_version
  read -r cuda_include
  read -r cuda_libraries
} <<<"$where"
[[ $cuda_include != :* && -n $cuda_include ]] || die 2 "no CUDA headers: neither beside torch nor in a toolkit (CUDA_HOME)"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda_libraries"
compiler=${CXX:-g++}
command -v "$compiler" >/dev/null 2>&1 || die 2 "no $compiler"

export here root OUT simulated PYTHON work torch_dir torch_version cuda_include compiler
export PRODUCT=${PRODUCT:-built}
failed=0
no_gpu=0
results=()
for stage in "${stages[@]}"; do
  say "$stage"
  start=$SECONDS
  # A stage is a process group of its own: what hangs is ended with all that it started.
  most=${STAGE_SECONDS:-${SECONDS_OF[$stage]:-$NAMED_SECONDS}}
  STAGE_SECONDS=$most timeout --kill-after=10 "$most" "$here/stages.sh" "$stage" 2>&1 |
    tee "$OUT/$stage.log"
  code=${PIPESTATUS[0]}
  say "$stage: code $code after $((SECONDS - start)) s"
  [ "$code" = 0 ] || failed=1
  if [ "$stage" = probes ] && [ "$code" = 3 ]; then no_gpu=1; fi
  results+=("$stage $code $((SECONDS - start))")
done

printf '%s\n' "${results[@]}" | "$PYTHON" -c '
import datetime, json, platform, sys

import torch

simulated = sys.argv[1] != ""
stages = [line.split() for line in sys.stdin]
json.dump(
    {
        "schema": 1,
        "simulated": simulated,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "stages": [
            {"stage": name, "exit_code": int(code), "seconds": int(seconds)}
            for name, code, seconds in stages
        ],
    },
    sys.stdout,
    indent=1,
)
print()
' "$simulated" >"$OUT/run.json" || failed=1
# One file to take along.
(cd "$OUT" && find . -maxdepth 1 -type f \( -name '*.json' -o -name '*.json.gz' -o -name '*.jsonl' -o -name '*.xml' -o \
  -name '*.png' -o -name '*.html' -o -name '*.log' \) -print0 |
  tar --null -czf results.tar.gz.part -T - && mv results.tar.gz.part results.tar.gz) || failed=1
[ "$no_gpu" = 0 ] || exit 3
exit "$failed"
