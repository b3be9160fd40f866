#!/usr/bin/env bash
# Everything that only a GPU can answer, in stages, on a machine with PyTorch and one card. Needs no
# network, no CUDA toolkit (headers of the wheels beside torch will do) and no CMake.
#
#   tests/gpu/run_all.sh                  all stages
#   tests/gpu/run_all.sh probes adaptor   some
#   tests/gpu/run_all.sh --simulated FOLDER [STAGE...]   a dry run on the simulated driver, whose
#                       libraries are in FOLDER (build/release/tests/simulated_cuda): run.json says so
#   OUT=FOLDER  where results go (build/gpu-results)   PYTHON=python3  the one that has torch
#   BUNDLE=FOLDER  what tests/gpu/bundle.sh collected, for a machine that lacks it
#   GTEST_ROOT=FOLDER  GoogleTest's include/ and lib/, where the system has none (stage memory);
#                      default: BUNDLE
#
# Writes OUT/run.json (what ran, how it ended), OUT/STAGE.log, and what the stages write.
# Exit code: 0 all stages passed, 1 one failed, 2 usage, 3 there is no GPU.
# shellcheck disable=SC2317  # the stages are called by name
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
OUT=${OUT:-$root/build/gpu-results}
PYTHON=${PYTHON:-python3}
STAGE_SECONDS=${STAGE_SECONDS:-540}
ALL_STAGES=(build probes adaptor memory)

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
[ ${#stages[@]} -gt 0 ] || stages=("${ALL_STAGES[@]}")
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
    "$PYTHON" -m zipfile -e "$wheel" "$work/site" || die 2 "cannot unpack $wheel"
  done
  export BUNDLE PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
  export LD_LIBRARY_PATH="$BUNDLE/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
export GTEST_ROOT=${GTEST_ROOT:-}

# Where PyTorch and CUDA's headers are: torch, its version, the folder of cuda.h, of libraries.
where=$("$PYTHON" - <<'PY'
import os
import pathlib

import torch

site = pathlib.Path(torch.__file__).parents[1]
major = (torch.version.cuda or "0").split(".")[0]
wheels = [site / "nvidia" / f"cu{major}", site / "nvidia" / "cuda_runtime"]
toolkits = [pathlib.Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")]
found = [root for root in wheels + toolkits if (root / "include" / "nvrtc.h").exists()]
print(site / "torch")
print(torch.__version__)
print(found[0] / "include" if found else "")
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
[ -n "$cuda_include" ] || die 2 "no CUDA headers: neither beside torch nor in a toolkit (CUDA_HOME)"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda_libraries"
compiler=${CXX:-g++}
command -v "$compiler" >/dev/null 2>&1 || die 2 "no $compiler"

build_probes() {
  local sources=("$here"/probes/*.cpp)
  if command -v nvcc >/dev/null 2>&1; then
    nvcc -std=c++20 -O2 -o "$work/commensal-gpu-probes" "${sources[@]}" -ldl -lpthread && return
  fi
  "$compiler" -std=c++20 -O2 -isystem "$cuda_include" -o "$work/commensal-gpu-probes" \
    "${sources[@]}" -ldl -lpthread
}

# compile FOLDER FLAG... -- SOURCE...: objects into the folder, as many at a time as there are cores.
compile() {
  local objects=$1 flags=() running=() source failed=0
  shift
  while [ "$1" != -- ]; do
    flags+=("$1")
    shift
  done
  shift
  rm -rf "$objects" && mkdir -p "$objects" || return 1
  for source in "$@"; do
    if [ "${#running[@]}" -ge "$(nproc)" ]; then
      wait "${running[0]}" || failed=1
      running=("${running[@]:1}")
    fi
    "$compiler" -std=c++20 -O2 -DNDEBUG -fPIC -I"$root" "${flags[@]}" -isystem "$cuda_include" -c \
      -o "$objects/$(basename "$source" .cpp).o" "$source" &
    running+=($!)
  done
  for source in "${running[@]}"; do wait "$source" || failed=1; done
  return "$failed"
}

# The elastic allocator and its source on a GPU, for the adaptor and for the suites.
build_allocator() {
  local stamp=$work/allocator.built
  if [ -e "$stamp" ] && [ -z "$(find "$root/allocator" -name '*.[ch]*' -newer "$stamp")" ]; then
    return
  fi
  rm -f "$stamp"
  compile "$work/allocator" -- "$root"/allocator/*.cpp "$root"/allocator/cuda/*.cpp &&
    touch "$stamp"
}

build_adaptor() {
  local minor torch=(-isystem "$torch_dir/include") link=(-L"$torch_dir/lib" -lc10_cuda -lc10 -ldl)
  minor=$(cut -d. -f1,2 <<<"$torch_version")
  build_allocator &&
    compile "$work/adaptor" -fvisibility=hidden "${torch[@]}" -- \
      "$root"/torch_ext/cuda/{[!s]*,stream_*}.cpp && # but what needs a session
    compile "$work/testing" "${torch[@]}" -- "$root/tests/torch_ext/cuda/test_support.cpp" &&
    "$compiler" -shared -o "$work/libcommensal_torch_cuda-$minor.so" "$work"/adaptor/*.o \
      "$work"/allocator/*.o "${link[@]}" &&
    "$compiler" -shared -o "$work/libcommensal_cuda_testing.so" "$work"/testing/*.o \
      "$work"/adaptor/*.o "$work"/allocator/*.o "${link[@]}"
}

# The suites of the CUDA memory source and of the allocator on it, as one program.
build_memory() {
  local flags=('-DCOMMENSAL_SIMULATED_CUDA="libcuda.so.1"') libraries=()
  if [ -n "${GTEST_ROOT:-}" ]; then
    flags+=(-isystem "$GTEST_ROOT/include")
    libraries+=("-L$GTEST_ROOT/lib" "-Wl,-rpath,$GTEST_ROOT/lib")
  fi
  if ! "$compiler" -std=c++20 "${flags[@]}" -fsyntax-only -include gmock/gmock.h -x c++ /dev/null; then
    printf 'no GoogleTest: set GTEST_ROOT to a folder that has it\n' >&2
    return 1
  fi
  build_allocator &&
    compile "$work/memory" "${flags[@]}" -- \
      "$root"/tests/allocator/cuda/{cuda_machine,cuda_contract_test,cuda_memory_source_test,cuda_faults_test,elastic_on_cuda_test}.cpp &&
    "$compiler" -o "$work/commensal-gpu-memory" "$work"/memory/*.o "$work"/allocator/*.o \
      "${libraries[@]}" -lgmock_main -lgmock -lgtest -ldl -lpthread
}

# Runs a program on the driver that is meant: the machine's, or the simulated one.
on_driver() {
  if [ -z "$simulated" ]; then
    "$@"
  else
    env LD_LIBRARY_PATH="$simulated:$LD_LIBRARY_PATH" TRITON_LIBCUDA_PATH="$simulated" \
      SIMULATED_CUDA_MEMORY="${SIMULATED_CUDA_MEMORY:-536870912}" "$@"
  fi
}

stage_build() { build_probes && build_adaptor; }

stage_probes() { on_driver "$work/commensal-gpu-probes" --out "$OUT/probes.json"; }

stage_adaptor() {
  local card=1
  [ -z "$simulated" ] || card=0 # then the tests start their scripts on the simulated driver
  COMMENSAL_TEST_ON_GPU=$card SIMULATED_CUDA_LIBRARY_DIR="$simulated" \
    COMMENSAL_TEST_CUDA_LIBRARY_DIR="$work" "$PYTHON" -m pytest -q \
    -p no:cacheprovider --rootdir "$root" --junit-xml="$OUT/adaptor.xml" \
    "$root/tests/python/test_cuda_allocator.py"
}

stage_memory() {
  local card=1
  [ -z "$simulated" ] || card=0
  build_memory && COMMENSAL_TEST_REAL_CUDA=$card on_driver "$work/commensal-gpu-memory" \
    --gtest_output="xml:$OUT/memory.xml"
}

failed=0
no_gpu=0
results=()
for stage in "${stages[@]}"; do
  say "$stage"
  start=$SECONDS
  # A stage is a process group of its own: what hangs is ended with all that it started.
  export -f "stage_$stage" build_probes build_allocator build_adaptor build_memory compile on_driver
  export here root OUT simulated PYTHON work torch_dir torch_version cuda_include compiler
  timeout --kill-after=10 "$STAGE_SECONDS" bash -c "stage_$stage" 2>&1 | tee "$OUT/$stage.log"
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
[ "$no_gpu" = 0 ] || exit 3
exit "$failed"
