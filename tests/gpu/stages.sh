#!/usr/bin/env bash
# One stage of run_all.sh, which sets what is used here: stages.sh STAGE. What is built is compiled
# by hand, since a bare machine has no CMake; the CMake files say why each part is what it is.
# shellcheck disable=SC2153,SC2154,SC2317  # set by run_all.sh; called by name
set -uo pipefail

cuda_headers=()
IFS=: read -ra folders <<<"${cuda_include:-}"
for folder in "${folders[@]}"; do cuda_headers+=(-isystem "$folder"); done

build_probes() {
  local sources=("$here"/probes/*.cpp) built=$work/commensal-gpu-probes
  if [ -e "$built" ] && [ -z "$(find "$here/probes" -newer "$built" -print -quit)" ]; then return; fi
  if command -v nvcc >/dev/null 2>&1; then
    nvcc -std=c++20 -O2 -o "$built" "${sources[@]}" -ldl -lpthread && return
  fi
  "$compiler" -std=c++20 -O2 "${cuda_headers[@]}" -o "$built" \
    "${sources[@]}" -ldl -lpthread
}

# Some machines' compilers have only the static C++ library: each of our libraries would get its own,
# and an exception that goes from one to another ends the process. The shared one is everywhere.
cxx_library=()
if "${compiler:-g++}" -shared -o /dev/null -x c++ /dev/null -l:libstdc++.so.6 2>/dev/null; then
  cxx_library=(-l:libstdc++.so.6)
fi

# Fails where a library has a C++ library of its own.
shares_cxx_library() {
  local library
  for library in "$@"; do
    if nm -D --defined-only "$library" | grep -q ' __cxa_throw'; then
      printf '%s has a C++ library of its own: there is no libstdc++.so.6 to link\n' "$library" >&2
      return 1
    fi
  done
}

# compile FOLDER FLAG... -- SOURCE...: objects into the folder, named by their sources' paths, as many
# at a time as there are cores. Not where they are there and no source is newer: a folder compiled
# elsewhere can be taken along (after `touch FOLDER/*/.built`).
compile() {
  local objects=$1 flags=() running=() source name failed=0
  shift
  while [ "$1" != -- ]; do
    flags+=("$1")
    shift
  done
  shift
  if [ -e "$objects/.built" ] && [ -z "$(find "$root"/{allocator,coordinator,torch_ext,python/src} \
    "$root"/tests/{allocator,torch_ext} -name '*.[ch]*' -newer "$objects/.built" -print -quit)" ]; then
    return
  fi
  rm -rf "$objects" && mkdir -p "$objects" || return 1
  for source in "$@"; do
    if [ "${#running[@]}" -ge "$(nproc)" ]; then
      wait "${running[0]}" || failed=1
      running=("${running[@]:1}")
    fi
    name=${source#"$root/"}
    "$compiler" -std=c++20 -O2 -DNDEBUG -fPIC -I"$root" "${flags[@]}" "${cuda_headers[@]}" -c \
      -o "$objects/${name//\//.}.o" "$source" &
    running+=($!)
  done
  for source in "${running[@]}"; do wait "$source" || failed=1; done
  [ "$failed" = 0 ] && touch "$objects/.built"
}

# The elastic allocator and its source on a GPU, for the adaptor and for the suites.
build_allocator() {
  compile "$work/allocator" -- "$root"/allocator/*.cpp "$root"/allocator/cuda/*.cpp \
    "$root/allocator/host/own_threads.cpp"
}

build_adaptor() {
  local minor torch=(-isystem "$torch_dir/include") link=(-L"$torch_dir/lib" -lc10_cuda -lc10 -ldl "${cxx_library[@]}")
  minor=$(cut -d. -f1,2 <<<"$torch_version")
  build_allocator &&
    compile "$work/adaptor-$minor" -fvisibility=hidden "${torch[@]}" -- \
      "$root"/torch_ext/cuda/{[!s]*,stream_*}.cpp && # but what needs a session
    compile "$work/testing-$minor" "${torch[@]}" -- "$root/tests/torch_ext/cuda/test_support.cpp" &&
    "$compiler" -shared -o "$work/libcommensal_torch_cuda-$minor.so" "$work/adaptor-$minor"/*.o \
      "$work"/allocator/*.o "${link[@]}" &&
    "$compiler" -shared -o "$work/libcommensal_cuda_testing.so" "$work/testing-$minor"/*.o \
      "$work/adaptor-$minor"/*.o "$work"/allocator/*.o "${link[@]}" &&
    shares_cxx_library "$work"/libcommensal_*.so
}

# commensal itself, as `pip install .` would lay it out, in $work/product: a folder for PYTHONPATH, and
# bin/ for PATH.
build_product() {
  local product=$work/product libraries=() headers=() minor version suffix python_include
  [ "$PRODUCT" != installed ] || return 0
  if [ -e "$product/built" ] &&
    [ -z "$(find "$root"/{allocator,coordinator,torch_ext,python,examples} -type f -newer "$product/built")" ]; then
    return
  fi
  if [ -n "${BUNDLE:-}" ]; then
    headers=(-isystem "$BUNDLE/include")
    libraries=("-L$BUNDLE/lib")
  fi
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
  minor=$(cut -d. -f1,2 <<<"$torch_version")
  # shellcheck disable=SC2016  # Python's
  mapfile -t headers_of_python < <("$PYTHON" -c '
import sysconfig

import pybind11

print(sysconfig.get_config_var("EXT_SUFFIX"))
print(sysconfig.get_path("include"))
print(pybind11.get_include())')
  [ "${#headers_of_python[@]}" = 3 ] || return 1
  suffix=${headers_of_python[0]} python_include=${headers_of_python[1]}
  if [ ! -e "$python_include/Python.h" ]; then
    printf 'no headers of %s: no Python.h in %s\n' "$PYTHON" "$python_include" >&2
    return 1
  fi
  rm -rf "$product" && mkdir -p "$product/bin" && cp -r "$root/python/commensal" "$product/" &&
    mkdir -p "$product/commensal/lib" "$product/commensal/demo/examples" &&
    cp "$root"/examples/{char_transformer,digits_cnn}.py "$product/commensal/demo/examples/" || return 1
  headers+=("-DCOMMENSAL_VERSION=\"$version\"")
  local torch=(-isystem "$torch_dir/include" -isystem "$torch_dir/include/torch/csrc/api/include")
  compile "$work/runtime" "${headers[@]}" -- "$root"/allocator/{,host/}*.cpp \
    "$root"/coordinator/wire/*.cpp "$root"/torch_ext/{gate,runtime}/*.cpp &&
    compile "$work/keys" "${headers[@]}" -- "$root"/coordinator/keys/*.cpp &&
    compile "$work/node" "${headers[@]}" -DSPDLOG_COMPILED_LIB -DSPDLOG_SHARED_LIB \
      -DSPDLOG_FMT_EXTERNAL -- "$root"/coordinator/node/*.cpp &&
    compile "$work/torch-$minor" -fvisibility=hidden "${headers[@]}" "${torch[@]}" -- "$root"/torch_ext/*.cpp &&
    compile "$work/torch_cuda-$minor" -fvisibility=hidden "${headers[@]}" "${torch[@]}" -- \
      "$root"/allocator/cuda/*.cpp "$root"/torch_ext/cuda/*.cpp &&
    compile "$work/core$suffix" -fvisibility=hidden "${headers[@]}" -isystem "$python_include" \
      -isystem "${headers_of_python[2]}" -- "$root"/python/src/*.cpp || return 1
  # Libraries of ours lie beside each other; PyTorch's are in the process already.
  local lib=$product/commensal/lib
  local ours=("-L$lib" -lcommensal_runtime "${cxx_library[@]}")
  "$compiler" -shared -o "$lib/libcommensal_runtime.so" "$work"/runtime/*.o "${libraries[@]}" -lzmq \
    -lxxhash -ldl -lpthread "${cxx_library[@]}" &&
    "$compiler" -shared "-Wl,-rpath,\$ORIGIN" -o "$lib/libcommensal_torch-$minor.so" "$work/torch-$minor"/*.o \
      "${ours[@]}" "-L$torch_dir/lib" -ltorch_cpu -ltorch -lc10 -ldl &&
    "$compiler" -shared "-Wl,-rpath,\$ORIGIN" -o "$lib/libcommensal_torch_cuda-$minor.so" \
      "$work/torch_cuda-$minor"/*.o "${ours[@]}" "-L$torch_dir/lib" -ltorch_cuda -ltorch_cpu -lc10_cuda -lc10 \
      -ldl &&
    "$compiler" -shared "-Wl,-rpath,\$ORIGIN/lib" -o "$product/commensal/_core$suffix" "$work/core$suffix"/*.o \
      "$work"/keys/*.o "${ours[@]}" "${libraries[@]}" -lzmq -lfmt &&
    "$compiler" -o "$product/bin/commensald" "$work"/node/*.o "$work"/keys/*.o "$work"/runtime/coordinator.wire.*.o \
      "${libraries[@]}" -lspdlog -lfmt -lzmq -ldl -lpthread "${cxx_library[@]}" &&
    shares_cxx_library "$lib"/*.so "$product"/commensal/_core*.so || return 1
  printf '#!/usr/bin/env bash\nexec "%s" -m commensal "$@"\n' "$PYTHON" >"$product/bin/commensal"
  chmod +x "$product/bin/commensal"
  # What pip would write: PyTorch finds the entry point by it.
  local told=$product/commensal-$version.dist-info
  mkdir -p "$told"
  printf 'Metadata-Version: 2.1\nName: commensal\nVersion: %s\n' "$version" >"$told/METADATA"
  printf '[torch.backends]\ncommensal = commensal._activation:autoload\n' >"$told/entry_points.txt"
  in_product commensal version && touch "$product/built"
}

# Runs a command with the product on its paths.
in_product() {
  if [ "$PRODUCT" = installed ]; then
    PATH="$(dirname -- "$(command -v -- "$PYTHON")"):$PATH" "$@"
  else
    PYTHONPATH="$work/product${PYTHONPATH:+:$PYTHONPATH}" PATH="$work/product/bin:$PATH" "$@"
  fi
}

# Runs a stage's program on the product and on the driver that is meant.
stage_program() {
  local program="$here/stages/$1"
  shift
  if [ -z "$simulated" ]; then
    in_product "$PYTHON" "$program" "$@"
  else
    SIMULATED_CUDA_LIBRARY_DIR="$simulated" COMMENSAL_SIMULATED_RUN=1 in_product "$PYTHON" \
      "$root/tests/simulated_cuda/run.py" MEMORY="${SIMULATED_CUDA_MEMORY:-536870912}" \
      LEDGER="$work/ledger" -- "$program" "$@"
  fi
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
      "$root"/tests/allocator/cuda/{cuda_machine,cuda_contract_test,cuda_memory_source_test,cuda_faults_test,elastic_on_cuda_test,peer_access_test,pinned_memory_test}.cpp &&
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

stage_build() { build_probes && build_adaptor && build_product; }
# Alone, for tests/python/test_gpu_product.py.
stage_product() { build_product; }

stage_probes() { on_driver "$work/commensal-gpu-probes" --out "$OUT/probes.json"; }

stage_adaptor() {
  local card=1 some=()
  if [ -n "$simulated" ]; then # then the tests start their scripts on the simulated driver
    card=0 some=(-k "streams or pools or fraction")
    echo "some of the tests: ./scripts/test runs all of them on the simulated driver"
  elif "$PYTHON" -c 'import xdist' 2>/dev/null; then # scripts wait for PyTorch's import mostly
    some=(-n "$(($(nproc) / 2 + 1))")
  fi
  COMMENSAL_TEST_ON_GPU=$card SIMULATED_CUDA_LIBRARY_DIR="$simulated" \
    COMMENSAL_TEST_CUDA_LIBRARY_DIR="$work" "$PYTHON" -m pytest -q \
    -p no:cacheprovider --rootdir "$root" --junit-xml="$OUT/adaptor.xml" \
    "${some[@]}" "$root"/tests/python/test_cuda_{allocator,elastic}.py
}

stage_memory() {
  local card=1
  [ -z "$simulated" ] || card=0
  build_memory && COMMENSAL_TEST_REAL_CUDA=$card on_driver "$work/commensal-gpu-memory" \
    --gtest_output="xml:$OUT/memory.xml"
}

stage_scripts() { stage_program scripts_stage.py --out "$OUT"; }
stage_figures() { stage_program figures_stage.py --out "$OUT"; }
stage_pair_e1() { stage_program pair_stage.py e1 --out "$OUT"; }
stage_pair_e2() { stage_program pair_stage.py e2 --out "$OUT"; }
stage_pair_e3() { stage_program pair_stage.py e3 --out "$OUT"; }
stage_demo() { stage_program demo_stage.py --out "$OUT"; }

"stage_${1//-/_}"
