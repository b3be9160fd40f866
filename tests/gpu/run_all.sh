#!/usr/bin/env bash
# Everything that only a GPU can answer, in stages, on a machine with PyTorch and one card. Needs no
# network, no CUDA toolkit (headers of the wheels beside torch will do) and no CMake.
#
#   tests/gpu/run_all.sh                  all stages
#   tests/gpu/run_all.sh probes adaptor   some
#   OUT=FOLDER  where results go (build/gpu-results)   PYTHON=python3  the one that has torch
#   GTEST_ROOT=FOLDER  GoogleTest's include/ and lib/, where the system has none (stage memory)
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

build_adaptor() {
  local minor
  minor=$(cut -d. -f1,2 <<<"$torch_version")
  "$compiler" -std=c++20 -O2 -DNDEBUG -fPIC -shared -fvisibility=hidden -I"$root" \
    -isystem "$torch_dir/include" -isystem "$cuda_include" \
    -o "$work/libcommensal_torch_cuda-$minor.so" "$root"/torch_ext/cuda/*.cpp \
    -L"$torch_dir/lib" -lc10_cuda -lc10 &&
    "$compiler" -std=c++20 -O2 -DNDEBUG -fPIC -shared -I"$root" \
      -isystem "$torch_dir/include" -isystem "$cuda_include" \
      -o "$work/libcommensal_cuda_testing.so" "$root/tests/torch_ext/cuda/test_support.cpp" \
      "$root/torch_ext/cuda/forwarding_allocator.cpp" -L"$torch_dir/lib" -lc10_cuda -lc10
}

# The suites of the CUDA memory source and of the allocator on it, as one program.
build_memory() {
  local objects=$work/memory flags=(-std=c++20 -O2 -DNDEBUG -I"$root" -isystem "$cuda_include")
  local libraries=() compilers=() source failed=0
  if [ -n "${GTEST_ROOT:-}" ]; then
    flags+=(-isystem "$GTEST_ROOT/include")
    libraries+=("-L$GTEST_ROOT/lib" "-Wl,-rpath,$GTEST_ROOT/lib")
  fi
  if ! "$compiler" "${flags[@]}" -fsyntax-only -include gmock/gmock.h -x c++ /dev/null; then
    printf 'no GoogleTest: set GTEST_ROOT to a folder that has it\n' >&2
    return 1
  fi
  rm -rf "$objects" && mkdir -p "$objects" || return 1
  for source in "$root"/allocator/*.cpp "$root"/allocator/cuda/*.cpp \
    "$root"/tests/allocator/cuda/{cuda_machine,cuda_contract_test,cuda_memory_source_test,cuda_faults_test,elastic_on_cuda_test}.cpp; do
    if [ "${#compilers[@]}" -ge "$(nproc)" ]; then
      wait "${compilers[0]}" || failed=1
      compilers=("${compilers[@]:1}")
    fi
    "$compiler" "${flags[@]}" '-DCOMMENSAL_SIMULATED_CUDA="libcuda.so.1"' -c \
      -o "$objects/$(basename "$source").o" "$source" &
    compilers+=($!)
  done
  for source in "${compilers[@]}"; do wait "$source" || failed=1; done
  [ "$failed" = 0 ] || return 1
  "$compiler" -o "$work/commensal-gpu-memory" "$objects"/*.o "${libraries[@]}" \
    -lgmock_main -lgmock -lgtest -ldl -lpthread
}

stage_build() { build_probes && build_adaptor; }

stage_probes() { "$work/commensal-gpu-probes" --out "$OUT/probes.json"; }

stage_adaptor() {
  COMMENSAL_TEST_ON_GPU=1 COMMENSAL_TEST_CUDA_LIBRARY_DIR="$work" "$PYTHON" -m pytest -q \
    -p no:cacheprovider --rootdir "$root" --junit-xml="$OUT/adaptor.xml" \
    "$root/tests/python/test_cuda_allocator.py"
}

stage_memory() {
  build_memory && COMMENSAL_TEST_REAL_CUDA=1 "$work/commensal-gpu-memory" \
    --gtest_output="xml:$OUT/memory.xml"
}

failed=0
no_gpu=0
results=()
for stage in "${stages[@]}"; do
  say "$stage"
  start=$SECONDS
  # A stage is a process group of its own: what hangs is ended with all that it started.
  export -f "stage_$stage" build_probes build_adaptor build_memory
  export here root OUT PYTHON work torch_dir torch_version cuda_include compiler
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

stages = [line.split() for line in sys.stdin]
json.dump(
    {
        "schema": 1,
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
' >"$OUT/run.json" || failed=1
[ "$no_gpu" = 0 ] || exit 3
exit "$failed"
